"""The write side: a team cart in PostgreSQL. What changed is added to the outbox in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from postroad import Outbox, event

if TYPE_CHECKING:
    import asyncpg

TABLES = """
create table if not exists carts (id uuid primary key, host text not null);
create table if not exists items (id uuid primary key, cart uuid not null, dish text not null, price integer not null);
"""

outbox = Outbox(source="/teamcart")


@event("teamcart.created.v1")
@dataclass
class TeamCartCreated:
    cart: UUID
    host: str


@event("teamcart.item.added.v1")
@dataclass
class ItemAdded:
    cart: UUID
    item: UUID
    dish: str
    price: int


async def create_cart(connection: asyncpg.Connection[Any], host: str) -> UUID:
    cart = uuid4()
    async with connection.transaction():
        await connection.execute("insert into carts values ($1, $2)", cart, host)
        await outbox.add(connection, TeamCartCreated(cart, host), key=cart)
    return cart


async def add_item(connection: asyncpg.Connection[Any], cart: UUID, dish: str, price: int) -> UUID:
    item = uuid4()
    async with connection.transaction():
        await connection.execute("select from carts where id = $1 for update", cart)  # the key's lock comes first
        await connection.execute("insert into items values ($1, $2, $3, $4)", item, cart, dish, price)
        await outbox.add(connection, ItemAdded(cart, item, dish, price), key=cart)
    return item
