"""Sessions that end one by one, through a consumer: what is not begun is dropped, what is being handled may end, and
the other sessions go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad import Consumer
from postroad.brokers.memory import MemoryQueue
from tests.consumers import AT_ONCE, Numbered, consumer, put, soon, until_parked
from tests.places import Place
from tests.polling import until

LONG = 60


@pytest.fixture
def partitions() -> MemoryQueue:
    return MemoryQueue(partitions=2)


def a_key(queue: MemoryQueue, partition: int) -> str:
    """A key of this partition."""
    return next(key for key in map(str, range(100)) if queue.partition_of(key) == partition)


class Handler:
    """Handles numbers; those that are held wait until they are let go."""

    def __init__(self, place: Place, *held: int) -> None:
        self._place = place
        self._held = {number: asyncio.Event() for number in held}
        self._began: dict[int, asyncio.Event] = {}
        self.calls: list[int] = []

    async def __call__(self, event: Numbered, tx: Any, message: Any) -> None:
        self.calls.append(event.number)
        self.began(event.number).set()
        if event.number in self._held:
            await self._held[event.number].wait()
        await self._place.insert(tx, event.number)

    def began(self, number: int) -> asyncio.Event:
        return self._began.setdefault(number, asyncio.Event())

    def let_go(self, number: int) -> None:
        self._held.pop(number).set()


@asynccontextmanager
async def running(it: Consumer[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(it.run())
    try:
        yield
    finally:
        it.stop()
        async with asyncio.timeout(LONG):
            await task


async def until_effects(place: Place, *numbers: int) -> None:
    async with asyncio.timeout(LONG):
        while sorted(await place.effects()) != sorted(numbers):  # noqa: ASYNC110 - the database tells no one
            await asyncio.sleep(0.01)


async def until_received(queue: MemoryQueue) -> None:
    async with asyncio.timeout(LONG):
        while queue.queue or queue._revoked:  # noqa: ASYNC110 - a queue does not tell
            await asyncio.sleep(0)


@pytest.mark.parametrize("per_transaction", [1, 3])
async def test_nothing_more_of_a_revoked_session_is_begun_and_its_acks_count(
    pg_place: Place, partitions: MemoryQueue, per_transaction: int
) -> None:
    gone, kept = a_key(partitions, 0), a_key(partitions, 1)
    it = consumer(pg_place, partitions, messages_per_transaction=per_transaction, concurrency=4)
    it.on(Numbered)(handler := Handler(pg_place, 1))
    put(partitions, 1, key=gone)
    async with running(it):
        await soon(handler.began(1))
        put(partitions, 2, 3, key=gone)
        put(partitions, 4, key=kept)
        await until_received(partitions)
        released = partitions.revoke(0)
        put(partitions, 5, key=kept)
        if per_transaction == 1:  # a group waits for the one before it
            await soon(handler.began(5))
        assert not released.is_set(), "1 is still being handled"
        handler.let_go(1)
        await soon(released)
        await until_effects(pg_place, 1, 4, 5)
        assert sorted(handler.calls) == [1, 4, 5]
        assert [int(each.body[10:-1]) for each in partitions.queue] == [2, 3], "1 was acked in time"
        partitions.assign(0)
        await until_effects(pg_place, 1, 2, 3, 4, 5)
        assert [number for number in await pg_place.effects() if number < 4] == [1, 2, 3]
    assert not partitions.queue


async def test_what_comes_again_from_another_session_waits_for_what_is_still_being_handled(
    pg_place: Place, partitions: MemoryQueue
) -> None:
    """The handler outlives the grace: the partition is revoked and comes back, and its messages are still in order."""
    key = a_key(partitions, 0)
    it = consumer(pg_place, partitions, grace="10ms", retry=AT_ONCE)
    stubborn = asyncio.Event()
    calls: list[int] = []

    async def handler(event: Numbered, tx: Any, message: Any) -> None:
        calls.append(event.number)
        if calls == [1]:
            stubborn.set()
            await asyncio.Event().wait()
        await pg_place.insert(tx, event.number)

    it.on(Numbered)(handler)
    put(partitions, 1, 2, 3, key=key)
    async with running(it):
        await soon(stubborn)
        await soon(partitions.revoke(0))  # a handler that hangs does not keep it for ever
        assert [int(each.body[10:-1]) for each in partitions.queue] == [1, 2, 3]
        partitions.assign(0)
        await until_effects(pg_place, 1, 2, 3)
    assert await pg_place.effects() == [1, 2, 3]
    attempts = await pg_place.attempts()
    assert {each for each, *_ in attempts} == {0}, "a handler that was cancelled has not failed"


async def test_what_waits_for_its_next_attempt_is_dropped_and_counts_where_it_comes_again(
    pg_place: Place, partitions: MemoryQueue
) -> None:
    key = a_key(partitions, 0)
    it = consumer(pg_place, partitions, retry=AT_ONCE.__class__(max_attempts=3, jitter=0))
    failed = asyncio.Event()

    def fail_once(event: Any, message: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise LookupError("not now")

    it.on(Numbered)(pg_place.handler(fail_once))
    put(partitions, 1, 2, key=key)
    async with running(it):
        await until_parked(it)
        await soon(partitions.revoke(0))
        assert it._run is not None
        assert not it._run.dispatcher.parked
        partitions.assign(0)
        await until_effects(pg_place, 1, 2)
    assert await pg_place.effects() == [1, 2]


async def test_a_revocation_ends_with_the_consumer(pg_place: Place, partitions: MemoryQueue) -> None:
    it = consumer(pg_place, partitions, grace="60s")
    it.on(Numbered)(handler := Handler(pg_place, 1))
    put(partitions, 1, key=a_key(partitions, 0))
    async with running(it):
        await soon(handler.began(1))
        released = partitions.revoke(0)
        put(partitions, 2, key=a_key(partitions, 1))
        await soon(handler.began(2))
        it.stop()
        handler.let_go(1)
    assert released.is_set()
    assert sorted(await pg_place.effects()) == [1, 2]
    assert not partitions.queue


async def test_a_mark_is_removed_before_another_consumer_gets_the_message(
    pg_place: Place, partitions: MemoryQueue
) -> None:
    """Else it would count as a crash there."""
    partitions.knows_redelivery = False
    it = consumer(pg_place, partitions, grace="10ms")
    it.on(Numbered)(handler := Handler(pg_place, 1))
    put(partitions, 1, key=a_key(partitions, 0))
    async with running(it):
        await soon(handler.began(1))
        assert await pg_place.attempts() == [(0, 0, False)], "marked, since it may have been delivered before"
        await soon(partitions.revoke(0))
        assert await pg_place.attempts() in ([], [(0, 0, False)])
    other = consumer(pg_place, partitions)
    other.on(Numbered)(pg_place.handler(lambda event, message: attempts.append(message.attempt)))
    attempts: list[int] = []
    async with asyncio.timeout(LONG):
        await other.run_until_empty()
    assert attempts == [1]


async def test_a_handler_that_fails_after_its_session_was_revoked_is_not_called_again_here(
    pg_place: Place, partitions: MemoryQueue
) -> None:
    gone, kept = a_key(partitions, 0), a_key(partitions, 1)
    it = consumer(pg_place, partitions)
    began, fail = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def handler(event: Numbered, tx: Any, message: Any) -> None:
        calls.append(event.number)
        if event.number == 1:
            began.set()
            await fail.wait()
            raise LookupError("not now")
        await pg_place.insert(tx, event.number)

    it.on(Numbered)(handler)
    put(partitions, 1, key=gone)
    async with running(it):
        await soon(began)
        released = partitions.revoke(0)
        put(partitions, 2, key=kept)
        await until_effects(pg_place, 2)
        fail.set()
        await soon(released)
        put(partitions, 3, key=kept)
        await until_effects(pg_place, 2, 3)
        run = it._run
        assert run is not None
        await until(lambda: run.dispatcher.empty)  # a message is acked after its effect can be seen
    assert calls == [1, 2, 3]
    assert await pg_place.attempts() == [(1, 0, False)], "the attempt counts, wherever the next one is"


async def test_a_suspect_whose_turn_comes_after_the_revocation_is_not_begun(
    pg_place: Place, partitions: MemoryQueue
) -> None:
    """Those that may have crashed a process are handled one at a time: the second waits in its task."""
    it = consumer(pg_place, partitions)
    it.on(Numbered)(handler := Handler(pg_place, 1))
    keys = [key for key in map(str, range(100)) if partitions.partition_of(key) == 0][:2]
    for number, key in zip((1, 2), keys, strict=True):
        put(partitions, number, key=key)
        id = f"/tests {partitions.queue[-1].message_id}"
        await pg_place.rows(
            "insert into postroad.inbox_attempts (consumer, id, type, running) "
            f"values ('stock', '{id}', 'numbered', true)"
        )
    partitions.knows_redelivery = False
    async with running(it):
        await soon(handler.began(1))
        released = partitions.revoke(0)
        await until_received(partitions)
        handler.let_go(1)
        await soon(released)
        assert [int(each.body[10:-1]) for each in partitions.queue] == [2]
    assert handler.calls == [1]
    assert await pg_place.effects() == [1]
