"""Writes postroad.json, the Grafana dashboard: `python deploy/grafana/dashboard.py`. A test compares the two.

Values from the database come from every relay, so they are joined by max.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).parent / "postroad.json"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
ACTIVE: Final = ',state="active"'
DEAD: Final = ',state="dead"'


class Panel(NamedTuple):
    """A panel: queries by legend."""

    kind: str
    title: str
    help: str
    queries: dict[str, str]
    unit: str = "short"
    width: int = 8
    red_from: float | None = None
    """A stat is red from this value on."""
    red_below: float | None = None


def of(name: str, more: str = "") -> str:
    """A metric of the chosen sinks."""
    return f'postroad_{name}{{job=~"$job",sink=~"$sink"{more}}}'


def of_job(name: str, more: str = "") -> str:
    """A metric without a sink."""
    return f'postroad_{name}{{job=~"$job"{more}}}'


def rate(metric: str) -> str:
    return f"rate({metric}[$__rate_interval])"


def quantile(share: float, name: str, label: str) -> str:
    metric = of(f"{name}_bucket") if label == "sink" else of_job(f"{name}_bucket")
    return f"histogram_quantile({share}, sum by (le, {label}) ({rate(metric)}))"


OUTCOMES: Final = f"sum by (consumer, outcome) ({rate(of_job('consumer_messages_total'))})"

ROWS: Final[dict[str, list[Panel]]] = {
    "Is it fine?": [
        Panel(
            "stat", "Oldest unsent message", "The age of the oldest message that should have arrived and has not.",
            {"{{sink}}": f"max by (sink) ({of('outbox_oldest_unsent_age_seconds')})"}, "s", 4, red_from=300,
        ),
        Panel(
            "stat", "Active relays", "Relays that own lanes.",
            {"{{sink}}": f"max by (sink) ({of('relays', ACTIVE)})"}, width=4, red_below=1,
        ),
        Panel(
            "stat", "Destination up", "1 if every relay reaches its destination.",
            {"{{sink}}": f"min by (sink) ({of('relay_broker_up')})"}, width=4, red_below=1,
        ),
        Panel(
            "stat", "Dead messages", "They wait for an operator: `postroad dead list`.",
            {"{{sink}}": f"max by (sink) ({of('outbox_deferred_messages', DEAD)})"}, width=4, red_from=1,
        ),
        Panel(
            "stat", "Paused sinks, held keys", "What operators have stopped.",
            {
                "{{sink}} paused": f"max by (sink) ({of('sink_paused')})",
                "{{sink}} held keys": f"max by (sink) ({of('held_keys')})",
            },
            width=4, red_from=1,
        ),
        Panel(
            "stat", "Age of these values", "Old values say nothing about now.",
            {"{{instance}}": f"time() - max by (instance) ({of_job('exporter_last_success_timestamp_seconds')})"},
            "s", 4, red_from=120,
        ),
    ],
    "Rate in and out, latency": [
        Panel(
            "timeseries", "Messages per second", "Added to the log, and published by each sink.",
            {
                "added": f"max(deriv({of_job('outbox_log_position')}[$__rate_interval]))",
                "published to {{sink}}": f"sum by (sink) ({rate(of('relay_published_messages_total'))})",
            },
        ),
        Panel(
            "heatmap", "Delivery latency", "From the transaction that added a message to the confirm.",
            {"{{le}}": f"sum by (le) ({rate(of('relay_delivery_latency_seconds_bucket'))})"}, "s",
        ),
        Panel(
            "timeseries", "Delivery latency, quantiles", "From the transaction that added a message to the confirm.",
            {
                "p50 {{sink}}": quantile(0.5, "relay_delivery_latency_seconds", "sink"),
                "p99 {{sink}}": quantile(0.99, "relay_delivery_latency_seconds", "sink"),
            },
            "s",
        ),
    ],
    "Lanes": [
        Panel(
            "timeseries", "Lag by lane", "The age of the oldest pending message.",
            {"{{sink}}/{{lane}}": f"max by (sink, lane) ({of('outbox_lag_seconds')})"}, "s",
        ),
        Panel(
            "timeseries", "Pending by lane", "Messages that the lane has not read yet.",
            {"{{sink}}/{{lane}}": f"max by (sink, lane) ({of('outbox_pending_messages')})"},
        ),
        Panel(
            "timeseries", "Published by lane", "Messages per second. A hot key is in one lane.",
            {"{{sink}}/{{lane}}": f"sum by (sink, lane) ({rate(of('relay_published_messages_total'))})"},
        ),
        Panel(
            "timeseries", "Lanes by relay", "Which relay owns how many.",
            {"{{sink}} {{instance}}": f"max by (sink, instance) ({of('relay_lanes')})"},
        ),
        Panel(
            "timeseries", "Remaining lease", "It must not come near 0 while a relay owns lanes.",
            {"{{sink}} {{instance}}": f"min by (sink, instance) ({of('relay_lease_remaining_seconds')})"}, "s",
        ),
        Panel(
            "timeseries", "Lanes lost, pages", "Lanes taken by another relay; pages per second.",
            {
                "lost {{sink}}": f"sum by (sink) (increase({of('relay_lanes_lost_total')}[$__rate_interval]))",
                "pages/s {{sink}}": f"sum by (sink) ({rate(of('relay_pages_total'))})",
            },
        ),
    ],
    "Refused and deferred messages": [
        Panel(
            "timeseries", "Refusals by cause", "refused and permanent count an attempt; a blocked route does not.",
            {"{{sink}} {{cause}}": f"sum by (sink, cause) ({rate(of('relay_refusals_total'))})"},
        ),
        Panel(
            "timeseries", "Deferred messages by state", "They wait for a retry, a route, an operator or their key.",
            {"{{sink}} {{state}}": f"max by (sink, state) ({of('outbox_deferred_messages')})"},
        ),
        Panel(
            "timeseries", "Blocked routes, dead messages", "Routes without a queue; messages given up.",
            {
                "blocked routes {{sink}}": f"max by (sink) ({of('relay_routes_blocked')})",
                "died {{sink}}": f"sum by (sink) (increase({of('relay_dead_messages_total')}[$__rate_interval]))",
            },
        ),
        Panel(
            "timeseries", "Listening", "0: the relay polls.",
            {"{{sink}} {{instance}}": f"min by (sink, instance) ({of('relay_listening')})"}, width=6,
        ),
        Panel(
            "timeseries", "Event loop lag", "Code in the process that blocks the loop delays heartbeats.",
            {"{{instance}}": f"max by (instance) ({of_job('relay_event_loop_lag_seconds')})"}, "s", 6,
        ),
        Panel(
            "timeseries", "Publish duration, p99", "From sending a page to its last confirm.",
            {"{{sink}}": quantile(0.99, "relay_publish_duration_seconds", "sink")}, "s", 6,
        ),
        Panel(
            "timeseries", "Since the last publish", "Of each relay.",
            {"{{sink}} {{instance}}":
             f"time() - max by (sink, instance) ({of('relay_last_published_timestamp_seconds')})"}, "s", 6,
        ),
    ],
    "Inbox": [
        Panel("timeseries", "Messages by outcome", "Per second.", {"{{consumer}} {{outcome}}": OUTCOMES}),
        Panel(
            "timeseries", "Process duration", "Of an attempt, with its transaction.",
            {
                "p50 {{consumer}}": quantile(0.5, "consumer_process_duration_seconds", "consumer"),
                "p99 {{consumer}}": quantile(0.99, "consumer_process_duration_seconds", "consumer"),
            },
            "s",
        ),
        Panel(
            "timeseries", "End to end, in flight", "From adding a message to its effect.",
            {
                "p99 {{consumer}}": quantile(0.99, "consumer_end_to_end_seconds", "consumer"),
                "in flight {{consumer}}": f"sum by (consumer) ({of_job('consumer_in_flight')})",
            },
        ),
    ],
    "Database": [
        Panel(
            "timeseries", "Table sizes", "With indexes.",
            {"{{table}}": f"max by (table) ({of_job('table_bytes')})"}, "bytes",
        ),
        Panel(
            "timeseries", "Age of the first row", "Retention keeps what a sink has not passed.",
            {"oldest row": f"max({of_job('outbox_oldest_row_age_seconds')})"}, "s",
        ),
        Panel(
            "timeseries", "Settle duration, p99", "How long saving a cursor takes.",
            {"{{sink}}": quantile(0.99, "relay_settle_duration_seconds", "sink")}, "s",
        ),
        Panel(
            "timeseries", "Scheduled messages", "Not in the log yet.",
            {"scheduled": f"max({of_job('scheduled_messages')})"}, width=8,
        ),
        Panel(
            "timeseries", "Overdue", "How late the first scheduled message is.",
            {"overdue": f"max({of_job('scheduled_overdue_seconds')})"}, "s",
        ),
        Panel(
            "table", "Versions", "Of postroad and Python.",
            {"{{instance}}": f"max by (instance, version, python) ({of_job('build_info')})"},
        ),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    return {
        "uid": "postroad",
        "title": "postroad",
        "tags": ["postroad"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [_datasource(), _variable("job", "postroad_build_info"), _variable("sink", "postroad_relays")]
        },
        "annotations": {"list": [_paused()]},
        "panels": _panels(),
    }  # fmt: skip


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    shown = {"includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}}
    return {"name": label, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, **shown}


def _paused() -> dict[str, Any]:
    """Operators' pauses, as marks in every chart."""
    expression = f"max by (sink) (changes({of('sink_paused')}[2m])) > 0"
    return {
        "name": "paused or resumed", "datasource": SOURCE, "enable": True, "expr": expression,
        "titleFormat": "{{sink}} was paused or resumed", "iconColor": "orange",
    }  # fmt: skip


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for title, panels in ROWS.items():
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "gridPos": _place(0, top, WIDTH, 1), "panels": []}
        )
        top += 1
        left = 0
        height = 4 if panels[0].kind == "stat" else 8
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            made.append(_panel(panel, len(made) + 1, _place(left, top, panel.width, height)))
            left += panel.width
        top += height
    return made


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, id: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        | ({"format": "heatmap"} if panel.kind == "heatmap" else {})
        | ({"format": "table", "instant": True} if panel.kind == "table" else {})
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "thresholds": _thresholds(panel)}, "overrides": []},
        "options": {"calculate": False} if panel.kind == "heatmap" else {},
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    return {"mode": "absolute", "steps": steps}


if __name__ == "__main__":
    FILE.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
