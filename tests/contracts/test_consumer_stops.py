"""What a consumer remembers while something is out, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from postroad import BrokerUnavailable, Consumer, Inbox, Received
from postroad.backoff import ExponentialBackoff
from postroad.brokers.memory import MemoryQueue
from postroad.consumer import dispatch
from postroad.consumer.errors import InboxUnavailable
from postroad.message import new_id
from postroad.retry import Backoff
from tests.consumers import Numbered, consumed, consumer, put, put_again, soon, until_parked
from tests.places import Place

# -- what is remembered ----------------------------------------------------------------------------------------------


async def test_a_message_is_dead_lettered_once_while_the_database_is_unavailable(
    one_place: Place, queue: MemoryQueue
) -> None:
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    dead, asked = it._attempts.record_dead, 0

    async def out_twice(*arguments: Any) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise InboxUnavailable("no database")
        await dead(*arguments)

    it._attempts.record_dead = out_twice  # type: ignore[method-assign, assignment]
    queue.put(b"x")
    assert (await consumed(it)).dead == 1
    assert (asked, len(queue.dead), await one_place.attempts()) == (3, 1, [(0, 0, True)])


async def test_the_handler_is_not_called_again_while_the_dead_letters_are_out(
    one_place: Place, queue: MemoryQueue
) -> None:
    dead_letter, tried = queue.dead_letter, []

    async def out_twice(*arguments: Any) -> None:
        tried.append("dead letter")
        if tried.count("dead letter") < 3:
            raise BrokerUnavailable("no such queue")
        await dead_letter(*arguments)

    def fail(event: Numbered, message: Received) -> None:
        if event.number == 1:
            tried.append("handle")
            raise LookupError("no")

    queue.dead_letter = out_twice  # type: ignore[method-assign, assignment]
    it = consumer(one_place, queue, concurrency=1)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 1, 2)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (1, 3, 1)
    assert tried == ["handle"] * 3 + ["dead letter"] * 3


async def test_the_reason_survives_a_restart(one_place: Place, queue: MemoryQueue) -> None:
    """A consumer ends before it could dead-letter the message; the next one has never seen the handler fail."""
    dead_letter, tried = queue.dead_letter, asyncio.Event()

    async def out(*_: Any) -> None:
        tried.set()
        raise BrokerUnavailable("no such queue")

    def fail(event: Numbered, message: Received) -> None:
        raise LookupError("no")

    queue.dead_letter = out  # type: ignore[method-assign, assignment]
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 1)
    running = asyncio.create_task(it.run())
    await soon(tried)
    it.stop()
    await running
    queue.dead_letter = dead_letter  # type: ignore[method-assign]
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
    monkeypatch.setattr(dispatch, "BACKOFF", ExponentialBackoff(longest=0.001))
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
    assert "no ack; retrying in" in caplog.text


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
    async with pg_place.begin() as tx:  # the first to use a name makes others wait for its transaction
        await Inbox().first_time(tx, "another", consumer="stock")
    async with pg_place.begin() as tx:
        assert await Inbox().first_time(tx, id, source="/tests", consumer="stock")
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
    async with pg_place.begin() as tx:  # the first to use a name makes others wait for its transaction
        await Inbox().first_time(tx, "another", consumer="stock")
    with suppress(LookupError):
        async with pg_place.begin() as tx:
            assert await Inbox().first_time(tx, id, source="/tests", consumer="stock")
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
        values = f"('stock', '/tests {delivery.message_id}', '', true)"
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

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, concurrency=3, heartbeat=None)

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
