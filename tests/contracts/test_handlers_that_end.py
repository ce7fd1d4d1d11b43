"""Handlers that commit, roll back or close by themselves have failed, on every kind of connection.

What they committed can't be taken back; but their message doesn't count as processed, and ends among the dead letters.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from postroad import BrokerUnavailable, Consumer, Received
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.errors import InboxUnavailable
from postroad.retry import Backoff
from postroad.stores.dialects import POSTGRESQL
from postroad.testing import deliver
from tests.consumers import Numbered, consumed, consumer, execute, put, put_again
from tests.destinations import stored
from tests.logs import PostgreSQLLog, log_fixture
from tests.places import Place

Work = Callable[[Any], Any]


def commit(tx: Any) -> Any:
    """The way of each: Django and asyncpg have none in a transaction that they have begun."""
    return execute(tx, "commit") if has_no_way(tx) else tx.commit()


def rollback(tx: Any) -> Any:
    return execute(tx, "rollback") if has_no_way(tx) else tx.rollback()


def commit_by_sql(tx: Any) -> Any:
    return execute(tx, "commit")


def close(tx: Any) -> Any:
    return tx.close()


def has_no_way(tx: Any) -> bool:
    return hasattr(tx, "vendor") or type(tx).__module__.startswith("asyncpg")


def ending(place: Place, end: Work, *, goes_on: bool = True, catching: bool = False) -> Any:
    """A handler that writes, ends its transaction, and goes on."""

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await place.insert(tx, event.number)
        if inspect.isawaitable(ended := end(tx)):
            await ended
        if goes_on:
            with suppress(*[Exception] * catching):
                await place.insert(tx, event.number + 100)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        place.insert(tx, event.number)
        end(tx)
        if goes_on:
            with suppress(*[Exception] * catching):
                place.insert(tx, event.number + 100)

    return asynchronous if place.is_async else sync


@pytest.mark.parametrize("catching", [False, True], ids=["", "catching"])
@pytest.mark.parametrize("end", [commit, rollback, commit_by_sql, close])
async def test_a_handler_that_ends_its_transaction_and_goes_on_has_failed(
    every_place: Place, queue: MemoryQueue, end: Work, catching: bool
) -> None:
    it = consumer(every_place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(ending(every_place, end, catching=catching))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (0, 0, 1, 1)
    assert (await every_place.noted(), await every_place.attempts()) == ([], [(1, 0, True)])
    if end is not close:
        assert (await every_place.errors())[0].startswith("TransactionEnded: the handler has committed or rolled back")
    if end is commit:
        assert 1 in await every_place.effects(), "what it committed stays"


@pytest.mark.parametrize("end", [commit, rollback])
async def test_so_has_one_that_ends_it_at_last(every_place: Place, queue: MemoryQueue, end: Work) -> None:
    it = consumer(every_place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(ending(every_place, end, goes_on=False))
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (0, 0, 1, 1)
    assert await every_place.noted() == []


async def test_it_is_tried_as_often_as_any_other(place: Place, queue: MemoryQueue) -> None:
    """Also when it was delivered before, and its beginning is marked."""
    it = consumer(place, queue)
    it.on(Numbered)(ending(place, commit))
    put_again(queue, 1)
    put(queue, 2)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (0, 0, 6, 2)
    assert await place.attempts() == [(3, 0, True), (3, 0, True)]
    assert sorted(set(await place.effects()) & {1, 2}) == [1, 2]
    assert (await place.effects()).count(1) == 3, "each attempt commits it again"


async def test_a_handler_that_commits_once_and_then_does_it_right_is_done(place: Place, queue: MemoryQueue) -> None:
    it, right = consumer(place, queue), place.handler()
    wrong, tried = ending(place, commit, goes_on=False), [1]

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await (wrong if tried.pop(0) == 1 else right)(event, tx, message)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        (wrong if tried.pop(0) == 1 else right)(event, tx, message)

    tried.append(2)
    it.on(Numbered)(asynchronous if place.is_async else sync)
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (1, 0, 1, 0)
    assert (await place.effects(), len(await place.noted())) == ([1, 1], 1)


async def test_a_batch_that_commits_by_itself_has_failed_for_each_of_its_messages(
    place: Place, queue: MemoryQueue
) -> None:
    single = ending(place, commit)

    async def asynchronous(batch: Any, tx: Any) -> None:
        for event, message in batch:
            await single(event, tx, message)

    def sync(batch: Any, tx: Any) -> None:
        for event, message in batch:
            single(event, tx, message)

    it = consumer(place, queue, retry=Backoff(max_attempts=1))
    it.on_batch(Numbered)(asynchronous if place.is_async else sync)
    put(queue, 1, 2, 3)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (0, 0, 3, 3)
    assert await place.noted() == []


async def test_a_handler_in_a_relay_that_commits_by_itself_has_refused_its_message(place: Place) -> None:
    it = consumer(place, MemoryQueue())
    it.on(Numbered)(ending(place, commit))
    publisher = it.publisher()
    await publisher.open()
    message = stored(1, type="numbered", payload=b'{"number":1}')
    for _ in range(2):
        (refusal,) = await publisher.publish([message])
        assert refusal.reason.startswith("TransactionEnded: the handler has committed or rolled back its transaction")
    assert await place.noted() == []
    await publisher.close()


async def test_an_outage_after_such_a_handler_loses_nothing(one_place: Place, queue: MemoryQueue) -> None:
    """The row that the handler has committed goes before its failure is counted, however long that takes."""
    it = consumer(one_place, queue, retry=Backoff(max_attempts=1))
    it.on(Numbered)(ending(one_place, commit))
    undo, outages = it._transactions.undo, iter([True, True, True])

    async def out(*arguments: Any) -> None:
        if next(outages, False):
            raise InboxUnavailable("no database")
        await undo(*arguments)

    it._transactions.undo = out  # type: ignore[method-assign, assignment]
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (0, 0, 1, 1)
    assert (await one_place.noted(), (await one_place.effects()).count(1)) == ([], 1)


async def test_nor_does_one_in_a_relay(one_place: Place) -> None:
    it = consumer(one_place, MemoryQueue())
    it.on(Numbered)(ending(one_place, commit))
    undo, outages = it._transactions.undo, iter([True] * 4)

    async def out(*arguments: Any) -> None:
        if next(outages, False):
            raise InboxUnavailable("no database")
        await undo(*arguments)

    it._transactions.undo = out  # type: ignore[method-assign, assignment]
    publisher = it.publisher()
    await publisher.open()
    message = stored(1, type="numbered", payload=b'{"number":1}')
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="no database"):
            await publisher.publish([message])
    (refusal,) = await publisher.publish([message])
    assert refusal.reason.startswith("TransactionEnded")
    assert await one_place.noted() == []
    await publisher.close()


async def test_what_another_has_processed_meanwhile_stays_processed(pg_place: Place, queue: MemoryQueue) -> None:
    """A handler rolls back, another process has had the message before that is counted: its row is not this one's."""
    it = consumer(pg_place, queue, retry=Backoff(max_attempts=1))
    put(queue, 1)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await tx.execute("rollback")
        await pg_place.rows(
            f"insert into postroad.inbox (consumer, id, type) values ('stock', '{message.identity}', 'numbered')"
        )

    summary = await consumed(it)
    assert (summary.duplicates, summary.failed, summary.dead) == (1, 0, 0)
    assert [type for _, type in await pg_place.noted()] == ["numbered"]


log = log_fixture("postgresql15")


async def test_a_commit_that_the_undoing_statement_does_not_see_has_not_ended_yet(log: PostgreSQLLog) -> None:
    """A READ COMMITTED statement may be in the same place: its snapshot is older than the commit that it learns of."""
    handling, undoing = await log.connect(), await log.connect()
    undo = POSTGRESQL.queries("postroad")["undo_first_times"]
    committing = handling.transaction()
    await committing.start()
    await handling.execute("insert into postroad.inbox (consumer, id, type) values ('stock', '1', 'numbered')")
    transaction = await handling.fetchval("select pg_current_xact_id()::text")
    async with undoing.transaction(isolation="repeatable_read"):
        await undoing.execute("select count(*) from postroad.inbox")
        await committing.commit()
        assert await undoing.fetchval(undo, transaction, "stock", ["1"]) == "in progress"
    assert await undoing.fetchval(undo, transaction, "stock", ["1"]) == "committed"
    assert await undoing.fetchval("select count(*) from postroad.inbox") == 0
    await handling.close()
    await undoing.close()


async def test_a_handler_that_fails_within_a_tests_own_transaction_is_tried_again(log: PostgreSQLLog) -> None:
    """Its transaction is a savepoint, and the transaction around it does not end before the test does."""
    connection = await log.connect()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with connection.transaction():
            yield connection

    it: Consumer[Any] = Consumer("amqp://localhost:1", name="stock", begin=begin, retry=Backoff(max_attempts=2))

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await tx.execute("select 1 / 0")

    async with asyncio.timeout(60), connection.transaction():
        done = await deliver(it, Numbered(1))
    await connection.close()
    assert (done.handled, done.failed, len(done.dead)) == (0, 2, 1)


async def test_nor_does_it_on_sqlite(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, retry=Backoff(max_attempts=1))
    put(queue, 1)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await tx.rollback()
        await asyncio.sleep(0.002)  # the row's time has a resolution of a millisecond
        await one_place.rows(
            f"insert into postroad_inbox (consumer, id, type) values ('stock', '{message.identity}', 'numbered')"
        )

    summary = await consumed(it)
    assert (summary.duplicates, summary.failed, summary.dead) == (1, 0, 0)


async def test_a_savepoint_that_is_rolled_back_is_no_end(every_place: Place, queue: MemoryQueue) -> None:
    def in_a_savepoint(tx: Any) -> Any:
        for sql in ("savepoint own", "insert into effects (number) values (50)", "rollback to savepoint own"):
            yield execute(tx, sql)

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        for ran in in_a_savepoint(tx):
            await ran
        await every_place.insert(tx, event.number)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        list(in_a_savepoint(tx))
        every_place.insert(tx, event.number)

    it = consumer(every_place, queue)
    it.on(Numbered)(asynchronous if every_place.is_async else sync)
    put(queue, 1)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, await every_place.effects()) == (1, 0, [1])
