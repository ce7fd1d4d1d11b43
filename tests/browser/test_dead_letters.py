"""A consumer has given messages up: an operator reads why, has them handled again, and drops what can't be handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postroad import Consumer, Received, event
from postroad.retry import Backoff
from postroad.waiting import cancel_and_wait
from tests.browser.shift import ORDER, Shift

pytestmark = pytest.mark.asyncio(loop_scope="session")


@event(ORDER)
@dataclass
class OrderCreated:
    order: int


class Warehouse:
    """A consumer that can't handle anything until its shelves are there."""

    def __init__(self, shift: Shift) -> None:
        self.shelves = False
        self.handled: asyncio.Queue[int] = asyncio.Queue()
        self._url = shift.log.url
        retry = Backoff(max_attempts=2, first=timedelta(milliseconds=1))
        self.consumer: Consumer[Any] = Consumer(shift.vhost, name="warehouse", begin=self._begin, retry=retry)
        self.consumer.on(OrderCreated)(self._handle)

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    async def _handle(self, event: OrderCreated, tx: Any, message: Received) -> None:
        if not self.shelves:
            raise LookupError(f"no shelf for order {event.order}")
        self.handled.put_nowait(event.order)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.consumer.run())
        try:
            yield
        finally:
            await cancel_and_wait(task, seconds=30)


async def test_dead_letters(shift: Shift) -> None:
    warehouse = Warehouse(shift)
    async with warehouse.running():
        with shift.relay():
            for number in (1, 2, 3):
                await shift.add({"order": number}, key=str(number))
            async with shift.operator(consumers=[warehouse.consumer]) as anna:
                await anna.see("3 dead letters")
                await anna.press("See the dead letters", exact=False)
                await anna.see("no shelf for order 3", "alive")
                await anna.page.get_by_role("row", name="no shelf for order 3").get_by_role("link").first.click()
                await anna.press("Drop")
                await anna.confirm("order 3 was canceled")
                warehouse.shelves = True
                await anna.press("Inbox")
                await anna.press("Retry all of its letters")
                await anna.see("2 dead letters of consumer 'warehouse'")
                await anna.confirm("there are shelves now")
                async with asyncio.timeout(120):
                    assert {await warehouse.handled.get(), await warehouse.handled.get()} == {1, 2}
                await anna.open("inbox")
                await anna.see("No dead letters")
                lines = await anna.audit()
                assert [(who, reason) for who, _, reason in lines] == [
                    ("anna", "there are shelves now"),
                    ("anna", "order 3 was canceled"),
                ]
