"""The read side: each event changes the cart's view model in Redis. The handlers run in the relay's own process:

    postroad relay --app examples.teamcart.view:consumer

Redis takes no part in the transaction, so a kill between Redis and the commit runs a handler again. That is why every
write here may be repeated: the cart's fields and the items are set by their ids, and nothing is counted up.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
from redis.asyncio import Redis

from examples.teamcart.carts import ItemAdded, TeamCartCreated
from postroad import Consumer, Received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

redis = Redis.from_url(os.environ.get("REDIS", "redis://localhost"), decode_responses=True)
_pool: asyncpg.Pool[Any] | None = None


@asynccontextmanager
async def begin() -> AsyncIterator[Any]:
    global _pool  # noqa: PLW0603 - one per process, made in its loop
    _pool = _pool or await asyncpg.create_pool(os.environ.get("POSTROAD_DATABASE"), min_size=1, max_size=4)
    async with _pool.acquire() as connection, connection.transaction():
        yield connection


consumer = Consumer(name="team-cart-view", begin=begin, concurrency=4)


@consumer.on(TeamCartCreated)
async def show_cart(event: TeamCartCreated, tx: Any, message: Received) -> None:
    await redis.hset(key_of(event.cart), mapping={"host": event.host})


@consumer.on(ItemAdded)
async def show_item(event: ItemAdded, tx: Any, message: Received) -> None:
    item = msgspec.json.encode({"dish": event.dish, "price": event.price}).decode()
    await redis.hset(key_of(event.cart), mapping={f"item {event.item}": item})


def key_of(cart: UUID | str) -> str:
    return f"teamcart:{cart}"
