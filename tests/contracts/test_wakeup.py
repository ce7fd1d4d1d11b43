"""A relay with nothing to do sleeps, and a commit wakes it. The slow tick is set to an hour where it must not help."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from postroad import StoreUnavailable
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_naps import MemoryListenConnection, MemoryNaps
from postroad.stores.naps import NotifyHandler
from tests.lanes import identity, take_lanes
from tests.logs import Arrivals, Log, MemoryLog, PostgreSQLLog, log_fixture, numbered

SECONDS = 120
NEVER = "1h"


log = log_fixture("memory", "sqlite", "postgresql15")


def relay(log: Log, publisher: Any, *, sink: str = "default", **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 2, "tick": NEVER, "linger": "1ms", "poll_interval": "1ms", "grace": "5s"}
    return Relay(log.another_store(), publisher, sink=sink, settings=RelaySettings(**(defaults | settings)))


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[Relay]:
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.stop()
        await asyncio.wait_for(task, SECONDS)


async def until(holds: Callable[[], Any]) -> None:
    """Wait for what has no signal: a lane that sleeps, a log line, the state of the server."""
    async with asyncio.timeout(SECONDS):
        while not (await found if inspect.isawaitable(found := holds()) else found):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


async def until_asleep(*relays: Relay) -> None:
    """Until no lane does anything."""
    await until(lambda: all(each._lanes and all(wait.asleep for wait in each._wakeup._waits) for each in relays))


async def test_a_commit_wakes_a_relay_that_sleeps(log: Log) -> None:
    broker = Arrivals()
    async with running(relay(log, broker)) as it:
        for number in range(5):
            await until_asleep(it)
            await log.add(*numbered(number))
            await broker.until(number)
    assert broker.numbers == list(range(5))


async def test_a_commit_wakes_the_relays_of_all_sinks(log: Log) -> None:
    first, second = Arrivals(), Arrivals()
    async with running(relay(log, first, sink="1")) as one, running(relay(log, second, sink="2", lanes=3)) as two:
        for number in range(3):
            await until_asleep(one, two)
            await log.add(*numbered(number))
            await asyncio.gather(first.until(number), second.until(number))


async def test_a_tick_finds_what_was_not_notified(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Arrivals()
    async with running(relay(log, broker, tick="20ms", max_idle_backoff=NEVER)) as it:
        await until_asleep(it)
        monkeypatch.setattr(it._wakeup, "on_notify", lambda *_: None)
        await log.add(*numbered(1))
        await broker.until(1)


async def test_a_quiet_lane_comes_as_far_as_the_log_while_it_sleeps(log: Log) -> None:
    broker = Arrivals()
    async with running(relay(log, broker, tick="20ms")):
        await log.add(*numbered(*range(10), key="all in one lane"))
        await broker.until(*range(10))

        async def all_at_the_end() -> bool:
            return set(await log.cursors()) == {10}

        await until(all_at_the_end)


async def test_a_relay_whose_lanes_were_taken_while_it_slept_finds_out(log: Log) -> None:
    first = relay(log, Arrivals(), tick="50ms")
    ending = asyncio.create_task(first.run())
    await until_asleep(first)
    store, taken = log.another_store(), 0
    await store.open()
    (it,) = await store.leases.relays()
    while taken < 2:  # it may be faster to take back what it does not know to be lost
        await store.leases.deregister(identity(it.sink, it.owner))
        taken += len(await store.leases.take(identity(it.sink), 2, 3600.0))
    await until(lambda: not first._lanes)
    assert first._wakeup._waits == []
    first.stop()
    assert (await asyncio.wait_for(ending, SECONDS)).lanes_lost >= 2
    await store.close()


async def test_without_wake_up_it_polls(log: Log) -> None:
    broker = Arrivals()
    async with running(relay(log, broker, wakeup="off", max_idle_backoff="5ms")) as it:
        await log.add(*numbered(1))
        await broker.until(1)
        assert not any(wait.nap or wait.asleep for wait in it._wakeup._waits)


async def test_an_application_in_the_same_process_wakes_it_from_any_thread(log: Log) -> None:
    broker = Arrivals()
    settings = {"wakeup": "off", "poll_interval": NEVER, "max_idle_backoff": NEVER}
    async with running(relay(log, broker, **settings)) as it:
        await until(lambda: it._lanes)
        for number in range(3):
            await log.add(*numbered(number))
            while number not in broker.numbers:  # it may have begun to look before the commit: one more call, later
                threading.Thread(target=it.wake).start()
                with suppress(TimeoutError):
                    await asyncio.wait_for(broker.until(number), 0.05)


def test_waking_a_relay_that_does_not_run_does_nothing() -> None:
    Relay(MemoryStore(), Arrivals()).wake()


async def test_stopping_does_not_wait_for_a_sleeper_and_leaves_no_nap(log: Log) -> None:
    it = relay(log, Arrivals())
    task = asyncio.create_task(it.run())
    await until_asleep(it)
    it.stop()
    await asyncio.wait_for(task, SECONDS)
    if isinstance(log, PostgreSQLLog):
        assert await log.execute("select * from postroad.naps") == []


async def test_a_lane_stays_awake_for_a_while_after_its_last_message(log: Log) -> None:
    broker = Arrivals()
    async with running(relay(log, broker, lanes=1, linger=NEVER)) as it:
        await until_asleep(it)
        await log.add(*numbered(1))
        await broker.until(1)
        await log.add(*numbered(2))
        await broker.until(2)
        (wait,) = it._wakeup._waits
        assert (wait.nap, wait.asleep) == (None, False)


# -- what can go wrong between a database and the one it wakes -------------------------------------------------------


class Mute(MemoryNaps):
    """Naps of a database whose notifications can be made not to arrive."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.mute = False
        self.refuses = 0
        self.tried = asyncio.Event()

    async def listen(self, channel: str, handler: NotifyHandler) -> MemoryListenConnection:
        self.tried.set()
        if self.refuses:
            self.refuses -= 1
            raise StoreUnavailable("no room for one more connection")
        return await super().listen(channel, handler)

    async def tick(self, *arguments: Any, **options: Any) -> Any:
        if self.mute:
            options["token"] = "another's"
        return await super().tick(*arguments, **options)

    def notify(self) -> None:
        if not self.mute:
            super().notify()


@pytest.fixture
def mute() -> tuple[Mute, MemoryLog]:
    log = MemoryLog()
    log.store.naps = Mute(log.store)
    return log.store.naps, log


def listen_events(caplog: pytest.LogCaptureFixture) -> list[str]:
    logged = (str(getattr(record, "event", "")) for record in caplog.records)
    return [event for event in logged if event in {"listen_lost", "listen_restored"}]


async def until_listen_events(caplog: pytest.LogCaptureFixture, *events: str) -> None:
    await until(lambda: listen_events(caplog) == list(events))


async def test_lost_notifications_are_logged_once_and_replaced_by_polling(
    mute: tuple[Mute, MemoryLog], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    naps, log = mute
    broker = Arrivals()
    async with running(relay(log, broker, tick="20ms", max_idle_backoff="5ms")) as it:
        await until_asleep(it)
        assert listen_events(caplog) == []
        naps.mute = True
        await until_listen_events(caplog, "listen_lost")
        await log.add(*numbered(1))
        await broker.until(1)
        assert not any(wait.nap or wait.asleep for wait in it._wakeup._waits)
        naps.mute = False
        await until_listen_events(caplog, "listen_lost", "listen_restored")
        await until_asleep(it)


async def test_who_never_heard_anything_never_sleeps(
    mute: tuple[Mute, MemoryLog], caplog: pytest.LogCaptureFixture
) -> None:
    naps, log = mute
    naps.mute = True
    broker = Arrivals()
    async with running(relay(log, broker, tick="10ms", max_idle_backoff="5ms")) as it:
        await until_listen_events(caplog, "listen_lost")
        naps.tried.clear()
        await asyncio.wait_for(naps.tried.wait(), SECONDS)
        assert not any(wait.nap or wait.asleep for wait in it._wakeup._waits)
        assert listen_events(caplog) == ["listen_lost"], "once is enough"


async def test_a_connection_that_can_not_be_made_is_tried_again(
    mute: tuple[Mute, MemoryLog], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    naps, log = mute
    naps.refuses = 2
    async with running(relay(log, Arrivals(), tick="10ms")) as it:
        await until_asleep(it)
    assert listen_events(caplog) == ["listen_lost", "listen_restored"]
    assert "no room for one more connection" in caplog.text


async def test_a_nap_that_was_not_renewed_begins_anew(
    mute: tuple[Mute, MemoryLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    naps, log = mute
    async with running(relay(log, Arrivals(), lanes=1, tick="10ms")) as it:
        await until_asleep(it)
        begun, begin, tick = asyncio.Event(), naps.begin, naps.tick

        async def begins(*arguments: Any, **options: Any) -> int | None:
            begun.set()
            return await begin(*arguments, **options)

        async def renews_nothing(*arguments: Any, **options: Any) -> Any:
            return msgspec.structs.replace(await tick(*arguments, **options), renewed_naps=())

        monkeypatch.setattr(naps, "begin", begins)
        monkeypatch.setattr(naps, "tick", renews_nothing)
        await asyncio.wait_for(begun.wait(), SECONDS)


# -- the contract of naps --------------------------------------------------------------------------------------------


class Received:
    def __init__(self) -> None:
        self.echoes: list[str] = []
        self.logged = asyncio.Event()

    def on_notify(self, first_slot: int, last_slot: int) -> None:
        self.logged.set()

    def on_echo(self, token: str) -> None:
        self.echoes.append(token)
        self.logged.set()

    def on_listen_lost(self, reason: str) -> None:
        raise AssertionError(reason)


async def test_a_tick_returns_the_owned_lanes_and_those_with_work(log: Log) -> None:
    store = log.store
    await store.open()
    received = Received()
    listening = await store.naps.listen("channel", received)
    owner = uuid4()
    lanes = await take_lanes(store, "s", owner, lanes=2, start="oldest")
    nap = await store.naps.begin(lanes[0], channel="channel", seconds=60)
    assert nap is not None

    async def tick(owner: Any) -> Any:
        return await store.naps.tick("s", owner, naps={nap}, seconds=60, channel="channel", token="hello")

    found = await tick(owner)
    assert found.lanes == {lane.lane: (lane.epoch, lane.version) for lane in lanes}
    assert (list(found.has_work), list(found.renewed_naps)) == ([], [nap])
    await asyncio.wait_for(received.logged.wait(), SECONDS)
    assert received.echoes == ["hello"]
    received.logged.clear()
    await log.add(*numbered(1))
    assert sorted((await tick(owner)).has_work) == [0, 1]
    assert (await tick(uuid4())).lanes == {}
    listening.close()
    await store.naps.end({nap})
    await store.close()
