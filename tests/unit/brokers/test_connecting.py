"""Calls that need a connection share one attempt to connect."""

from __future__ import annotations

import asyncio

import pytest

from postroad.brokers.connecting import Connecting


class Server:
    """Can be connected to as soon as `answer` is set."""

    def __init__(self) -> None:
        self.attempts = 0
        self.answer = asyncio.Event()
        self.is_down = False

    async def connect(self) -> int:
        self.attempts += 1
        number = self.attempts
        await self.answer.wait()
        if self.is_down:
            raise ConnectionError("down")
        return number


async def test_all_calls_wait_for_one_attempt_and_the_next_for_another() -> None:
    server = Server()
    connecting = Connecting(server.connect)
    calls = [asyncio.create_task(connecting.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    server.answer.set()
    assert await asyncio.gather(*calls[1:]) == [1, 1], "a call that is cancelled leaves the attempt to the others"
    assert await connecting.wait() == 2


async def test_they_share_its_failure() -> None:
    server = Server()
    server.is_down = True
    server.answer.set()
    connecting = Connecting(server.connect)
    found = await asyncio.gather(*(connecting.wait() for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["down"] * 3
    assert server.attempts == 1
    server.is_down = False
    assert await connecting.wait() == 2


async def test_what_is_ended_results_in_nothing() -> None:
    server = Server()
    connecting = Connecting(server.connect)
    await connecting.end()
    call = asyncio.create_task(connecting.wait())
    await asyncio.sleep(0)
    await connecting.end()
    assert await call is None


async def test_a_call_that_is_cancelled_ends() -> None:
    connecting = Connecting(Server().connect)
    call = asyncio.create_task(connecting.wait())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await connecting.end()
