"""The poller looks while it is watched, and only then."""

from __future__ import annotations

import asyncio

from postroad.console.poller import Poller


class Looks:
    def __init__(self) -> None:
        self.made = 0
        self.seen: list[int | None] = []

    async def __call__(self, last: int | None) -> int:
        self.seen.append(last)
        self.made += 1
        await asyncio.sleep(0)
        return self.made


async def test_it_looks_only_while_it_is_watched() -> None:
    looks = Looks()
    poller: Poller[int] = Poller(looks, seconds=0.001)
    await asyncio.sleep(0.01)
    assert looks.made == 0
    async with asyncio.timeout(30):
        watching = poller.looks()
        seen = [await anext(watching) for _ in range(3)]
        assert seen == sorted(set(seen))
        await watching.aclose()
    assert poller.viewers == 0
    made = looks.made
    await asyncio.sleep(0.02)
    assert looks.made == made


async def test_all_viewers_get_the_same_look() -> None:
    looks = Looks()
    poller: Poller[int] = Poller(looks, seconds=60)
    async with asyncio.timeout(30):
        viewers = [poller.looks() for _ in range(50)]
        assert [await anext(viewer) for viewer in viewers] == [1] * 50
        assert (poller.viewers, looks.made) == (50, 1)
        for viewer in viewers:
            await viewer.aclose()


async def test_those_who_ask_together_share_a_look() -> None:
    looks = Looks()
    poller: Poller[int] = Poller(looks, seconds=60)
    assert await asyncio.gather(*(poller.latest() for _ in range(10))) == [1] * 10
    poller.forget()
    assert await poller.latest() == 2
    assert looks.seen == [None, 1]


async def test_closing_ends_all_streams() -> None:
    looks = Looks()
    poller: Poller[int] = Poller(looks, seconds=60)
    seen: list[int] = []

    async def watch() -> None:
        seen.extend([look async for look in poller.looks()])

    async with asyncio.timeout(30):
        task = asyncio.create_task(watch())
        while not looks.made:  # noqa: ASYNC110 - the count is the signal
            await asyncio.sleep(0)
        await poller.close()
        await task
    assert seen in ([], [1])
