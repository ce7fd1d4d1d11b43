"""For your own tests: what was added, whether one transaction wrote the data and the message, and what arrives.

    outbox_messages(session).assert_added(OrderCreated, key=order.id)
    assert_same_transaction(session, message, table="orders", where=f"id = {order.id}")
    await run_relay_until_empty(url, memory_sink)
    deliver(consumer, OrderCreated(1)).added.assert_added(StockReserved)
    reset_outbox(session)

On an async connection await all of them, and `deliver` where handlers are async. `postroad.testing.plugin` is the
pytest plugin: the fixtures `memory_sink` and `deliver`; and a test that forgot to await `add` fails.
"""

from __future__ import annotations

from postroad.testing.delivery import DeadLetter, Delivered, deliver
from postroad.testing.messages import Messages
from postroad.testing.outbox import assert_same_transaction, outbox_messages, reset_outbox
from postroad.testing.sink import MemorySink, run_relay_until_empty

__all__ = [
    "DeadLetter",
    "Delivered",
    "MemorySink",
    "Messages",
    "assert_same_transaction",
    "deliver",
    "outbox_messages",
    "reset_outbox",
    "run_relay_until_empty",
]
