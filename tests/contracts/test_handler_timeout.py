"""A handler that hangs: it is cancelled after `handler_timeout`, nothing of it is committed, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting, Message, Received
from postroad.brokers.memory import MemoryQueue
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore
from tests.consumers import Numbered, consumed, consumer, handler_limits, hang, put
from tests.logs import SQLiteLog
from tests.places import ON_SQLITE, Place, on_postgresql, on_sqlite

LIMIT = "90s"
TIMED_OUT = "HandlerTimedOut: the handler took longer than handler_timeout, 90 s, and was cancelled"


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    with handler_limits(90):
        yield


@pytest.fixture(params=["asyncpg", "psycopg-async", "async-session", "aiosqlite"])
async def async_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in ON_SQLITE:
        return on_sqlite(request.param, tmp_path / "shop.sqlite")
    return await on_postgresql(request.param, request.getfixturevalue("postgresql15"))


async def test_a_handler_that_hangs_has_failed_and_others_go_on(async_place: Place, queue: MemoryQueue) -> None:
    place = async_place
    it = consumer(place, queue, handler_timeout=LIMIT, concurrency=2)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await place.insert(tx, event.number)
        if event.number <= 2:
            await hang()

    put(queue, 1, 2, 3)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (1, 6, 2)
    assert await place.effects() == [3], "nothing of the others was committed"
    assert await place.attempts() == [(3, 0, True)] * 2
    assert await place.errors() == [TIMED_OUT] * 2
    assert [notes["postroad-reason"] for _, notes in queue.dead] == [TIMED_OUT] * 2


async def test_a_handler_that_hides_its_cancellation_has_failed_too(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, handler_timeout=LIMIT)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await one_place.insert(tx, event.number)
        with suppress(asyncio.CancelledError):
            await hang()

    put(queue, 1)
    assert (await consumed(it)).dead == 1
    assert await one_place.effects() == []


async def test_an_error_of_its_own_that_is_a_timeout_is_not_taken_for_ours(
    one_place: Place, queue: MemoryQueue
) -> None:
    it = consumer(one_place, queue, handler_timeout="1h")

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        raise TimeoutError("theirs")

    put(queue, 1)
    await consumed(it)
    assert await one_place.errors() == ["TimeoutError: theirs"]


async def test_a_batch_that_hangs_is_handled_one_by_one(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, handler_timeout=LIMIT)

    @it.on_batch(Numbered)
    async def handle(batch: Any, tx: Any) -> None:
        for event, _ in batch:
            await one_place.insert(tx, event.number)
            if event.number == 2:
                await hang()

    put(queue, 1, 2, 3)
    summary = await consumed(it)
    assert (summary.handled, summary.dead) == (2, 1)
    assert sorted(await one_place.effects()) == [1, 3]


async def test_in_a_relay_a_handler_that_hangs_has_refused_its_message(one_place: Place, tmp_path: Path) -> None:
    log = SQLiteLog(tmp_path / "log.sqlite")
    it = consumer(one_place, MemoryQueue(), handler_timeout=LIMIT)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await one_place.insert(tx, event.number)
        if event.number == 1:
            await hang()

    await log.add(*(Message({"number": number}, type="numbered", key=str(number)) for number in (1, 2)))
    settings = RelaySettings(lanes=1, max_attempts=1)
    summary = await Relay(SQLiteStore(log.path), it.publisher(), sink="stock", settings=settings).run_until_empty()
    assert (summary.published, summary.died) == (1, 1)
    assert await one_place.effects() == [2]
    assert [each.error for each in await log.attempts()] == [TIMED_OUT]


def test_a_limit_for_sync_handlers_is_refused_because_they_can_t_be_cancelled(queue: MemoryQueue) -> None:
    def sync(event: Numbered, tx: Any, message: Received) -> None: ...

    def batch(batch: Any, tx: Any) -> None: ...

    place: Any = Place(begin=lambda: None, insert=print, is_async=False, rows=print, schema="")
    for limit in ("5s", timedelta(seconds=5)):
        with pytest.raises(InvalidSetting, match=r"^handler_timeout is given, and .* sync: .* can't be cancelled"):
            consumer(place, queue, handler_timeout=limit).on(Numbered)(sync)
        with pytest.raises(InvalidSetting, match=r"^handler_timeout is given"):
            consumer(place, queue, handler_timeout=limit).on_batch(Numbered)(batch)
    for none in (None, "0", timedelta(0)):
        consumer(place, queue, handler_timeout=none).on(Numbered)(sync)


@pytest.mark.parametrize("wrong", ["soon", 5, -1])
def test_a_limit_that_is_none_is_named(one_place: Place, queue: MemoryQueue, wrong: Any) -> None:
    with pytest.raises(InvalidSetting, match="^handler_timeout is "):
        consumer(one_place, queue, handler_timeout=wrong)


@pytest.mark.parametrize(("given", "seconds"), [(None, 900), ("0", None), ("2s", 2)])
def test_the_limit_of_async_handlers(one_place: Place, queue: MemoryQueue, given: Any, seconds: float | None) -> None:
    assert consumer(one_place, queue, handler_timeout=given)._transaction._timeout == seconds
