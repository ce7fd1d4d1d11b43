"""The shop: it places orders, and notes which of them were shipped.

postroad relay --to nats://… --nats-subject 'shop.{topic}' publishes what it adds, and
postroad consume --app examples.roundtrip.shop:consumer receives what the warehouse says.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

from examples.roundtrip.events import OrderPlaced, OrderShipped
from postroad import Consumer, Outbox, Received

Transaction = psycopg.Connection[Any]

TABLES = """
create table orders (id serial primary key, customer text not null);
create table shipped (id serial primary key, "order" int not null, customer text not null, parcel int not null)
"""

outbox = Outbox(source="/shop")


def place(connection: Transaction, customer: str) -> int:
    """The order and its event, in one transaction."""
    with connection.transaction():
        ((order,),) = connection.execute("insert into orders (customer) values (%s) returning id", (customer,))
        outbox.add(connection, OrderPlaced(order, customer), key=customer)
    return int(order)


def begin() -> Transaction:
    """A connection: its `with` block is a transaction."""
    return psycopg.connect(os.environ["SHOP_DATABASE"])


consumer = Consumer(
    os.environ.get("NATS", "nats://localhost"),
    name="shop",
    begin=begin,
    stream="WAREHOUSE",
    subject="warehouse.>",
    takeover_after="3s",
)


@consumer.on(OrderShipped)
def note(event: OrderShipped, tx: Transaction, message: Received) -> None:
    sql = 'insert into shipped ("order", customer, parcel) values (%s, %s, %s)'
    tx.execute(sql, (event.order, event.customer, event.parcel))
