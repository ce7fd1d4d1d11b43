"""A consumer whose handlers fail: what counts as an attempt, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from postroad import Consumer, Inbox, Received
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.delivery import MOST_LOSSES
from postroad.message import new_id
from postroad.retry import Backoff
from tests.consumers import AT_ONCE, Numbered, consumed, consumer, executing, put, put_again, soon
from tests.places import Place

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
    assert error.startswith("TransactionAborted: the handler returned, but its transaction can't be committed")


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
                await asyncio.sleep(0)  # it is notified a turn later

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, heartbeat=None)
    it.on(Numbered)(pg_place.handler())
    put(queue, 1)
    await consumed(it)
    words = [query.split()[0] for query in asked]
    assert (set(words[:-2]), words[-2:]) == ({"select"}, ["select", "insert"]), "at the start, the inbox, the effect"


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


# -- what is not the handler's fault ---------------------------------------------------------------------------------

GONE = "select pg_terminate_backend(pg_backend_pid())"
DEADLOCK = "do $$ begin raise exception 'a deadlock' using errcode = '40P01'; end $$"
CONFLICT = "do $$ begin raise exception 'a conflict' using errcode = '40001'; end $$"


@pytest.mark.parametrize("statements", [(GONE, GONE), (DEADLOCK, CONFLICT)])
async def test_a_transaction_that_is_lost_counts_no_attempt(
    each_pg_place: Place, queue: MemoryQueue, statements: tuple[str, ...]
) -> None:
    it = consumer(each_pg_place, queue)
    it.on(Numbered)(executing(each_pg_place, *statements))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, await each_pg_place.attempts()) == (1, 0, [])
    assert await each_pg_place.effects() == [1]


async def test_a_connection_that_is_lost_in_the_commit_counts_no_attempt(
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
    """A COMMIT that is done and not answered is not known of."""
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
    outages = iter([*[False] * 6, True, True, True, True])  # the start and the mark, and then the handler's own

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


async def test_nor_is_another_transaction_that_processes_it(pg_place: Place, queue: MemoryQueue) -> None:
    it = consumer(pg_place, queue, inbox=Inbox(lock_timeout="1ms"), retry=Backoff(max_attempts=1))
    it.on(Numbered)(pg_place.handler())
    id, waits = new_id(), asyncio.Event()
    put_again(queue, 1, id=id)
    one, tries = it._transaction.handle, 0

    async def counting(*arguments: Any, **options: Any) -> list[bool]:
        nonlocal tries
        tries += 1
        if tries == 3:
            waits.set()
        return await one(*arguments, **options)

    it._transaction.handle = counting  # type: ignore[method-assign]
    await pg_place.rows("select postroad.open_inbox('stock')")  # else who comes second waits for the name
    async with pg_place.begin() as tx:
        assert await Inbox().first_time(tx, id, consumer="stock", source="/tests")
        running = asyncio.create_task(consumed(it))
        await soon(waits)
    summary = await running
    assert (summary.duplicates, summary.failed, summary.dead) == (1, 0, 0)
    assert await pg_place.attempts() == [(0, 0, False)]


async def test_a_locked_row_stops_no_other_attempt(pg_place: Place, queue: MemoryQueue) -> None:
    """Of a message that another process handles for the second time."""
    it = consumer(pg_place, queue)
    other_is_done = asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await pg_place.insert(tx, event.number)
        if event.number == 2:
            other_is_done.set()

    put_again(queue, 1, 2)
    locked = f"/tests {queue.queue[0].message_id}"
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

    failed, asked = it._attempts.count_failure, 0

    async def counting(*arguments: Any) -> int | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            waits.set()
        return await failed(*arguments)

    it._attempts.count_failure = counting  # type: ignore[method-assign, assignment]
    put(queue, 1)
    locked = f"/tests {queue.queue[0].message_id}"
    await pg_place.rows(f"insert into postroad.inbox_attempts (consumer, id, type) values ('stock', '{locked}', '')")
    async with pg_place.begin() as tx:
        await tx.execute("update postroad.inbox_attempts set changed_at = now()")
        running = asyncio.create_task(consumed(it))
        await soon(waits)
    summary = await running
    assert (tried, summary.failed, summary.dead) == (1, 1, 1)
    assert await pg_place.attempts() == [(1, 0, True)]
