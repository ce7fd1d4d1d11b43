"""A shop and a warehouse with trouble on purpose, on SQLite and in one process, and the console on both databases.

The shop places orders as long as it runs. Its sink `warehouse` delivers to the warehouse's consumer, and refuses some;
`search` is paused; `mail` has lost its relay. The warehouse gives some orders up, and causes parcels with the others.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from datetime import timedelta
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.admin import By, open_admin
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker, MemoryQueue
from postroad.config import DEFAULT_SCHEMA, RelaySettings
from postroad.consumer import Consumer
from postroad.errors import Refusal
from postroad.message import StoredMessage, event
from postroad.ops.console_server import DEFAULT_HOST, listen, serve_console
from postroad.ops.demo.folder import folder_for
from postroad.ops.prompts import actor
from postroad.outbox import Outbox
from postroad.received import Received  # noqa: TC001 - handlers are checked by their annotations
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from postroad.brokers.base import Publisher

__all__ = ["run_trouble"]

FIRST_ORDERS: Final = 240
SECONDS: Final = 0.5
"""How often an order is placed."""
_CUSTOMERS: Final = ("anna", "björn", "chloé", "dmitri", "eva", "farid", "greta", "hugo", "ines", "jan", "كريم", "li")
_SETTINGS: Final = RelaySettings(lanes=4, lease="10s")
_RETRIES: Final = Backoff(max_attempts=3, first=timedelta(seconds=20), max_backoff=timedelta(minutes=5))


@event("order.placed.v1")
class OrderPlaced(msgspec.Struct, frozen=True):
    """What the warehouse receives."""

    order: int
    customer: str
    items: int
    card_token: str = "tok_4242"  # noqa: S105 - the console hides it by its name


@event("invoice.sent.v1")
class InvoiceSent(msgspec.Struct, frozen=True):
    """What no queue is bound to."""

    order: int


@event("parcel.packed.v1")
class ParcelPacked(msgspec.Struct, frozen=True):
    """What the warehouse publishes for each order."""

    order: int
    weight_grams: int


def run_trouble(directory: Path | None, port: int) -> None:
    """Run it until a signal ends it. What goes wrong is seen in the console, and not logged."""
    logging.getLogger("postroad").setLevel(logging.CRITICAL)
    with listen(DEFAULT_HOST, port) as listener, folder_for(directory) as folder:
        asyncio.run(_run(folder, listener))


async def _run(folder: Path, listener: Any) -> None:
    shop, warehouse = folder / "shop.sqlite", folder / "warehouse.sqlite"
    for file in (shop, warehouse):
        migrate_sqlite(file)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("pragma journal_mode = wal")
    queue = MemoryQueue()
    consumer = _consumer(warehouse, queue)
    databases = [f"shop=sqlite:///{shop}", f"warehouse=sqlite:///{warehouse}"]
    async with AsyncExitStack() as stack:
        await _make_trouble(shop)
        for running in (
            _relay(shop, _refusing(queue), "warehouse").run(),
            _relay(shop, LocalPublisher(_take, name="search"), "search").run(),
            consumer.run(),
            _relay(warehouse, LocalPublisher(_take, name="carrier"), "carrier").run(),
            _place_orders(shop),
        ):
            await stack.enter_async_context(_in_background(running))
        await serve_console(
            databases, listener, schema=DEFAULT_SCHEMA, who=actor(None), payloads=True, consumers=[consumer]
        )


@asynccontextmanager
async def _in_background(running: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(running)
    try:
        yield
    finally:
        await cancel_and_wait(task, seconds=2)


# -- the shop --------------------------------------------------------------------------------------------------------


async def _make_trouble(shop: Path) -> None:
    """Orders, a paused sink, a sink that has lost its relay, a held key; each with its line in the audit."""
    with _transaction(shop) as connection:
        for number in range(1, FIRST_ORDERS):
            _place(connection, number)
    await _relay(shop, LocalPublisher(_take, name="mail"), "mail").run_until_empty()
    with _transaction(shop) as connection:
        _place(connection, FIRST_ORDERS)
    await _relay(shop, LocalPublisher(_take, name="search"), "search").run_until_empty()
    async with open_admin(f"sqlite:///{shop}") as admin:
        await admin.pause("search", By("ben", "the index is being rebuilt"))
        await admin.hold("mail", "eva", By("anna", "her orders came twice; asked the shop"))


async def _place_orders(shop: Path) -> None:
    for number in count(FIRST_ORDERS + 1):
        with _transaction(shop) as connection:
            _place(connection, number)
        await asyncio.sleep(SECONDS)


def _place(connection: sqlite3.Connection, number: int) -> None:
    random = Random(number)  # noqa: S311 - a story, not a secret
    customer = random.choice(_CUSTOMERS)
    outbox = Outbox(source="/shop")
    outbox.add(connection, OrderPlaced(number, customer, random.randint(1, 9)), key=customer)
    if number % 40 == 0:
        outbox.add(connection, InvoiceSent(number))


@contextmanager
def _transaction(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
        connection.execute("pragma synchronous = normal")
        yield connection


# -- the way between -------------------------------------------------------------------------------------------------


def _relay(file: Path, publisher: Publisher, sink: str) -> Relay:
    return Relay(SQLiteStore(file), publisher, sink=sink, settings=_SETTINGS, retry=_RETRIES)


async def _take(_: StoredMessage) -> None:
    """Take a message, and do nothing with it."""


def _refusing(queue: MemoryQueue) -> MemoryBroker:
    """A broker that refuses some orders for good, some for a while, and has no binding for invoices."""
    broker = MemoryBroker(queue)

    def refusal(message: StoredMessage) -> Refusal | str | None:
        if message.type != "order.placed.v1":
            return None
        order = msgspec.json.decode(message.payload, type=OrderPlaced)
        if order.order % 61 == 0:
            reason = f"order {order.order}: the depot {order.items * 1000} does not exist"
            return Refusal(message.position, reason, permanent=True)
        if order.order % 97 == 0:
            return f"order {order.order} is larger than the {order.items} MiB that the broker takes"
        return None

    broker.refuse(refusal)
    broker.unbind("invoice.sent.v1")
    return broker


# -- the warehouse ---------------------------------------------------------------------------------------------------


def _consumer(file: Path, queue: MemoryQueue) -> Consumer[sqlite3.Connection]:
    """Packs a parcel for each order, and fails for some."""
    once = Backoff(max_attempts=2, first=timedelta(seconds=1))
    consumer: Consumer[sqlite3.Connection] = Consumer(
        queue, name="warehouse", begin=lambda: _transaction(file), retry=once
    )
    outbox = Outbox(source="/warehouse")

    @consumer.on(OrderPlaced)
    def pack(order: OrderPlaced, connection: sqlite3.Connection, _: Received) -> None:
        if order.order % 29 == 0:
            raise LookupError(f"no shelf has the {order.items} items of order {order.order}")
        outbox.add(connection, ParcelPacked(order.order, 120 * order.items), key=order.customer)

    return consumer
