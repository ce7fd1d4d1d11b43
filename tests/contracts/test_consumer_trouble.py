"""A consumer in trouble: what counts as an attempt and what does not, and what is remembered while something is out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from postroad import BrokerUnavailable, Consumer, Inbox, Received
from postroad.brokers.memory import MemoryQueue
from postroad.consumer import run as running_module
from postroad.consumer.transactions import StoreOut
from postroad.consumer.treatment import MOST_LOSSES
from postroad.message import new_id
from postroad.retry import Backoff
from tests.contracts.test_consumer import AT_ONCE, Numbered, consumed, consumer, put
from tests.places import ON_POSTGRESQL, ON_SQLITE, Place, on_postgresql, on_sqlite
from tests.services.postgresql import PostgreSQL


@pytest.fixture(params=[*ON_POSTGRESQL, *ON_SQLITE])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in ON_SQLITE:
        return on_sqlite(request.param, tmp_path / "shop.sqlite")
    return await on_postgresql(request.param, request.getfixturevalue("postgresql15"))


@pytest.fixture(params=ON_POSTGRESQL)
async def each_pg_place(request: pytest.FixtureRequest, postgresql15: PostgreSQL) -> Place:
    return await on_postgresql(request.param, postgresql15)


@pytest.fixture(params=ON_SQLITE)
def each_sqlite_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return on_sqlite(request.param, tmp_path / "shop.sqlite")


@pytest.fixture
def one_place(tmp_path: Path) -> Place:
    """For what has nothing to do with the transaction."""
    return on_sqlite("aiosqlite", tmp_path / "shop.sqlite")


@pytest.fixture
async def pg_place(postgresql15: PostgreSQL) -> Place:
    """For what SQLite, with its one writer, can't show."""
    return await on_postgresql("asyncpg", postgresql15)


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()


def put_again(queue: MemoryQueue, *numbers: int, **fields: Any) -> None:
    """As if a consumer had had them before."""
    put(queue, *numbers, **fields)
    again = [msgspec.structs.replace(each, redelivered=True) for each in queue.queue]
    queue.queue.clear()
    queue.queue.extend(again)


async def until_parked(it: Consumer[Any], session: object = None) -> object:
    """Until a message waits for its next attempt, of another session than this; gives its session."""
    async with asyncio.timeout(20):
        while True:
            for work in it._run._parked if it._run else ():
                if work.delivery.session is not session:
                    return work.delivery.session
            await asyncio.sleep(0)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()


def executing(place: Place, *statements: str, catching: bool = False) -> Any:
    """A handler that writes its effect and then, at its first attempt for the first statement and so on, executes."""
    left = list(statements)

    def execute(tx: Any, sql: str) -> Any:
        return tx.execute(text(sql) if isinstance(tx, Session | AsyncSession) else sql)

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await place.insert(tx, event.number)
        if left:
            with suppress(*[Exception] * catching):
                await execute(tx, left.pop(0))

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        place.insert(tx, event.number)
        if left:
            with suppress(*[Exception] * catching):
                execute(tx, left.pop(0))

    return asynchronous if place.is_async else sync


# -- a transaction that only looks committed -------------------------------------------------------------------------


async def test_a_handler_that_catches_an_sql_error_has_failed(each_pg_place: Place, queue: MemoryQueue) -> None:
    """PostgreSQL answers its COMMIT with a roll-back: without a second attempt the message would be lost."""
    it = consumer(each_pg_place, queue)
    it.on(Numbered)(executing(each_pg_place, "select nothing from nowhere", catching=True))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed) == (1, 1)
    assert await each_pg_place.effects() == [1]
    (error,) = await each_pg_place.errors()
    assert error.startswith("Spoilt: the handler returned, but its transaction can't be committed")


async def test_a_handler_that_ends_its_transaction_has_failed(place: Place, queue: MemoryQueue) -> None:
    it = consumer(place, queue)
    it.on(Numbered)(executing(place, "rollback"))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed) == (1, 1)
    assert await place.effects() == [1]


async def test_a_batch_that_catches_an_sql_error_has_failed(each_pg_place: Place, queue: MemoryQueue) -> None:
    single = executing(each_pg_place, "select nothing from nowhere", catching=True)

    async def asynchronous(batch: Any, tx: Any) -> None:
        for event, _ in batch[:-1]:
            await each_pg_place.insert(tx, event.number)
        await single(batch[-1][0], tx, batch[-1][1])

    def sync(batch: Any, tx: Any) -> None:
        for event, _ in batch[:-1]:
            each_pg_place.insert(tx, event.number)
        single(batch[-1][0], tx, batch[-1][1])

    it = consumer(each_pg_place, queue)
    it.on_batch(Numbered)(asynchronous if each_pg_place.is_async else sync)
    put(queue, 1, 2)
    assert (await consumed(it)).handled == 2
    assert sorted(await each_pg_place.effects()) == [1, 2]


async def test_nothing_is_asked_for_that(pg_place: Place, queue: MemoryQueue) -> None:
    """Not even on asyncpg, which does not tell."""
    asked: list[str] = []

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pg_place.begin() as tx:
            with tx.query_logger(lambda query: asked.append(query.query)):
                yield tx
                await asyncio.sleep(0)  # it is told a turn later

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin)
    it.on(Numbered)(pg_place.handler())
    put(queue, 1)
    await consumed(it)
    assert [query.split()[0] for query in asked] == ["select", "with", "insert"], "at the start, the inbox, the effect"


async def test_begin_must_not_swallow_errors(each_sqlite_place: Place, queue: MemoryQueue) -> None:
    """A failed handler would look like a duplicate."""
    place = each_sqlite_place

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with suppress(LookupError):
            async with place.begin() as tx:
                yield tx

    @contextmanager
    def begin_sync() -> Iterator[Any]:
        with suppress(LookupError), place.begin() as tx:
            yield tx

    def fail(event: Numbered, message: Received) -> None:
        raise LookupError

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin if place.is_async else begin_sync, retry=AT_ONCE)
    it.on(Numbered)(place.handler(fail))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.duplicates, summary.failed, summary.dead) == (0, 3, 1)
    assert "swallows the error" in queue.dead[0][1]["postroad-reason"]


# -- what is nobody's fault ------------------------------------------------------------------------------------------

GONE = "select pg_terminate_backend(pg_backend_pid())"
DEADLOCK = "do $$ begin raise exception 'a deadlock' using errcode = '40P01'; end $$"
CONFLICT = "do $$ begin raise exception 'a conflict' using errcode = '40001'; end $$"


@pytest.mark.parametrize("statements", [(GONE, GONE), (DEADLOCK, CONFLICT)])
async def test_a_transaction_that_is_lost_counts_for_nobody(
    each_pg_place: Place, queue: MemoryQueue, statements: tuple[str, ...]
) -> None:
    it = consumer(each_pg_place, queue)
    it.on(Numbered)(executing(each_pg_place, *statements))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, await each_pg_place.attempts()) == (1, 0, [])
    assert await each_pg_place.effects() == [1]


async def test_a_connection_that_is_lost_in_the_commit_counts_for_nobody(
    each_pg_place: Place, queue: MemoryQueue
) -> None:
    await each_pg_place.rows("drop sequence if exists tries")
    await each_pg_place.rows("create sequence tries")
    await each_pg_place.rows(
        "create or replace function break() returns trigger language plpgsql as $$ begin "
        "if nextval('tries') < 3 then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end $$"
    )
    await each_pg_place.rows(
        "create constraint trigger break after insert on effects deferrable initially deferred "
        "for each row execute function break()"
    )
    it = consumer(each_pg_place, queue)
    it.on(Numbered)(each_pg_place.handler())
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, await each_pg_place.attempts()) == (1, 0, [])


async def test_a_handler_that_always_breaks_its_connection_ends(pg_place: Place, queue: MemoryQueue) -> None:
    it = consumer(pg_place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(executing(pg_place, *[GONE] * (MOST_LOSSES + 1)))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (0, 1, 1)


async def test_what_was_processed_after_all_is_not_counted(one_place: Place, queue: MemoryQueue) -> None:
    """Of a COMMIT that is done and not answered nobody knows."""
    unheard = iter([True])

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with one_place.begin() as tx:
            yield tx
        if await one_place.effects() != [] and next(unheard, False):
            raise TimeoutError("no answer")

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, retry=Backoff(max_attempts=1))
    it.on(Numbered)(one_place.handler())
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.duplicates, summary.failed, summary.dead) == (1, 0, 0)
    assert (await one_place.effects(), await one_place.attempts()) == ([1], [])


async def test_an_outage_is_not_the_death_of_a_message_that_was_delivered_before(
    one_place: Place, queue: MemoryQueue
) -> None:
    outages = iter([False, False, True, True, True, True])  # the start and the mark, and then the handler's own

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        if next(outages, False):
            raise ConnectionRefusedError("no database")
        async with one_place.begin() as tx:
            yield tx

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, retry=AT_ONCE)
    it.on(Numbered)(one_place.handler())
    put_again(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.dead, await one_place.attempts()) == (1, 0, [(0, 0, False)])


async def test_nor_is_another_who_is_about_to_process_it(pg_place: Place, queue: MemoryQueue) -> None:
    it = consumer(pg_place, queue, inbox=Inbox(lock_timeout="1ms"), retry=Backoff(max_attempts=1))
    it.on(Numbered)(pg_place.handler())
    id, waits = new_id(), asyncio.Event()
    put_again(queue, 1, id=id)
    one, tries = it._handling.one, 0

    async def counting(*arguments: Any, **options: Any) -> bool:
        nonlocal tries
        tries += 1
        if tries == 3:
            waits.set()
        return await one(*arguments, **options)

    it._handling.one = counting  # type: ignore[method-assign]
    async with pg_place.begin() as tx:
        assert await Inbox().first_time(tx, id, consumer="stock")
        running = asyncio.create_task(consumed(it))
        await soon(waits)
    summary = await running
    assert (summary.duplicates, summary.failed, summary.dead) == (1, 0, 0)
    assert await pg_place.attempts() == [(0, 0, False)]


async def test_a_locked_row_keeps_nobody_else_from_beginning(pg_place: Place, queue: MemoryQueue) -> None:
    """Of a message that another process handles for the second time."""
    it = consumer(pg_place, queue)
    other_is_done = asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await pg_place.insert(tx, event.number)
        if event.number == 2:
            other_is_done.set()

    put_again(queue, 1, 2)
    locked = queue.queue[0].message_id
    await pg_place.rows(f"insert into postroad.inbox_attempts (consumer, id, type) values ('stock', '{locked}', '')")
    async with pg_place.begin() as tx:
        await tx.execute("update postroad.inbox_attempts set changed_at = now()")
        running = asyncio.create_task(consumed(it))
        await soon(other_is_done)
    assert (await running).handled == 2


async def test_a_failure_that_can_t_be_counted_now_is_counted_later(pg_place: Place, queue: MemoryQueue) -> None:
    """And the handler is not called again for that."""
    it = consumer(pg_place, queue, retry=Backoff(max_attempts=1))
    tried, waits = 0, asyncio.Event()

    @it.on(Numbered)
    async def fail(event: Numbered, tx: Any, message: Received) -> None:
        nonlocal tried
        tried += 1
        raise LookupError("no")

    failed, asked = it._attempts.failed, 0

    async def counting(*arguments: Any) -> int | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            waits.set()
        return await failed(*arguments)

    it._attempts.failed = counting  # type: ignore[method-assign, assignment]
    put(queue, 1)
    locked = queue.queue[0].message_id
    await pg_place.rows(f"insert into postroad.inbox_attempts (consumer, id, type) values ('stock', '{locked}', '')")
    async with pg_place.begin() as tx:
        await tx.execute("update postroad.inbox_attempts set changed_at = now()")
        running = asyncio.create_task(consumed(it))
        await soon(waits)
    summary = await running
    assert (tried, summary.failed, summary.dead) == (1, 1, 1)
    assert await pg_place.attempts() == [(1, 0, True)]


# -- what is remembered ----------------------------------------------------------------------------------------------


async def test_a_message_is_buried_once_while_the_database_is_out(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    dead, asked = it._attempts.dead, 0

    async def out_twice(*arguments: Any) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise StoreOut("no database")
        await dead(*arguments)

    it._attempts.dead = out_twice  # type: ignore[method-assign, assignment]
    queue.put(b"x")
    assert (await consumed(it)).dead == 1
    assert (asked, len(queue.dead), await one_place.attempts()) == (3, 1, [(0, 0, True)])


async def test_the_handler_is_not_called_again_while_the_dead_letters_are_out(
    one_place: Place, queue: MemoryQueue
) -> None:
    bury, tried = queue.bury, []

    async def out_twice(*arguments: Any) -> None:
        tried.append("bury")
        if tried.count("bury") < 3:
            raise BrokerUnavailable("no such queue")
        await bury(*arguments)

    def fail(event: Numbered, message: Received) -> None:
        if event.number == 1:
            tried.append("handle")
            raise LookupError("no")

    queue.bury = out_twice  # type: ignore[method-assign, assignment]
    it = consumer(one_place, queue, concurrency=1)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 1, 2)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (1, 3, 1)
    assert tried == ["handle"] * 3 + ["bury"] * 3


async def test_the_reason_survives_a_restart(one_place: Place, queue: MemoryQueue) -> None:
    """A consumer ends before it could bury; the next one has never seen the handler fail."""
    bury, tried = queue.bury, asyncio.Event()

    async def out(*_: Any) -> None:
        tried.set()
        raise BrokerUnavailable("no such queue")

    def fail(event: Numbered, message: Received) -> None:
        raise LookupError("no")

    queue.bury = out  # type: ignore[method-assign, assignment]
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 1)
    running = asyncio.create_task(it.run())
    await soon(tried)
    it.stop()
    await running
    queue.bury = bury  # type: ignore[method-assign]
    summary = await consumed(it)
    assert (summary.failed, summary.dead) == (0, 1)
    assert queue.dead[0][1]["postroad-reason"] == "LookupError: no"


async def test_a_dead_letter_that_is_sent_back_and_handled_is_dead_no_more(
    each_sqlite_place: Place, queue: MemoryQueue
) -> None:
    place, mended = each_sqlite_place, False

    def fail(event: Numbered, message: Received) -> None:
        if not mended:
            raise LookupError

    it = consumer(place, queue)
    it.on(Numbered)(place.handler(fail))
    put(queue, 1)
    await consumed(it)
    ((letter, notes),) = queue.dead
    mended = True
    queue.put(letter.body, headers={**letter.headers, **notes}, message_id=letter.message_id)
    assert (await consumed(it)).handled == 1
    assert await place.attempts() == [(0, 0, False)]


# -- handlers that are cancelled, consumers that are stopped ---------------------------------------------------------


async def test_a_handler_that_raises_cancelled_error_has_failed(place: Place, queue: MemoryQueue) -> None:
    tried: list[int] = []

    def cancel_first(event: Numbered, message: Received) -> None:
        tried.append(event.number)
        if len(tried) == 1:
            raise asyncio.CancelledError

    it = consumer(place, queue)
    it.on(Numbered)(place.handler(cancel_first))
    put(queue, 1, 2, key="one")
    summary = await consumed(it)
    assert (summary.handled, summary.failed, tried) == (2, 1, [1, 1, 2])


async def test_a_batch_that_raises_cancelled_error_has_failed(each_sqlite_place: Place, queue: MemoryQueue) -> None:
    sizes: list[int] = []

    def cancel_many(batch: Any) -> None:
        sizes.append(len(batch))
        if len(batch) > 1:
            raise asyncio.CancelledError

    it = consumer(each_sqlite_place, queue)
    it.on_batch(Numbered)(each_sqlite_place.batch_handler(cancel_many))
    put(queue, 1, 2, key="one")
    assert ((await consumed(it)).handled, sizes) == (2, [2, 1, 1])


async def test_what_breaks_in_the_consumer_is_tried_again(
    one_place: Place, queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running_module, "LONGEST_PAUSE", 0.001)
    ack, broken = queue.ack, iter([True])

    def break_once(deliveries: Any) -> None:
        if next(broken, False):
            raise RuntimeError("no ack")
        ack(deliveries)

    queue.ack = break_once  # type: ignore[method-assign]
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    put(queue, 1, 2, key="one")
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates) == (2, 1)
    assert "no ack; trying again in" in caplog.text


async def test_a_stop_is_no_death(pg_place: Place, queue: MemoryQueue) -> None:
    it = consumer(pg_place, queue, grace="0s")
    begun = asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        begun.set()
        await asyncio.Event().wait()

    put_again(queue, 1)
    for _ in range(3):
        begun.clear()
        running = asyncio.create_task(it.run())
        await soon(begun)
        it.stop()
        await running
    rows = await pg_place.rows("select attempts, crashes, running from postroad.inbox_attempts")
    assert rows == [(0, 0, False)]


async def test_nor_is_a_stop_while_another_is_about_to_process_it(pg_place: Place, queue: MemoryQueue) -> None:
    """The message has its mark, and waits."""
    it = consumer(pg_place, queue, inbox=Inbox(lock_timeout="1ms"))
    it.on(Numbered)(pg_place.handler())
    id = new_id()
    put_again(queue, 1, id=id)
    async with pg_place.begin() as tx:
        assert await Inbox().first_time(tx, id, consumer="stock")
        running = asyncio.create_task(it.run())
        await until_parked(it)
        it.stop()
        await running
    rows = await pg_place.rows("select attempts, crashes, running from postroad.inbox_attempts")
    assert rows == [(0, 0, False)]


async def test_nor_is_a_session_that_ends_meanwhile(pg_place: Place, queue: MemoryQueue) -> None:
    """The message comes again, and finds the mark that this very consumer has made."""
    it = consumer(pg_place, queue, inbox=Inbox(lock_timeout="1ms"), retry=Backoff(max_attempts=1))
    it.on(Numbered)(pg_place.handler())
    id = new_id()
    put_again(queue, 1, id=id)
    with suppress(LookupError):
        async with pg_place.begin() as tx:
            assert await Inbox().first_time(tx, id, consumer="stock")
            running = asyncio.create_task(consumed(it))
            session = await until_parked(it)
            queue.drop()
            await until_parked(it, session)
            raise LookupError
    assert (await running).handled == 1
    assert await pg_place.attempts() == [(0, 0, False)]


async def test_nothing_that_was_delivered_before_begins_after_a_stop(pg_place: Place, queue: MemoryQueue) -> None:
    it = consumer(pg_place, queue)
    begun, gate = asyncio.Event(), asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        begun.set()
        await gate.wait()

    put_again(queue, 1, 2)
    for delivery in queue.queue:  # each of them ended a process, so they are tried one after the other
        values = f"('stock', '{delivery.message_id}', '', true)"
        await pg_place.rows(f"insert into postroad.inbox_attempts (consumer, id, type, running) values {values}")
    running = asyncio.create_task(it.run())
    await soon(begun)
    it.stop()
    await asyncio.sleep(0)
    gate.set()
    assert (await running).handled == 1
    rows = await pg_place.rows("select crashes from postroad.inbox_attempts order by crashes")
    assert rows == [(0,), (1,)], "the other was not begun"


async def test_until_empty_can_be_stopped(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, retry=Backoff(first=timedelta(minutes=5)))

    @it.on(Numbered)
    async def fail(event: Numbered, tx: Any, message: Received) -> None:
        raise LookupError

    put(queue, 1)
    running = asyncio.create_task(consumed(it))
    await until_parked(it)
    it.stop()
    assert (await running).handled == 0
    assert len(queue.queue) == 1


async def test_one_by_one_is_as_many_at_once_as_there_may_be(pg_place: Place, queue: MemoryQueue) -> None:
    under_way, most = 0, 0

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            async with pg_place.begin() as tx:
                yield tx
        finally:
            under_way -= 1

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, concurrency=3)

    @it.on_batch(Numbered)
    async def handle(batch: Any, tx: Any) -> None:
        if len(batch) > 1:
            raise LookupError

    put(queue, *range(12))
    assert (await consumed(it)).handled == 12
    assert most == 3


# -- context ---------------------------------------------------------------------------------------------------------

mine: ContextVar[int] = ContextVar("mine", default=0)


async def test_what_a_handler_sets_in_its_context_is_not_for_the_next_message(
    each_sqlite_place: Place, queue: MemoryQueue
) -> None:
    found: list[int] = []

    def fail_first(event: Numbered, message: Received) -> None:
        found.append(mine.get())
        mine.set(event.number)
        if message.attempt == 1:
            raise LookupError

    it = consumer(each_sqlite_place, queue, concurrency=1)
    it.on(Numbered)(each_sqlite_place.handler(fail_first))
    put(queue, 1, 2, 3)
    mine.set(7)
    assert (await consumed(it)).handled == 3
    assert found == [7] * 6
