"""The warehouse: it ships orders, in the order of each customer, and says so through an outbox of its own.

postroad consume --app examples.roundtrip.warehouse:consumer receives, and
postroad relay --to nats://… --nats-subject 'warehouse.{topic}' publishes what its handler adds.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

from examples.roundtrip.events import OrderPlaced, OrderShipped
from postroad import Consumer, Outbox, Received

Transaction = psycopg.Connection[Any]

TABLES = 'create table parcels (id serial primary key, "order" int not null, customer text not null)'

outbox = Outbox(source="/warehouse")


def begin() -> Transaction:
    """A connection: its `with` block is a transaction."""
    return psycopg.connect(os.environ["WAREHOUSE_DATABASE"])


consumer = Consumer(
    os.environ.get("NATS", "nats://localhost"),
    name="warehouse",
    begin=begin,
    stream="SHOP",
    subject="shop.>",
    takeover_after="3s",
)


@consumer.on(OrderPlaced)
def ship(event: OrderPlaced, tx: Transaction, message: Received) -> None:
    """The parcel and the answer, in the transaction that also records the message as processed."""
    sql = 'insert into parcels ("order", customer) values (%s, %s) returning id'
    ((parcel,),) = tx.execute(sql, (event.order, event.customer))
    outbox.add(tx, OrderShipped(event.order, event.customer, parcel), key=event.customer)
