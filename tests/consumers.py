"""Consumers as tests make them: on a queue in memory, with messages that are numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from postroad import Consumer, Received
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.time_limit import TimeLimit
from postroad.retry import Backoff
from tests.destinations import stored
from tests.places import Place

AT_ONCE = Backoff(max_attempts=3, first=timedelta(milliseconds=1), jitter=0)


class Numbered(msgspec.Struct):
    """What tests send."""

    number: int


def consumer(place: Place, queue: MemoryQueue, **settings: Any) -> Consumer[Any]:
    defaults: dict[str, Any] = {"retry": AT_ONCE, "grace": "20s"}
    return Consumer(queue, name="stock", begin=place.begin, **defaults | settings)


def put(queue: MemoryQueue, *numbers: int, **fields: Any) -> None:
    for number in numbers:
        payload = b'{"number":%d}' % number
        queue.put_stored(stored(number, **({"type": "numbered", "payload": payload, "key": f"k{number}"} | fields)))


async def consumed(consumer: Consumer[Any]) -> Any:
    async with asyncio.timeout(60):
        return await consumer.run_until_empty()


def put_again(queue: MemoryQueue, *numbers: int, **fields: Any) -> None:
    """As if a consumer had had them before."""
    put(queue, *numbers, **fields)
    again = [msgspec.structs.replace(each, redelivered=True) for each in queue.queue]
    queue.queue.clear()
    queue.queue.extend(again)


async def until_parked(it: Consumer[Any], session: object = None) -> object:
    """Until a message waits for its next attempt, of another session than this; gives its session."""
    async with asyncio.timeout(60):
        while True:
            for work in it._run.dispatcher.parked if it._run else ():
                if work.delivery.session is not session:
                    return work.delivery.session
            await asyncio.sleep(0)


_handler_limit: ContextVar[TimeLimit] = ContextVar("handler_limit")


@contextmanager
def handler_limits(seconds: float) -> Iterator[None]:
    """Within it, the limit of a handler that calls `hang` is over at once. So a limit of so many seconds, which is long
    enough for other handlers on a busy machine, needs no waiting.
    """

    def call(limit: TimeLimit, *arguments: Any) -> Any:
        if limit._seconds == seconds:
            _handler_limit.set(limit)
        return real(limit, *arguments)

    real = TimeLimit.call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeLimit, "call", call)
        yield


async def hang() -> None:
    """Never return; for handlers, within `handler_limits`."""
    limit, loop, task = _handler_limit.get(), asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    limit._ends_at[task] = loop.time()
    loop.call_soon(limit._cancel_late, loop)
    await asyncio.Event().wait()


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


def execute(tx: Any, sql: str) -> Any:
    """Run SQL with any kind of connection; to be awaited on async ones."""
    if hasattr(tx, "vendor"):  # Django's
        with tx.cursor() as cursor:
            return cursor.execute(sql)
    return tx.execute(text(sql) if type(tx).__module__.startswith("sqlalchemy") else sql)


def executing(place: Place, *statements: str, catching: bool = False) -> Any:
    """A handler that writes its effect and then, at its first attempt for the first statement and so on, executes."""
    left = list(statements)

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
