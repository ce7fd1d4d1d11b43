"""What relays and consumers did is what exporters read, on the store and the broker in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from postroad import Consumer, InvalidSetting, Message, Refusal
from postroad.brokers.memory import MemoryBroker, MemoryQueue
from postroad.config import RelaySettings
from postroad.listeners import Listeners, MeasuringListener
from postroad.metrics import Metrics
from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import Buckets
from postroad.metrics.probes import live, ready
from postroad.relay import Relay
from postroad.stores.latency import SAMPLES
from tests.consumers import Numbered, consumed, consumer, put
from tests.destinations import stored
from tests.logs import MemoryLog, numbered
from tests.places import on_sqlite
from tests.polling import until

Values = dict[tuple[str, ...], float | Buckets]


def read(metrics: Metrics, name: str) -> Values:
    (family,) = [family for family in metrics.read() if family.metric.name == f"postroad_{name}"]
    return {sample.labels: sample.value for sample in family.samples}


def number(value: float | Buckets) -> float:
    return value.total if isinstance(value, Buckets) else value


async def run_relay(metrics: Metrics, broker: MemoryBroker, count: int = 25, **settings: Any) -> MemoryLog:
    log = MemoryLog()
    await log.add(*numbered(*range(count)))
    relay = Relay(
        log.store, broker, settings=RelaySettings(**{"lanes": 1, "batch_size": 10} | settings), listeners=[metrics]
    )
    await relay.run_until_empty()
    return log


async def test_what_a_relay_published() -> None:
    metrics = Metrics()
    await run_relay(metrics, MemoryBroker())
    assert read(metrics, "relay_published_messages_total") == {("default", "0"): 25}
    assert read(metrics, "relay_pages_total") == {("default", "0"): 3}
    assert number(read(metrics, "relay_publish_duration_seconds")[("default",)]) == 3
    assert number(read(metrics, "relay_settle_duration_seconds")[("default",)]) >= 1
    latency = read(metrics, "relay_delivery_latency_seconds")[("default",)]
    assert isinstance(latency, Buckets)
    assert latency.total == 25
    assert 0 < latency.sum < 25 * 60
    assert read(metrics, "relay_last_published_timestamp_seconds")[("default",)] > 1e9  # type: ignore[operator]


async def test_a_long_page_is_measured_by_a_few_of_its_messages_which_stand_for_all() -> None:
    few: list[int] = []

    class Seen(Metrics):
        def on_published(self, sink: str, messages: int, created_us: Sequence[int], seconds: float) -> None:
            few.append(len(created_us))
            super().on_published(sink, messages, created_us, seconds)

    metrics = Seen()
    await run_relay(metrics, MemoryBroker(), 105, batch_size=100)
    assert number(read(metrics, "relay_delivery_latency_seconds")[("default",)]) == 105
    assert SAMPLES <= few[0] <= 2 * SAMPLES
    assert few[1:] == [5]


async def test_refusals_by_cause_and_the_dead() -> None:
    metrics, broker = Metrics(), MemoryBroker()
    answers = {0: Refusal(0, "no", permanent=True), 1: "not now", 2: Refusal(0, "no queue", route="r", unroutable=True)}

    def refuse(message: Any) -> Any:
        answer = answers.get(int(message.payload))
        return answer._replace(position=message.position) if isinstance(answer, Refusal) else answer

    broker.refuse(refuse)
    await run_relay(metrics, broker, max_attempts=1)
    assert read(metrics, "relay_refusals_total") == {
        ("default", "refused"): 1, ("default", "permanent"): 1, ("default", "route"): 1,
    }  # fmt: skip
    assert read(metrics, "relay_dead_messages_total") == {("default",): 2}
    assert read(metrics, "relay_published_messages_total") == {("default", "0"): 22}
    assert number(read(metrics, "relay_delivery_latency_seconds")[("default",)]) == 22


async def test_a_message_that_is_retried_counts_when_it_arrives() -> None:
    metrics, broker, refused = Metrics(), MemoryBroker(), set[int]()

    def once(message: Any) -> str | None:
        if message.position in refused:
            return None
        refused.add(message.position)
        return "not now"

    broker.refuse(once)
    log = MemoryLog()
    await log.add(*numbered(1))
    settings = RelaySettings(lanes=1, max_backoff="1ms")
    relay = Relay(log.store, broker, settings=settings, listeners=[metrics])
    async with relay:
        await until(lambda: bool(broker.messages))
    assert read(metrics, "relay_published_messages_total") == {("default", "0"): 1}
    assert number(read(metrics, "relay_delivery_latency_seconds")[("default",)]) == 1
    assert read(metrics, "relay_pages_total") == {("default", "0"): 1}


async def test_a_relay_that_runs_and_one_that_has_ended() -> None:
    metrics, broker, log = Metrics(), MemoryBroker(), MemoryLog()
    relay = Relay(log.store, broker, sink="s", settings=RelaySettings(lanes=2), listeners=[metrics])
    assert read(metrics, "relay_lanes") == {}
    assert metrics.relays()[0].phase == "starting"
    async with relay:
        await until(lambda: read(metrics, "relay_lanes") == {("s",): 2})
        await until(lambda: read(metrics, "relay_listening") == {("s",): 1})
        assert read(metrics, "relay_broker_up") == {("s",): 1}
        assert read(metrics, "relay_routes_blocked") == {("s",): 0}
        (remaining,) = read(metrics, "relay_lease_remaining_seconds").values()
        assert 0 < number(remaining) <= 15
        relay.stop()
        assert metrics.relays()[0].phase in {"draining", "ended"}
    assert metrics.relays()[0].phase == "ended"
    assert read(metrics, "relay_broker_up") == read(metrics, "relay_lanes") == {}
    assert read(metrics, "relay_dead_messages_total") == {("s",): 0}, "a counter stays"


async def test_a_broker_that_is_out_is_not_up_from_the_start_on() -> None:
    metrics, broker, log = Metrics(), MemoryBroker(), MemoryLog()
    broker.go_out()
    relay = Relay(log.store, broker, settings=RelaySettings(lanes=1, outage_backoff="10ms"), listeners=[metrics])
    async with relay:
        await until(lambda: read(metrics, "relay_lanes") == {("default",): 1})
        assert read(metrics, "relay_broker_up") == {("default",): 0}
        assert metrics.relays()[0].phase == "running"
        await log.add(*numbered(1))
        relay.wake()
        await broker.asked.wait()
        broker.come_back()
        await until(lambda: read(metrics, "relay_broker_up") == {("default",): 1})


async def test_two_relays_of_one_sink_are_added_up() -> None:
    metrics = Metrics()
    await run_relay(metrics, MemoryBroker(), 3)
    await run_relay(metrics, MemoryBroker(), 4)
    assert read(metrics, "relay_published_messages_total") == {("default", "0"): 7}
    assert len({sample.labels for family in metrics.read() for sample in family.samples if family.metric.labels}) > 1


class Broken(MemoryBroker):
    async def open(self) -> None:
        raise LookupError("broken")


async def test_a_failed_relay_is_told() -> None:
    metrics, log = Metrics(), MemoryLog()
    relay = Relay(log.store, Broken(), listeners=[metrics])
    with pytest.raises(LookupError):
        await relay.run()
    assert metrics.relays()[0].phase == "failed"


@pytest.mark.parametrize("broker", [MemoryBroker(), Broken()])
async def test_a_relay_that_is_over_counts_for_probes_until_there_is_another(broker: MemoryBroker) -> None:
    metrics, log, other = Metrics(), MemoryLog(), MemoryLog()
    async with Relay(other.store, MemoryBroker(), sink="other", listeners=[metrics]):
        with suppress(LookupError):
            await Relay(log.store, broker, listeners=[metrics]).run_until_empty()
        assert not ready(metrics.relays(), ()).ok
        async with Relay(log.store, MemoryBroker(), listeners=[metrics]):
            assert live(metrics.relays(), ()).ok
            assert ready(metrics.relays(), ()).ok
            assert len(metrics.relays()) == 2


async def test_of_two_relays_that_run_at_once_one_that_fails_counts() -> None:
    metrics, log, other = Metrics(), MemoryLog(), MemoryLog()
    failing = Relay(log.store, Broken(), listeners=[metrics])
    async with Relay(other.store, MemoryBroker(), listeners=[metrics]):
        with pytest.raises(LookupError):
            await failing.run()
        assert not live(metrics.relays(), ()).ok


async def test_what_a_consumer_did(tmp_path: Path) -> None:
    metrics, queue, place = Metrics(), MemoryQueue(), on_sqlite("aiosqlite", tmp_path / "shop.sqlite")

    def fail(event: Numbered, message: Any) -> None:
        if event.number == 2 and message.attempt == 1:
            raise LookupError("not yet")

    it = consumer(place, queue)
    it.add_listener(metrics)
    it.on(Numbered)(place.handler(fail))
    first = stored(1, type="numbered", payload=b'{"number":1}')
    queue.put_stored(first)
    put(queue, 2)
    queue.put(b"no message")
    await consumed(it)
    queue.put_stored(first)
    await consumed(it)
    assert read(metrics, "consumer_messages_total") == {
        ("stock", "handled"): 2, ("stock", "duplicate"): 1, ("stock", "failed"): 1, ("stock", "dead_lettered"): 1,
    }  # fmt: skip
    assert read(metrics, "consumer_in_flight") == {("stock",): 0}
    assert number(read(metrics, "consumer_process_duration_seconds")[("stock",)]) == 4
    assert number(read(metrics, "consumer_end_to_end_seconds")[("stock",)]) == 2
    assert metrics.consumers()[0].phase == "ended"


async def test_a_failed_consumer_counts_for_probes_until_it_runs_again_or_there_is_another(tmp_path: Path) -> None:
    metrics, queue, place = Metrics(), MemoryQueue(), on_sqlite("aiosqlite", tmp_path / "shop.sqlite")
    phases: list[str] = []

    def begin() -> Any:
        phases.append(failed.stats().phase)
        return place.begin()

    failed = Consumer(queue, name="stock", begin=begin, listeners=[metrics])
    with pytest.raises(InvalidSetting, match="has no handler"):
        await consumed(failed)
    assert not live((), metrics.consumers()).ok
    failed.on(Numbered)(place.handler(lambda *_: None))
    put(queue, 1)
    await consumed(failed)
    assert phases[0] == "starting"
    assert live((), metrics.consumers()).ok

    other = consumer(place, queue, listeners=[metrics])
    assert [each.phase for each in metrics.consumers()] == ["starting"]
    other.on(Numbered)(place.handler(lambda *_: None))
    put(queue, 2)
    await consumed(other)
    assert read(metrics, "consumer_messages_total")[("stock", "handled")] == 2, "a counter stays"


async def test_handlers_in_a_relay_count_as_a_consumer(tmp_path: Path) -> None:
    metrics, place, log = Metrics(), on_sqlite("aiosqlite", tmp_path / "shop.sqlite"), MemoryLog()
    seen: list[int] = []

    def look(event: Numbered, message: Any) -> None:
        seen.append(it.stats().in_flight)

    it = consumer(place, MemoryQueue(), listeners=[metrics])
    it.on(Numbered)(place.handler(look))
    await log.add(*(Message({"number": n}, type="numbered", key=f"k{n}") for n in range(3)))
    await Relay(log.store, it.publisher(), listeners=[metrics]).run_until_empty()
    assert read(metrics, "consumer_messages_total")[("stock", "handled")] == 3
    assert number(read(metrics, "consumer_end_to_end_seconds")[("stock",)]) == 3
    assert seen
    assert all(number >= 1 for number in seen)
    assert it.stats().in_flight == 0


async def test_metrics_that_fail_cost_no_message(caplog: Any) -> None:
    class Broken(Metrics):
        def on_published(self, *_: Any) -> None:
            raise LookupError("published")

        def on_settled(self, *_: Any) -> None:
            raise LookupError("settled")

    broker = MemoryBroker()
    await run_relay(Broken(), broker)
    assert len(broker.messages) == 25
    assert "failed on a measurement" in caplog.text


def test_nothing_is_measured_unless_a_listener_wants_it() -> None:
    assert isinstance(Metrics(), MeasuringListener)
    assert (Listeners().measure, Listeners([]).measure, Listeners([Metrics()]).measure) == (False, False, True)


def test_every_metric_of_the_catalog_is_read_in_its_order() -> None:
    assert [family.metric for family in Metrics().read()] == list(CATALOG.values())
