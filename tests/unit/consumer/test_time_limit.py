"""One timer is enough for all handlers: each is cancelled when its own limit is over, and no other is."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from postroad.consumer.errors import HandlerTimedOut
from postroad.consumer.time_limit import TimeLimit

SECONDS = 0.05


async def never_ends() -> None:
    await asyncio.Event().wait()


def called(limit: TimeLimit, handler: Any, *arguments: Any) -> asyncio.Task[None]:
    """A task that calls this handler."""

    async def call() -> None:
        await limit.call(asyncio.current_task(), handler, *arguments)

    return asyncio.create_task(call())


async def test_each_has_the_whole_time_from_when_it_began() -> None:
    limit, loop, ended_at = TimeLimit(SECONDS), asyncio.get_running_loop(), list[float]()

    async def call() -> None:
        began = loop.time()
        with pytest.raises(HandlerTimedOut, match=r"longer than handler_timeout, 0\.05 s, and was cancelled"):
            await called(limit, never_ends)
        ended_at.append(loop.time() - began)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(call())
            await asyncio.sleep(SECONDS / 3)
    assert len(ended_at) == 3
    assert min(ended_at) >= SECONDS * 0.99


async def test_what_ends_in_time_is_not_cancelled_later() -> None:
    limit = TimeLimit(SECONDS)

    async def several() -> None:
        task = asyncio.current_task()
        await limit.call(task, asyncio.sleep, 0)
        await asyncio.sleep(2 * SECONDS)
        await limit.call(task, asyncio.sleep, 0)

    await asyncio.create_task(several())
    with pytest.raises(HandlerTimedOut):
        await called(limit, never_ends)


async def test_what_hides_that_it_was_cancelled_has_failed_and_its_task_goes_on() -> None:
    limit = TimeLimit(SECONDS)

    async def hides() -> None:
        with suppress(asyncio.CancelledError):
            await never_ends()

    async def call() -> int:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(HandlerTimedOut):
            await limit.call(task, hides)
        await asyncio.sleep(0)
        return task.cancelling()

    assert await asyncio.create_task(call()) == 0


async def test_a_task_that_is_cancelled_by_another_is_cancelled() -> None:
    task = called(TimeLimit(60), never_ends)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_serves_one_loop_after_the_other() -> None:
    limit = TimeLimit(SECONDS)

    async def call() -> None:
        await called(limit, asyncio.sleep, 0)  # the timer that this sets ends with the loop
        with pytest.raises(HandlerTimedOut):
            async with asyncio.timeout(60):
                await called(limit, never_ends)

    async def leave_a_timer() -> None:
        await called(limit, asyncio.sleep, 0)

    for main in (leave_a_timer, call, call):
        asyncio.run(main())


async def test_without_a_limit() -> None:
    limit = TimeLimit(None)
    await called(limit, asyncio.sleep, 0)
    with pytest.raises(ValueError, match="theirs"):
        await called(TimeLimit(60), fails)


async def fails() -> None:
    raise ValueError("theirs")


async def test_a_call_in_another_loop_does_not_end_this_one() -> None:
    limit, begun, release = TimeLimit(60), threading.Event(), threading.Event()

    async def handler() -> None:
        begun.set()
        await asyncio.to_thread(release.wait, 60)

    async def elsewhere() -> None:
        await called(limit, handler)

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    assert await asyncio.to_thread(begun.wait, 60)
    await called(limit, asyncio.sleep, 0)
    release.set()
    await other
