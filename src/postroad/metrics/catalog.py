"""Every metric, declared once: name, type, labels and a line of help. Pure.

Names and labels are a contract: dashboards and alerts depend on them, and docs/monitoring.md lists them. No label holds
a key, an id, a message's type or the text of an error, because each of their values would be a series of its own.
"""

from __future__ import annotations

from typing import Final

from postroad.metrics.instruments import Kind, Metric

__all__ = ["CATALOG", "CONSUMER", "DATABASE", "PROCESS", "RELAY"]


def _metric(kind: Kind, name: str, labels: str, help: str) -> Metric:
    return Metric(f"postroad_{name}", kind, tuple(labels.split()), help)


RELAY: Final = (
    _metric("counter", "relay_published_messages_total", "sink lane", "Messages that the destination has confirmed."),
    _metric("counter", "relay_pages_total", "sink lane", "Pages that were published to their end."),
    _metric(
        "counter",
        "relay_refusals_total",
        "sink cause",
        "Messages that the destination refused, by cause: refused, permanent, or route (it is blocked; no attempt).",
    ),
    _metric(
        "counter", "relay_dead_messages_total", "sink", "Messages that this relay has given up: an operator decides."
    ),
    _metric("counter", "relay_lanes_lost_total", "sink", "Lanes that another relay took while this one owned them."),
    _metric("histogram", "relay_publish_duration_seconds", "sink", "From sending a page until it was confirmed."),
    _metric(
        "histogram",
        "relay_delivery_latency_seconds",
        "sink",
        "From the beginning of the transaction that added a message until its page was confirmed. Of a long page, a "
        "few messages stand for all.",
    ),
    _metric("histogram", "relay_settle_duration_seconds", "sink", "How long saving a cursor took."),
    _metric("gauge", "relay_broker_up", "sink", "1 if the destination is available, as far as this relay knows."),
    _metric(
        "gauge", "relay_listening", "sink", "1 if commits wake this relay; 0 if it polls. Absent with wakeup = off."
    ),
    _metric("gauge", "relay_routes_blocked", "sink", "Routes that messages of this relay's lanes wait for."),
    _metric("gauge", "relay_lanes", "sink", "Lanes that this relay owns; 0 while it stands by."),
    _metric("gauge", "relay_lease_remaining_seconds", "sink", "How long the lease lasts that ends first."),
    _metric("gauge", "relay_last_published_timestamp_seconds", "sink", "When this relay last published, as Unix time."),
)
"""Of each relay in this process."""

CONSUMER: Final = (
    _metric(
        "counter",
        "consumer_messages_total",
        "consumer outcome",
        "Messages by outcome: handled, duplicate, failed (an attempt of a handler), dead_lettered.",
    ),
    _metric(
        "histogram",
        "consumer_process_duration_seconds",
        "consumer",
        "How long an attempt took, from beginning the transaction to its commit or rollback; a group counts once.",
    ),
    _metric(
        "histogram",
        "consumer_end_to_end_seconds",
        "consumer",
        "From when a message was added until its effect was there.",
    ),
    _metric("gauge", "consumer_in_flight", "consumer", "Messages that are being processed."),
)
"""Of each consumer in this process."""

PROCESS: Final = (
    _metric(
        "gauge", "relay_event_loop_lag_seconds", "", "The longest delay of the event loop in the last half minute."
    ),
    _metric("gauge", "build_info", "version python", "1; the labels are the versions of postroad and Python."),
)

DATABASE: Final = (
    _metric(
        "gauge",
        "outbox_pending_messages",
        "sink lane",
        "Messages that the lane has not read yet; an estimate where there are many.",
    ),
    _metric(
        "gauge", "outbox_lag_seconds", "sink lane", "The age of the oldest pending message of the lane; 0 without one."
    ),
    _metric(
        "gauge",
        "outbox_oldest_unsent_age_seconds",
        "sink",
        "The age of the oldest message that was not sent, pending or deferred; 0 without one.",
    ),
    _metric("gauge", "sink_paused", "sink", "1 if an operator has paused the sink."),
    _metric("gauge", "held_keys", "sink", "Keys that operators hold."),
    _metric(
        "gauge",
        "outbox_deferred_messages",
        "sink state",
        "Deferred messages by state: retrying, sending, held or dead; each counted up to 10,000.",
    ),
    _metric("gauge", "relays", "sink state", "Relays by state: active, standby or dead."),
    _metric("gauge", "outbox_log_position", "", "The last position of the log; its rate is that of added messages."),
    _metric("gauge", "scheduled_messages", "", "Scheduled messages that are not in the log yet, counted up to 10,000."),
    _metric("gauge", "scheduled_overdue_seconds", "", "How long the first scheduled message is overdue; 0 if none is."),
    _metric("gauge", "outbox_oldest_row_age_seconds", "", "The age of the first row of the log; 0 if it is empty."),
    _metric(
        "gauge",
        "exporter_last_success_timestamp_seconds",
        "",
        "When the metrics from the database were last read, as Unix time; 0 before the first time.",
    ),
    _metric("gauge", "table_bytes", "table", "The size of a table with its indexes; SQLite: of the whole file."),
)
"""Of the database, for all sinks, read every 10 seconds at most."""

CATALOG: Final[dict[str, Metric]] = {each.name: each for each in (*RELAY, *CONSUMER, *PROCESS, *DATABASE)}
"""All metrics, by name."""
