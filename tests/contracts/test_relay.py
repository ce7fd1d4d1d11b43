"""The relay through its public interface: what arrives, in which order, and what happens when something goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroad import (
    ClientTooOld,
    InvalidSetting,
    Message,
    PostroadError,
    Refusal,
    StoredMessage,
    StoreUnavailable,
)
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.relay.maintenance import Retention
from postroad.stores.base import Lease, Loaded, Tally
from postroad.stores.cursor import Cursor, Page, PageLimit
from postroad.stores.memory import MemoryStore
from tests.logs import Arrivals, Log, MemoryLog, PostgreSQLLog, log_fixture, numbered

log = log_fixture("memory", "sqlite", "postgresql15")


@pytest.fixture
def memory() -> MemoryLog:
    return MemoryLog()


def relay(log: Log, publisher: Any, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 1, "batch_size": 10, "grace": "5s"}
    return Relay(log.store, publisher, settings=RelaySettings(**(defaults | settings)))


def numbers(broker: MemoryBroker) -> list[int]:
    return [int(message.payload) for message in broker.messages]


class Waves(MemoryBroker):
    """A memory broker that remembers each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[int]] = []

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.calls.append([int(message.payload) for message in messages])
        return await super().publish(messages)


# -- delivering ------------------------------------------------------------------------------------------------------


async def test_everything_that_was_committed_arrives_once(log: Log) -> None:
    await log.add(*numbered(*range(50)))
    await log.add_and_roll_back(*numbered(*range(50, 60)))
    broker = MemoryBroker()
    summary = await relay(log, broker, lanes=4).run_until_empty()
    assert sorted(numbers(broker)) == list(range(50))
    assert summary.published == 50
    assert (await relay(log, broker, lanes=4).run_until_empty()).published == 0
    assert len(broker.messages) == 50


async def test_a_keys_messages_wait_for_each_other(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"), *numbered(4, 5), *numbered(6, key="a"))
    broker = Waves()
    await relay(log, broker).run_until_empty()
    assert broker.calls == [[1, 4, 5], [2], [3], [6]]


async def test_without_ordering_a_page_goes_at_once(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"))
    broker = Waves()
    await relay(log, broker, ordering="none").run_until_empty()
    assert broker.calls == [[1, 2, 3]]


async def test_a_running_relay_carries_what_comes(log: Log) -> None:
    broker = MemoryBroker()
    running = asyncio.create_task((it := relay(log, broker, poll_interval="1ms")).run())
    for number in range(3):
        broker.asked.clear()
        await log.add(*numbered(number))
        await asyncio.wait_for(broker.asked.wait(), 60)
    it.stop()
    assert (await running).published == 3
    assert numbers(broker) == [0, 1, 2]


async def test_two_sinks_each_get_everything(log: Log) -> None:
    await log.add(*numbered(1, 2))
    first, second = MemoryBroker(), MemoryBroker()
    await Relay(log.store, first, sink="first").run_until_empty()
    await log.add(*numbered(3))
    await Relay(log.store, second, sink="second").run_until_empty()
    assert sorted(numbers(first)) == [1, 2]
    assert sorted(numbers(second)) == [1, 2, 3]


async def test_a_handler_in_the_relays_own_process(log: Log) -> None:
    seen = []

    async def handle(message: StoredMessage) -> None:
        seen.append(int(message.payload))

    await log.add(*numbered(1, 2, 3, key="k"))
    await relay(log, LocalPublisher(handle)).run_until_empty()
    assert seen == [1, 2, 3]


async def test_null_takes_everything(log: Log) -> None:
    await log.add(*numbered(*range(25)))
    assert (await relay(log, NullPublisher()).run_until_empty()).published == 25


# -- outages ---------------------------------------------------------------------------------------------------------


async def test_after_an_outage_only_the_rest_of_the_wave_goes_again(log: Log) -> None:
    await log.add(*numbered(1, 2, 3), *numbered(4, 5, key="k1"))
    broker = Waves()
    broker.fail_after(2, 0)
    summary = await relay(log, broker).run_until_empty()
    assert broker.calls == [[1, 2, 3], [3], [3], [4], [5]]
    assert numbers(broker) == [1, 2, 3, 4, 5]
    assert summary.published == 5


class Failing(MemoryStore):
    """A store that fails, or does not answer, on request."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.silent = False
        self.broken: PostroadError | None = None
        self.asked = asyncio.Event()
        self.loads: list[Lease] = []

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        self.loads.append(lease)
        if self.full:
            raise StoreUnavailable("no space left on device")
        return await super().load(lease, by_source=by_source)

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        self.asked.set()
        if self.silent:
            await asyncio.Event().wait()
        if self.broken and lease.lane == 1:
            raise self.broken
        return await super().read(lease, cursor, limit)

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        if self.full:
            raise StoreUnavailable("no space left on device")
        return await super().settle(lease, cursor, tally)


@pytest.fixture
def failing() -> tuple[Failing, MemoryLog]:
    log = MemoryLog()
    log.store = store = Failing()
    return store, log


async def test_what_cannot_be_saved_is_not_published_again_and_again(failing: tuple[Failing, MemoryLog]) -> None:
    store, log = failing
    broker = Arrivals()
    it = relay(log, broker, outage_backoff="1ms", poll_interval="1ms", max_idle_backoff="1ms", settle_interval="0")
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(store.asked.wait(), 60)
    store.full = True
    await log.add(*numbered(1))
    async with asyncio.timeout(60):
        while len(store.loads) < 5:
            store.asked.clear()
            await asyncio.sleep(0.001)
    assert broker.numbers == [1]
    store.full = False
    await log.add(*numbered(2))
    await broker.until(2)
    it.stop()
    await running
    assert broker.numbers == [1, 1, 2]


async def test_an_error_for_good_in_one_lane_ends_the_relay(failing: tuple[Failing, MemoryLog]) -> None:
    store, log = failing
    running = asyncio.create_task(relay(log, MemoryBroker(), lanes=4, wakeup="off").run())
    await asyncio.wait_for(store.asked.wait(), 60)
    store.broken = ClientTooOld("upgrade postroad")
    with pytest.raises(ClientTooOld, match="upgrade postroad"):
        await asyncio.wait_for(running, 60)


async def test_stopping_does_not_wait_for_a_silent_database(
    failing: tuple[Failing, MemoryLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.relay.lane.SAVING_SECONDS", 0.01)
    store, log = failing
    store.silent = True
    running = asyncio.create_task((it := relay(log, MemoryBroker(), grace="10ms")).run())
    await asyncio.wait_for(store.asked.wait(), 60)
    it.stop()
    assert (await asyncio.wait_for(running, 60)).published == 0


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_stopping_waits_for_confirms_and_saves_them(log: Log) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3))
    broker = MemoryBroker()
    broker.hold()
    running = asyncio.create_task((it := relay(log, broker)).run())
    await asyncio.wait_for(broker.asked.wait(), 60)
    it.stop()
    broker.release()
    assert (await running).published == 3, "a page that was begun is finished"
    assert numbers(broker) == [1, 3, 2]
    await relay(log, broker).run_until_empty()
    assert numbers(broker) == [1, 3, 2]


async def test_stopping_does_not_wait_for_ever(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.relay.lane.SAVING_SECONDS", 3600)  # the lane itself is not broken off
    await log.add(*numbered(*range(45), key="a"))
    broker = Arrivals()
    running = asyncio.create_task((it := relay(log, broker, grace="20ms", settle_interval="1h")).run())
    await broker.until(4)
    broker.hold()
    broker.asked.clear()
    await asyncio.wait_for(broker.asked.wait(), 60)
    it.stop()
    await asyncio.wait_for(running, 60)
    arrived = numbers(broker)
    broker.release()
    await relay(log, broker).run_until_empty()
    assert numbers(broker) == list(range(45)), "what was confirmed before was saved, and not sent again"
    assert len(arrived) < 45


async def test_stopping_twice_gives_up_once(memory: MemoryLog) -> None:
    """Its grace has ended, and the publisher is still at what it does when it is cancelled."""

    class Slow(MemoryBroker):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                await over.wait()
            return ()

    await memory.add(*numbered(1))
    broker, over, errors = Slow(), asyncio.Event(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    running = asyncio.create_task((it := relay(memory, broker, grace="10ms")).run())
    await asyncio.wait_for(broker.asked.wait(), 30)
    it.stop()
    await asyncio.sleep(0.05)
    it.stop()
    await asyncio.sleep(0.05)
    over.set()
    await asyncio.wait_for(running, 30)
    assert errors == []


async def test_what_was_confirmed_is_saved_before_the_page_read_ahead_is_cancelled(
    memory: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose connection is silent takes as long to be cancelled as saving may take."""
    monkeypatch.setattr("postroad.relay.lane.SAVING_SECONDS", 0.2)

    class SilentAhead(MemoryStore):
        reads = 0

        async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
            self.reads += 1
            if self.reads == 3:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(1)
            return await super().read(lease, cursor, limit)

    class Holding(Arrivals):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            if messages[0].payload == b"15" and not held.is_set():
                self.hold()
                held.set()
            return await super().publish(messages)

    memory.store, held, broker = SilentAhead(), asyncio.Event(), Holding()
    await memory.add(*numbered(*range(20), key="a"))
    running = asyncio.create_task((it := relay(memory, broker, grace="10ms", settle_interval="1h")).run())
    await asyncio.wait_for(held.wait(), 30)
    it.stop()
    await running
    assert broker.numbers == list(range(15))
    broker.release()
    await relay(memory, broker).run_until_empty()
    assert broker.numbers == list(range(20))


async def test_an_idle_relay_stops_at_once(log: Log) -> None:
    it = relay(log, MemoryBroker(), poll_interval="1h", max_idle_backoff="1h")
    running = asyncio.create_task(it.run())
    await asyncio.sleep(0)
    it.stop()
    assert (await asyncio.wait_for(running, 60)).published == 0


# -- losing ----------------------------------------------------------------------------------------------------------


async def test_a_lane_that_was_changed_is_loaded_again(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """As an operator who goes back in the log would: the relay's memory must not win."""
    if not isinstance(log, PostgreSQLLog):
        pytest.skip("changed by hand in SQL")
    caplog.set_level(logging.DEBUG, "postroad.relay")
    await log.add(*numbered(1, 2, 3))
    broker = Arrivals()
    it = relay(log, broker, poll_interval="1ms")
    running = asyncio.create_task(it.run())
    await broker.until(1, 2, 3)
    broker.hold()
    broker.asked.clear()
    await log.add(*numbered(4))
    await asyncio.wait_for(broker.asked.wait(), 60)
    await log.execute("update postroad.lanes set position = 1, version = version + 1")
    broker.release()
    await log.add(*numbered(5))
    await broker.until(5)
    it.stop()
    await running
    assert numbers(broker) in ([1, 2, 3, 4, 2, 3, 4, 5], [1, 2, 3, 4, 5, 2, 3, 4, 5])
    assert "loading it again" in caplog.text


async def test_retention_walks_the_whole_log(log: Log) -> None:
    await log.add(*numbered(*range(23)))
    await relay(log, NullPublisher(), lanes=3).run_until_empty()
    await log.add(Message("x", type="t"))
    await log.store.open()
    assert await Retention(log.store, retain=timedelta(0), batch=5).run_once() == 23
    assert await Retention(log.store, retain=timedelta(0), batch=5).run_once() == 0
    await log.store.close()


def test_a_sink_needs_a_name() -> None:
    with pytest.raises(InvalidSetting, match="sink is ''"):
        Relay(MemoryLog().store, NullPublisher(), sink="")


def test_a_handler_must_be_async() -> None:
    with pytest.raises(InvalidSetting, match="it must be an async function"):
        LocalPublisher(print)  # type: ignore[arg-type]
