"""debezium: a backlog from PostgreSQL to Kafka, carried by a relay, and by Debezium with the connector's configuration
that `postroad debezium` prints.

Both take turns, each with a log and a topic of its own, on one broker. Debezium reads a replication slot that is older
than the backlog, and takes no snapshot. The time is that between the first and the last record, by the broker's clock,
so that no start of a process counts.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from benchmarks.backlog import create_log, create_sinks, fill
from benchmarks.draining import drain_ours
from benchmarks.process import Broken
from benchmarks.sections import Plan, Section, median, spread
from postroad.admin import Carrier
from postroad.ops.connector import connector
from tests.services.debezium import VERSION, Debezium
from tests.services.kafka import FULL_SPEED, Kafka
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services.postgresql import PostgreSQL

RELAY, DEBEZIUM = "postroad relay", f"Debezium {VERSION}, in a worker of Kafka Connect"
SINK = "drain"
PARTITIONS = 6
SECONDS = 600


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(200_000, quick=10_000)
    section = Section("debezium", f"{messages:,} messages to Kafka, by a relay and by Debezium", ["", "messages/s"])
    rates: dict[str, list[float]] = {RELAY: [], DEBEZIUM: []}
    try:
        with Kafka(java_options=FULL_SPEED) as cluster, _logical(server):
            for _ in range(plan.rounds()):
                rates[RELAY].append(_rate(_by_relay, server, cluster, messages))
                rates[DEBEZIUM].append(_rate(_by_debezium, server, cluster, messages))
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    section.rows = [[name, spread(each)] for name, each in rates.items()]
    times = median([ours / theirs for ours, theirs in zip(rates[RELAY], rates[DEBEZIUM], strict=True)])
    section.at_least("times as fast as Debezium", 1, times, "{:.1f}")
    section.raw = dict(rates)
    return section


@contextmanager
def _logical(server: PostgreSQL) -> Iterator[None]:
    """The server writes what logical replication needs; other benchmarks have its default."""
    server.psql(server.url(), "alter system set wal_level = logical")
    server.restart()
    try:
        yield
    finally:
        server.psql(server.url(), "alter system reset wal_level")
        server.restart()


def _rate(
    carry: Callable[[PostgreSQL, Kafka, str, int], None], server: PostgreSQL, cluster: Kafka, messages: int
) -> float:
    topic = cluster.create_topic(partitions=PARTITIONS, message_timestamp_type="LogAppendTime")
    carry(server, cluster, topic, messages)
    appended = [record.timestamp()[1] for record in cluster.records(topic)]
    if len(appended) != messages:
        raise Broken(f"{len(appended):,} of {messages:,} messages arrived")
    return messages * 1000 / (max(appended) - min(appended))


def _by_relay(server: PostgreSQL, cluster: Kafka, topic: str, messages: int) -> None:
    url = create_log(server)
    create_sinks(url, [SINK], to=cluster.url())
    fill(server, url, messages, topic=f"'{topic}'")
    drain_ours(server, url, SINK, messages, to=cluster.url())
    server.drop_database(url)


def _by_debezium(server: PostgreSQL, cluster: Kafka, topic: str, messages: int) -> None:
    url, slot = create_log(server), f"bench_{uuid4().hex[:8]}"
    server.psql(url, "create publication postroad for table postroad.outbox with (publish = 'insert')")
    server.psql(url, f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    fill(server, url, messages, topic=f"'{topic}'")
    cluster.create_topic(f"__debezium-heartbeat.{slot}")
    carrier = Carrier(slot, "postroad", urlsplit(url).username or "postgres")
    config = connector(url, "postroad", carrier, source="/benchmarks") | {"snapshot.mode": "no_data"}
    with Debezium(cluster.bootstrap, config, java_options=()) as debezium:
        _until(lambda: cluster.size(topic) >= messages, debezium)
        debezium.stop()
    _until(lambda: not int(server.execute(url, _DROP.format(slot))), None)
    server.drop_database(url)


_DROP = """with dropped as (
    select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{0}' and not active)
select (select count(*) from pg_replication_slots where slot_name = '{0}') - (select count(*) from dropped)"""


def _until(done: Callable[[], bool], debezium: Debezium | None) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise Broken("Debezium has not carried all messages" if debezium is None else debezium.output[-2000:])
        time.sleep(0.1)
