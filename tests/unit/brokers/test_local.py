"""A function in the relay's process as a destination."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from postroad import LocalPublisher, StoredMessage
from tests.destinations import a_page


async def test_each_message_is_handled_in_a_context_of_its_own() -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    found: list[str] = []

    async def handle(message: StoredMessage) -> None:
        found.append(tenant.get())
        tenant.set("of the message before")
        await asyncio.sleep(0)

    publisher = LocalPublisher(handle)
    tenant.set("the application's")
    assert await publisher.publish(a_page(2)) == []
    assert await publisher.publish(a_page(1)) == []
    assert found == ["the application's"] * 3
    assert tenant.get() == "the application's"
