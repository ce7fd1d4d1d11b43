"""A connection that is cut at any point of a handler's transaction is an outage: no attempt is counted, one effect.

It is cut after each so many bytes on the wire, and by each way in which a server ends connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from postroad import BrokerUnavailable, Inbox, Received, StoreUnavailable, events
from postroad.brokers.memory import MemoryQueue
from postroad.config import RelaySettings
from postroad.consumer.errors import MessageBusy
from postroad.consumer.outages import Outages
from postroad.listeners import Listeners
from postroad.retry import Backoff
from postroad.stores.connections.errors import is_retryable
from tests.consumers import Numbered, consumed, consumer, execute, put, put_again
from tests.places import EVERY_POSTGRESQL, Place, on_postgresql
from tests.polling import until
from tests.services.postgresql import PostgreSQL
from tests.services.proxy import Proxy


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgreSQL]:
    """One that can be restarted while others run."""
    with PostgreSQL(15, durable=False) as server:
        yield server


LOCKED = 6

CUTS = [*({"sent": size} for size in range(0, 480, 48)), *({"answered": size} for size in range(0, 240, 48))]
"""After so many bytes of what a handler's transaction sends, or is answered: within messages, and between them."""


@pytest.mark.parametrize("name", EVERY_POSTGRESQL)
async def test_a_connection_that_is_cut_anywhere(postgresql15: PostgreSQL, queue: MemoryQueue, name: str) -> None:
    """Every other message was delivered before, so that its beginning is marked."""
    async with Proxy(postgresql15.port) as proxy:
        place = await on_postgresql(name, postgresql15, through=proxy.url)
        for number, after in enumerate(CUTS):
            it = consumer(place, queue, retry=Backoff(max_attempts=1))

            async def cut(after: dict[str, int] = after) -> None:
                proxy.cut_after(**after)

            it.on(Numbered)(_calling(place, iter([True]), cut, asyncio.get_running_loop()))
            (put_again if number % 2 else put)(queue, number)
            summary = await consumed(it)
            proxy.cut_after()  # whatever was not reached
            counted = [row for row in await place.attempts() if row != (0, 0, False)]
            assert (summary.failed, summary.dead, counted) == (0, 0, []), f"cut after {after}"
            assert summary.handled + summary.duplicates == 1, "of a COMMIT without an answer nothing is known"
        assert proxy.cuts >= len(CUTS) // 2, "not all are reached within a transaction"
    assert sorted(await place.effects()) == list(range(len(CUTS)))


def _calling(place: Place, armed: Iterator[bool], cut: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """A handler that has the connection cut at its first call, some statements later, and asks a few."""

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        if next(armed, False):
            await cut()
        await execute(tx, "select 1")
        await place.insert(tx, event.number)
        await execute(tx, "select 2")

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        if next(armed, False):
            asyncio.run_coroutine_threadsafe(cut(), loop).result(30)
        execute(tx, "select 1")
        place.insert(tx, event.number)
        execute(tx, "select 2")

    return asynchronous if place.is_async else sync


TERMINATE = (
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)


@pytest.mark.parametrize(
    ("way", "at"),
    [("terminate", "first"), ("terminate", "middle"), ("terminate", "last"), ("restart", "middle"), ("crash", "last")],
)
@pytest.mark.parametrize("name", EVERY_POSTGRESQL)
async def test_a_server_that_ends_connections_while_a_handler_runs(
    own_server: PostgreSQL, queue: MemoryQueue, name: str, way: str, at: str
) -> None:
    place = await on_postgresql(name, own_server)
    loop, armed = asyncio.get_running_loop(), iter([True])

    async def end() -> None:
        if way == "terminate":
            await place.rows(TERMINATE)
        else:
            await asyncio.to_thread(own_server.restart, "fast" if way == "restart" else "immediate")

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        first = next(armed, False)
        for point in ("first", "middle", "last"):
            if first and point == at:
                await end()
            if point != "last":
                await (place.insert(tx, event.number) if point == "first" else execute(tx, "select 1"))

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        first = next(armed, False)
        for point in ("first", "middle", "last"):
            if first and point == at:
                asyncio.run_coroutine_threadsafe(end(), loop).result(60)
            if point != "last":
                place.insert(tx, event.number) if point == "first" else execute(tx, "select 1")

    it = consumer(place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(asynchronous if place.is_async else sync)
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (1, 0, 0)
    assert (await place.effects(), await place.attempts()) == ([1], [])


async def test_a_handler_that_hides_the_outage_has_not_failed(own_server: PostgreSQL, queue: MemoryQueue) -> None:
    """Its connection tells."""
    place = await on_postgresql("asyncpg", own_server)
    it, armed = consumer(place, queue, retry=Backoff(max_attempts=1)), iter([True])

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        if next(armed, False):
            await place.rows(TERMINATE)
        try:
            await place.insert(tx, event.number)
        except Exception:
            raise LookupError("something else") from None

    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, await place.effects()) == (1, 0, [1])


# -- until the queue is empty: nothing is waited for without end ------------------------------------------------------

SOON = RelaySettings(until_empty_timeout="300ms")
LATE = RelaySettings(until_empty_timeout="10m")


@pytest.mark.parametrize("name", EVERY_POSTGRESQL)
async def test_a_database_that_stays_out_ends_it(own_server: PostgreSQL, queue: MemoryQueue, name: str) -> None:
    """Also where a connection is made only when it is first used."""
    place = await on_postgresql(name, own_server)

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await asyncio.to_thread(own_server.stop, "immediate")

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        own_server.stop("immediate")

    it = consumer(place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(asynchronous if place.is_async else sync)
    put(queue, 1)
    try:
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match=r"waiting 0.3 s \(until_empty_timeout\) for the database: "):
                await it.run_until_empty(relay=SOON)
    finally:
        await asyncio.to_thread(own_server.start)
    assert len(queue.queue) == 1, "it was not acked"
    assert (queue.dead, await place.attempts()) == ([], [])


class Out(MemoryQueue):
    """A broker that can't be opened at some times."""

    def __init__(self, *out_at: int) -> None:
        super().__init__()
        self._out_at, self.opened = out_at, 0

    async def open(self) -> None:
        self.opened += 1
        if self.opened in self._out_at:
            raise BrokerUnavailable("no such queue")
        await super().open()


@pytest.mark.parametrize("out_at", [range(1, 10_000), range(2, 10_000)], ids=["at the start", "later"])
async def test_a_broker_that_stays_out_ends_it(one_place: Place, out_at: range) -> None:
    queue = Out(*out_at)
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler(lambda event, message: queue.drop()))
    put(queue, 1)
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailable, match=r"\(until_empty_timeout\) for the broker: no such queue"):
            await it.run_until_empty(relay=SOON)


async def test_a_broker_that_comes_back_is_waited_for(one_place: Place) -> None:
    queue = Out(1, 2, 4)
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler(lambda event, message: queue.drop() if queue.opened == 3 else None))
    put(queue, 1)
    async with asyncio.timeout(60):
        summary = await it.run_until_empty(relay=LATE)
    assert (queue.opened, summary.handled, summary.duplicates) == (5, 1, 1)


async def test_dead_letters_that_stay_out_end_it(one_place: Place, queue: MemoryQueue) -> None:
    async def out(*_: Any) -> None:
        raise BrokerUnavailable("the dead-letter queue is full")

    queue.dead_letter = out  # type: ignore[method-assign, assignment]
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    queue.put(b"x")
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailable, match="for the dead letters: the dead-letter queue is full"):
            await it.run_until_empty(relay=SOON)
    assert len(queue.queue) == 1, "it was not acked"


async def test_dead_letters_are_available_when_one_was_published(
    one_place: Place, queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that waits for its row in the database says nothing about the dead-letter queue any more."""
    ended: list[str] = []
    monkeypatch.setattr(Outages, "end", lambda self, what, **_: ended.append(what))
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    record, locked = it._attempts.record_dead, iter([True, True])

    async def record_dead(*values: Any) -> None:
        if next(locked, False):
            raise MessageBusy("another transaction has locked the row")
        await record(*values)

    monkeypatch.setattr(it._attempts, "record_dead", record_dead)
    queue.put(b"x")
    async with asyncio.timeout(60):
        summary = await it.run_until_empty(relay=SOON)
    assert (summary.dead, len(queue.dead), ended.count("dead letters")) == (1, 1, 1)


async def test_outages_that_end_in_between_are_not_added_up() -> None:
    clock, ends = [0.0], []
    outages = Outages(
        10.0, lambda: ends.append(clock[0]), consumer="stock", listeners=Listeners([]), now=lambda: clock[0]
    )
    for moment in (0.0, 9.0):
        clock[0] = moment
        assert outages.begin("database", "gone", 5.0) == min(5.0, 10.0 - moment)
    outages.end("database")
    clock[0] = 12.0
    assert outages.begin("database", "gone", 5.0) == 5.0
    assert outages.begin("broker", "gone", 5.0) == 5.0
    assert outages.given_up is None
    clock[0] = 22.0
    outages.end("broker")
    assert outages.begin("database", "gone", 5.0) == 0.0
    assert outages.begin("database", "gone", 5.0) == 0.0
    assert (ends, str(outages.given_up)) == (
        [22.0],
        "gave up after waiting 10 s (until_empty_timeout) for the database: gone",
    )


def test_every_error_of_a_driver_that_means_a_lost_connection() -> None:
    import asyncpg
    import psycopg
    import psycopg_pool
    from asyncpg.exceptions import (
        AdminShutdownError,
        CannotConnectNowError,
        ConnectionDoesNotExistError,
        CrashShutdownError,
        IdleInTransactionSessionTimeoutError,
        InternalClientError,
        ProtocolError,
    )
    from sqlalchemy.exc import DBAPIError, PendingRollbackError

    lost = [
        InternalClientError("got result for unknown protocol state 3"),
        ProtocolError("unexpected message"),
        AdminShutdownError(""),
        CrashShutdownError(""),
        CannotConnectNowError(""),
        ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        IdleInTransactionSessionTimeoutError(""),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InterfaceError("cannot perform operation: connection is closed"),
        psycopg.OperationalError("the connection is closed"),
        psycopg.errors.AdminShutdown(""),
        psycopg_pool.PoolTimeout("couldn't get a connection after 30.00 sec"),
        DBAPIError("select 1", {}, Exception("whatever"), connection_invalidated=True),
        PendingRollbackError("Can't reconnect until invalid transaction is rolled back.", code="8s2b"),
    ]
    assert [error for error in lost if not is_retryable(error)] == []
    others = [
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.UniqueViolationError(""),
        psycopg.errors.UniqueViolation(""),
        psycopg.errors.QueryCanceled(""),
        DBAPIError("select 1", {}, Exception("whatever")),
        ConnectionRefusedError("another service of the handler's"),
        LookupError("no such order"),
    ]
    assert [error for error in others if is_retryable(error)] == []


async def test_locked_messages_take_half_of_the_places(postgresql15: PostgreSQL, queue: MemoryQueue) -> None:
    """As after a process was frozen in a transaction: its messages wait for their inbox rows, and others go on."""
    place, busy, waiting = await on_postgresql("asyncpg", postgresql15), Counter[str](), [0]

    def all_again(times: int) -> bool:
        return len(busy) == LOCKED and min(busy.values()) >= times

    class Listener:
        def on_event(self, event: object) -> None:
            if isinstance(event, events.MessageBusy):
                busy[event.id] += 1
            if all_again(2) and it._run is not None:  # from now on, each of them waits for a place
                waiting.append(sum(items[0].locked for items in it._run.dispatcher.tasks.values()))

    it = consumer(place, queue, inbox=Inbox(lock_timeout="100ms"), concurrency=4, listeners=[Listener()])
    it.on(Numbered)(place.handler())
    put(queue, *range(LOCKED))
    locked = [(each.headers["ce-id"], "numbered", "/tests") for each in queue.queue]
    async with place.begin() as tx:  # the first to use a name makes others wait for its transaction
        await Inbox().first_time(tx, "another", consumer="stock")
    async with place.begin() as tx:
        await Inbox().first_times(tx, locked, consumer="stock")
        running = asyncio.create_task(it.run())
        await until(lambda: all_again(4))
        put(queue, LOCKED)
        while await place.effects() != [LOCKED]:  # noqa: ASYNC110 - it is asked of the database
            await asyncio.sleep(0.01)
    await until(lambda: it._run is not None and it._run.summary.duplicates == LOCKED)
    it.stop()
    await running
    assert 0 < max(waiting) <= 2
