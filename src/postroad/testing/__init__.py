"""For your own tests: what was added, whether one transaction wrote the data and the message, and what arrives.

    outbox_messages(session).assert_added(OrderCreated, key=order.id)
    outbox_messages(session).assert_only(OrderCreated, OrderPaid)
    assert deliveries(session, stock, shipping).events == [OrderCreated(1), StockReserved(1)]
    perform(stock, OrderCreated(1), tx=session)
    assert_same_transaction(session, message, table="orders", where=f"id = {order.id}")
    await run_relay_until_empty(url, memory_sink)
    deliver(consumer, OrderCreated(1)).added.assert_added(StockReserved)
    reset_outbox(session)

On an async connection await all of them, and `deliver` and `perform` where handlers are async. The pytest plugin is
`postroad.testing.plugin`: the fixtures `memory_sink` and `deliver`; and a test that forgot to await `add` fails.
"""

from __future__ import annotations

from postroad.testing.deliveries import deliveries
from postroad.testing.delivering import Deliveries, HandledMessage
from postroad.testing.delivery import DeadLetter, Delivered, deliver
from postroad.testing.messages import Messages
from postroad.testing.outbox import assert_same_transaction, outbox_messages, reset_outbox, scheduled_messages
from postroad.testing.performing import perform
from postroad.testing.sink import MemorySink, run_relay_until_empty

__all__ = [
    "DeadLetter",
    "Delivered",
    "Deliveries",
    "HandledMessage",
    "MemorySink",
    "Messages",
    "assert_same_transaction",
    "deliver",
    "deliveries",
    "outbox_messages",
    "perform",
    "reset_outbox",
    "run_relay_until_empty",
    "scheduled_messages",
]
