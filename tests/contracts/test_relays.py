"""Several relays of one sink, in one process: they share its lanes, hand them over, and lose them without an error."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from postroad import InvalidSetting, StoreUnavailable
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.base import Store
from postroad.stores.leases import LivenessLock, RelayIdentity, SinkSnapshot
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_leases import MemoryLeases
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import HERE, identity
from tests.logs import Arrivals, Log, MemoryLog, PostgreSQLLog, SQLiteLog, log_fixture, numbered
from tests.services.proxy import Proxy
from tests.services.serving import aborted

LONG = 3600.0


log = log_fixture("memory", "sqlite", "postgresql15")


def relay(store: Store, publisher: Any, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"batch_size": 10, "poll_interval": "1ms", "max_idle_backoff": "5ms", "lease": "3s"}
    return Relay(store, publisher, sink="s", settings=RelaySettings(**(defaults | settings)))


class Team:
    """Relays that run, each with a store of its own, into one broker."""

    def __init__(self, log: Log, **settings: Any) -> None:
        self.log = log
        self.settings = settings
        self.broker = Arrivals()
        self.running: list[tuple[Relay, asyncio.Task[Any]]] = []
        self._watching = log.another_store()

    async def join(self) -> None:
        it = relay(self.log.another_store(), self.broker, **self.settings)
        self.running.append((it, asyncio.create_task(it.run())))

    async def lanes(self) -> list[int]:
        """How many lanes each has that has any."""
        owners = [relay.lanes for relay in await self._watching.leases.relays()]
        return sorted(len(lanes) for lanes in owners if lanes)

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(180):
            while not await reached():
                assert not [task.result() for _, task in self.running if task.done()], "a relay ended"
                await asyncio.sleep(0.01)

    async def until_lanes(self, *expected: int) -> None:
        async def reached() -> bool:
            return await self.lanes() == sorted(expected)

        await self.until(reached)

    async def stop(self, number: int = 0) -> Any:
        it, task = self.running.pop(number)
        it.stop()
        return await asyncio.wait_for(task, 60)

    async def __aenter__(self) -> Self:
        await self._watching.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        while self.running:
            await self.stop()
        await self._watching.close()


async def test_relays_share_the_lanes_and_nothing_comes_twice(log: Log) -> None:
    async with Team(log) as team:
        await team.join()
        await team.until_lanes(4)
        await log.add(*numbered(*range(100)))
        await team.join()
        await team.until_lanes(2, 2)
        await team.join()
        await team.until_lanes(1, 1, 2)
        await log.add(*numbered(*range(100, 200)))
        await team.broker.until(*range(200))
        await team.stop(1)
        await team.until_lanes(2, 2)
        await log.add(*numbered(*range(200, 250)))
        await team.broker.until(*range(250))
    assert sorted(team.broker.numbers) == list(range(250))


async def test_with_one_lane_the_others_stand_by(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Team(log, lanes=1) as team:
        await team.join()
        await team.until_lanes(1)
        await team.join()
        await log.add(*numbered(1))
        await team.broker.until(1)

        async def stands_by() -> bool:
            return "standing by, as one of 2 relays" in caplog.text

        await team.until(stands_by)
        summary = await team.stop(0)
        assert (summary.published, summary.lanes_lost) == (1, 0)
        await log.add(*numbered(2))
        await team.broker.until(2)
        assert (await team.stop(0)).published == 1


async def test_what_another_has_taken_is_lost_in_one_line(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """As after a freeze that was longer than the lease: nothing is overwritten, nothing is raised, and it goes on."""
    async with Team(log, lanes=2) as team:
        await team.join()
        await team.until_lanes(2)
        other = log.another_store()
        await other.open()
        team.broker.hold()
        await log.add(*numbered(*range(20)))
        await asyncio.wait_for(team.broker.asked.wait(), 60)
        await expire(log)
        newcomer = identity("s")
        await other.leases.heartbeat(newcomer, LONG)
        taken = await other.leases.take(newcomer, 1, LONG)
        assert len(taken) == 1
        team.broker.release()

        async def logged() -> bool:
            return "was taken by another relay" in caplog.text

        await team.until(logged)
        assert (await other.leases.inspect(newcomer)).mine == {0: taken[0].epoch}
        settled = await other.settle(taken[0], taken[0].cursor)
        assert settled.cursor == taken[0].cursor, "what the first one published meanwhile was not saved"
        await other.leases.deregister(newcomer)
        await other.close()
        await team.until_lanes(2)
        await team.broker.until(*range(20))
        assert (await team.stop()).lanes_lost == 1
    assert caplog.text.count("was taken by another relay") == 1


async def expire(log: Log) -> None:
    """All leases are over."""
    if isinstance(log, MemoryLog):
        log.store.leases._until = dict.fromkeys(log.store.leases._until, 0.0)
    elif isinstance(log, SQLiteLog):
        with closing(sqlite3.connect(log.path, timeout=60)) as connection, connection:
            connection.execute("update postroad_leases set lease_until = 0")
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute("update postroad.lanes set lease_until = now() - interval '1 s'")


async def test_until_empty_leaves_what_a_living_relay_has(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    async with Team(log, lanes=4) as team:
        await team.join()
        await team.until_lanes(4)
        team.broker.hold()
        await log.add(*numbered(*range(40)))
        mine = MemoryBroker()
        summary = await relay(log.another_store(), mine).run_until_empty()
        assert "lanes to the relays that own them" in caplog.text
        team.broker.release()
        await team.broker.until(*(set(range(40)) - {int(each.payload) for each in mine.messages}))
    arrived = team.broker.numbers + [int(each.payload) for each in mine.messages]
    assert sorted(arrived) == list(range(40))
    assert summary.published == len(mine.messages)


async def test_until_empty_takes_what_a_dead_relay_had(log: Log) -> None:
    await log.add(*numbered(*range(40)))
    await log.store.open()
    await log.store.leases.create("s", HERE, lanes=4, start="oldest")
    dead = identity("s")
    await log.store.leases.heartbeat(dead, 1.0)
    assert len(await log.store.leases.take(dead, 4, 1.0)) == 4
    await log.store.close()
    broker = MemoryBroker()
    assert (await relay(log.another_store(), broker).run_until_empty()).published == 40


# -- in doubt --------------------------------------------------------------------------------------------------------


class Mute(MemoryLeases):
    """Leases of a database that can't be asked for them, on request."""

    mute = False

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        if self.mute:
            raise StoreUnavailable("no route to host")
        return await super().heartbeat(identity, seconds, liveness_lock)


async def test_who_cannot_renew_its_lease_stops_before_the_next_wave(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "postroad.relay")
    log = MemoryLog()
    leases = log.store.leases = Mute(log.store._lanes, log._now, lambda: log.store._end)
    async with Team(log, lanes=1) as team:
        await team.join()
        await log.add(*numbered(1))
        await team.broker.until(1)
        leases.mute = True
        ((it, _),) = team.running
        assert it._ownership is not None
        (owned,) = it._ownership._lanes.values()
        in_doubt, wait = asyncio.Event(), owned.wait_until_decided

        async def noted(stopping: asyncio.Event) -> None:
            in_doubt.set()
            await wait(stopping)

        owned.wait_until_decided = noted  # type: ignore[method-assign]
        await asyncio.sleep(owned.valid_until - time.monotonic())
        await log.add(*numbered(2))
        await asyncio.wait_for(in_doubt.wait(), 60)
        assert team.broker.numbers == [1], "in doubt nothing is sent"
        leases.mute = False
        await team.broker.until(2)
    assert team.broker.numbers == [1, 2]
    assert caplog.text.count("could not be renewed in time; loading it again") == 1


# -- PostgreSQL: the session -----------------------------------------------------------------------------------------


served = log_fixture("postgresql15")


async def sessions(log: PostgreSQLLog) -> list[int]:
    """Those that hold a relay's lock. Retention has another kind, with two numbers."""
    rows = await log.execute(
        "select pid from pg_locks where locktype = 'advisory' and objsubid = 1 and granted order by pid"
    )
    return [row["pid"] for row in rows]


async def test_a_live_relay_whose_session_is_cut_keeps_its_lanes(
    served: PostgreSQLLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def both() -> bool:
        return len(await sessions(served)) == 2

    async with Team(served, lanes=2, lease="15s") as team:
        for _ in range(2):
            await team.join()
        await team.until_lanes(1, 1)
        for round_ in range(1, 4):
            await team.until(both)
            before = await sessions(served)
            await served.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as pid", before)

            async def again(before: list[int] = before) -> bool:
                now = await sessions(served)
                return len(now) == 2 and not set(now) & set(before)

            await team.until(again)
            await served.add(*numbered(*range(round_ * 10, round_ * 10 + 10)))
            await team.broker.until(*range(round_ * 10, round_ * 10 + 10))
        await team.until_lanes(1, 1)
        lost = [(await team.stop()).lanes_lost for _ in range(2)]
    assert lost == [0, 0]
    assert "is dead" not in caplog.text
    assert caplog.text.count("reclaiming 1 lanes") == 6
    assert sorted(team.broker.numbers) == list(range(10, 40))


async def test_with_a_lock_id_one_works_and_the_next_takes_over(
    served: PostgreSQLLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Team(served, lanes=4, lock_id=4711) as team:
        await team.join()
        await team.until_lanes(4)
        await team.join()
        await served.add(*numbered(*range(20)))
        await team.broker.until(*range(20))
        assert len(await sessions(served)) == 1
        await team.stop()
        await team.until_lanes(4)
        await served.add(*numbered(20))
        await team.broker.until(20)
    assert caplog.text.count("acquired the lock 4711; taking all lanes") == 2
    assert sorted(team.broker.numbers) == list(range(21))


async def test_a_lock_that_no_relay_holds_stops_no_relay(
    served: PostgreSQLLog, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be of another sink, of a machine that is gone, or of a session of an administrator."""
    caplog.set_level(logging.INFO)
    other = await served.connect()
    await other.execute("select pg_advisory_lock(4711)")
    async with Team(served, lanes=4, lock_id=4711) as team:
        for _ in range(2):
            await team.join()
        await team.until_lanes(4)
        await served.add(*numbered(*range(20)))
        await team.broker.until(*range(20))
        assert f"the lock 4711 is held by server process {other.get_server_pid()}" in caplog.text
        assert caplog.text.count("no live relay holds the lock 4711") == 1
        await other.close()

        async def taken() -> bool:
            return "acquired the lock 4711; taking all lanes" in caplog.text and await team.lanes() == [4]

        await team.until(taken)
        await served.add(*numbered(20))
        await team.broker.until(20)
    assert sorted(team.broker.numbers) == list(range(21))
    assert "released the lock 4711" in caplog.text


async def test_a_session_that_is_never_opened_stops_no_relay(
    served: PostgreSQLLog, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a firewall swallows what is sent to `direct`."""
    broker = Arrivals()
    swallowed: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, sent: swallowed.append(sent), "127.0.0.1", 0) as firewall:
        port = firewall.sockets[0].getsockname()[1]
        store = PostgreSQLStore(served.url, direct=f"postgresql://postgres@127.0.0.1:{port}/postgres")
        try:
            async with asyncio.timeout(120), relay(store, broker):
                await served.add(*numbered(1))
                await broker.until(1)
        finally:
            await aborted(*swallowed)
    assert "liveness session unavailable: " in caplog.text


async def test_a_session_that_ended_without_a_word_is_opened_anew(
    served: PostgreSQLLog, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a router forgets the connection: the relay does not learn that the server has ended it."""
    caplog.set_level(logging.INFO)
    port = urlsplit(served.url).port
    assert port is not None
    async with Proxy(port) as proxy, Team(served, lanes=2) as team:
        await team.join()
        await team.until_lanes(2)
        (mine,) = await sessions(served)
        store = PostgreSQLStore(served.url, direct=proxy.url(served.url))
        other = relay(store, team.broker, lanes=2)
        team.running.append((other, asyncio.create_task(other.run())))
        await team.until_lanes(1, 1)
        (before,) = set(await sessions(served)) - {mine}
        proxy.go_silent()
        await served.execute("select pg_terminate_backend($1)", before)

        async def again() -> bool:
            now = await sessions(served)
            return len(now) == 2 and before not in now and await team.lanes() == [1, 1]

        await team.until(again)
        await served.add(*numbered(*range(20)))
        await team.broker.until(*range(20))
    assert caplog.text.count("liveness session lost") == 1
    assert "is dead" not in caplog.text


async def test_a_lock_id_needs_a_session(tmp_path: Path) -> None:
    log = SQLiteLog(tmp_path / "log.sqlite")
    with pytest.raises(InvalidSetting, match="lock_id is 1, and this connection has no session"):
        await relay(log.store, MemoryBroker(), lock_id=1).run()


async def test_a_broker_that_is_out_keeps_no_lane_from_being_handed_over(log: Log) -> None:
    async with Team(log, grace="1h") as team:
        await team.join()
        await team.until_lanes(4)
        team.broker.go_out()
        await log.add(*numbered(*range(40)))
        ((it, _),) = team.running

        async def out() -> bool:
            return it._breaker.is_open and all(lane._publisher._publishing is not None for lane in it._lanes)

        await team.until(out)
        await team.join()
        await team.until_lanes(2, 2)
        team.broker.come_back()
        await team.broker.until(*range(40))
    assert sorted(team.broker.numbers) == list(range(40))


async def test_a_lane_is_handed_over_when_its_grace_has_ended(log: Log) -> None:
    async with Team(log, grace="100ms") as team:
        await team.join()
        await team.until_lanes(4)
        team.broker.hold()
        await log.add(*numbered(*range(40)))
        ((it, _),) = team.running

        async def sending() -> bool:
            return all(lane._publisher._publishing is not None for lane in it._lanes)

        await team.until(sending)
        await team.join()
        await team.until_lanes(2, 2)
        team.broker.release()
        await team.broker.until(*range(40))


# -- in an application -----------------------------------------------------------------------------------------------


async def test_a_relay_in_the_background(log: Log) -> None:
    broker = Arrivals()
    async with relay(log.another_store(), broker):
        await log.add(*numbered(1, 2, 3))
        await broker.until(1, 2, 3)
    await log.store.open()
    assert list(await log.store.leases.relays()) == [], "it has left"
    snapshot = await log.store.leases.inspect(identity("s"))
    assert sorted(snapshot.free) == list(range(snapshot.lanes)), "and given up its lanes"
    await log.store.close()


async def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    from postroad.stores.sqlite import SQLiteStore

    with pytest.raises(StoreUnavailable, match="there is no file"):
        async with relay(SQLiteStore(tmp_path / "nowhere"), MemoryBroker()):
            raise AssertionError("it can't begin")


class FailingStore(MemoryStore):
    """A store that has a bug."""

    fails = False

    async def load(self, lease: Any, **how: Any) -> Any:
        if self.fails:
            raise LookupError("a bug")
        return await super().load(lease, **how)


async def test_what_ends_it_is_logged_at_once_and_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    store = FailingStore()
    store.fails = True
    failed = asyncio.Event()

    def watch(record: logging.LogRecord) -> bool:
        if "ended with an error" in record.msg:
            failed.set()
        return True

    caplog.handler.addFilter(watch)
    with pytest.raises(LookupError, match="a bug"):
        async with relay(store, MemoryBroker()):
            await asyncio.wait_for(failed.wait(), 60)
    assert "relay s: ended with an error: LookupError('a bug')" in caplog.text
    with pytest.raises(ZeroDivisionError):
        async with relay(FailingStore(), MemoryBroker()):
            _ = 1 / 0


async def test_a_relay_that_is_cancelled_lets_go_of_its_lanes(log: Log) -> None:
    broker = Arrivals()
    broker.hold()
    await log.add(*numbered(1))
    running = asyncio.create_task(relay(log.another_store(), broker, lanes=1).run())
    await asyncio.wait_for(broker.asked.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    other = MemoryBroker()
    async with asyncio.timeout(120):
        assert (await relay(log.another_store(), other, lease="1h").run_until_empty()).published == 1


async def test_who_is_cancelled_while_it_stops_leaves_nothing_running(log: Log) -> None:
    broker = MemoryBroker()
    broker.hold()
    await log.add(*numbered(1))
    it = relay(log.another_store(), broker, lanes=1, grace="1h")

    async def application() -> None:
        async with it:
            await broker.asked.wait()

    running = asyncio.create_task(application())
    async with asyncio.timeout(120):
        while not it._stopping.is_set():  # noqa: ASYNC110 - it waits for the confirm now
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert it._background is not None
    assert it._background.done()
