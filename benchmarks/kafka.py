"""kafka: how fast a whole relay process brings a backlog from PostgreSQL to Kafka, beside a bare loop of its client.

All take turns on one cluster, of one broker and of three, and a ratio is taken within a round. The relay is a process
with the default settings. The bare loop is confluent-kafka with the publisher's own configuration and ready-made
records, in this process: page by page, waiting for the confirms of each as a lane does; and without ever waiting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from benchmarks import draining
from benchmarks.backlog import TOPIC
from benchmarks.drain import KEYS
from benchmarks.process import Broken
from benchmarks.rabbitmq import Turn
from benchmarks.rabbitmq_yardsticks import PAGE, stored
from benchmarks.sections import Plan, Section, median, spread
from postroad.brokers.kafka.address import Address
from postroad.brokers.kafka.producers import Producers
from postroad.brokers.kafka.records import Records
from postroad.brokers.kafka.settings import PublisherSettings
from tests.services.kafka import FULL_SPEED, Kafka
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from postroad.brokers.kafka.records import Record
    from tests.services.postgresql import PostgreSQL

PARTITIONS = 6
PAGES, STREAM = "confluent-kafka, page by page", "confluent-kafka, without waiting"
RELAYS = {"postroad relay, no keys": 0, f"postroad relay, {KEYS:,} keys": KEYS, "postroad relay, one hot key": 1}
UNKEYED, KEYED, HOT_KEY = RELAYS


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(300_000, quick=10_000)
    section = Section(
        "kafka",
        f"{messages:,} messages to Kafka, each confirmed by all in-sync replicas",
        ["", "messages/s", f"of {PAGES}", f"of {STREAM}", "share of a core", "CPU each"],
    )
    for brokers in (1, 3):
        try:
            cluster = Kafka(brokers, java_options=FULL_SPEED)
        except ServerMissing as missing:
            section.notes.append(f"Left out: {missing}")
            return section
        with cluster:
            _describe(section, brokers, _in_turns(server, cluster, plan, messages))
    section.notes.append(
        f"Kafka with {PARTITIONS} partitions, on the same machine; three brokers: three copies of each"
    )
    return section


def _in_turns(server: PostgreSQL, cluster: Kafka, plan: Plan, messages: int) -> dict[str, list[Turn]]:
    cluster.create_topic(TOPIC, PARTITIONS)
    sinks = [f"round {number}" for number in range(plan.rounds(3))]
    logs = {name: draining.log(server, messages, keys, sinks, to=cluster.url()) for name, keys in RELAYS.items()}
    bare = Bare(cluster, messages)
    turns: dict[str, list[Turn]] = {name: [] for name in (PAGES, STREAM, *RELAYS)}
    bare.page_by_page()  # this turn only warms the brokers up
    for sink in sinks:
        for name, each in turns.items():
            before = cluster.size(TOPIC)
            if name in logs:
                each.append(_relay(server, logs[name], sink, messages, cluster.url()))
            else:
                each.append(bare.page_by_page() if name == PAGES else bare.stream())
            arrived = cluster.size(TOPIC) - before
            if arrived != messages:
                raise Broken(f"{name}: {arrived:,} of {messages:,} messages arrived")
    return turns


class Bare:
    """A producer as the publisher configures it, and records as it makes them."""

    def __init__(self, cluster: Kafka, messages: int) -> None:
        settings = PublisherSettings()
        config = Producers(Address(cluster.url(), settings), settings)._config()  # noqa: SLF001 - the very same
        self._producer = Producer(config)
        records = Records(settings.topic, settings.envelope, settings.max_message_size)
        self._records = [records.of(stored(number)) for number in range(1, messages + 1)]
        self._confirmed = 0

    def page_by_page(self) -> Turn:
        return self._timed([self._records[first : first + PAGE] for first in range(0, len(self._records), PAGE)])

    def stream(self) -> Turn:
        return self._timed([self._records])

    def _timed(self, pages: list[list[Record]]) -> Turn:
        self._confirmed = 0
        began, used = time.perf_counter(), time.process_time()
        for page in pages:
            for number, (topic, value, headers) in enumerate(page):
                self._producer.produce(topic, value, None, on_delivery=self._on_delivery, headers=headers)
                if number % 100 == 0:
                    self._producer.poll(0)
            self._producer.flush()
        turn = Turn(self._confirmed, time.perf_counter() - began, time.process_time() - used)
        if turn.messages != len(self._records):
            raise Broken(f"{turn.messages:,} of {len(self._records):,} messages were confirmed")
        return turn

    def _on_delivery(self, error: object, _: object) -> None:
        self._confirmed += error is None


def _relay(server: PostgreSQL, log: str, sink: str, messages: int, url: str) -> Turn:
    outcome = draining.drain_ours(server, log, sink, messages, to=url).outcome
    return Turn(outcome.messages, outcome.seconds, outcome.cpu_seconds - outcome.starting_cpu_seconds)


def _describe(section: Section, brokers: int, turns: dict[str, list[Turn]]) -> None:
    def shares(name: str, of: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(turns[name], turns[of], strict=True)]

    where = "one broker" if brokers == 1 else "three brokers"
    for name, each in turns.items():
        section.rows.append(
            [
                f"{where}: {name}",
                spread([turn.rate for turn in each]),
                spread(shares(name, PAGES), "{:.0%}"),
                spread(shares(name, STREAM), "{:.0%}"),
                f"{median([turn.cpu_share for turn in each]):.0%}",
                f"{median([turn.cpu_each for turn in each]) * 1e6:.1f} µs",
            ]
        )
    section.at_least(f"of {PAGES}, {where} (no keys)", 0.7, median(shares(UNKEYED, PAGES)), "{:.0%}")
    if brokers == 1:
        section.at_least(f"messages/s, {where} (no keys)", 60_000, median([turn.rate for turn in turns[UNKEYED]]))
    section.raw |= {f"{where}: {name}": list(each) for name, each in turns.items()}
