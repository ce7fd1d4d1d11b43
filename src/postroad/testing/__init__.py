"""For your own tests: what was added, whether by the transaction that wrote the data, and what arrives.

    outbox_messages(session).assert_added(OrderCreated, key=order.id)
    assert_same_transaction(session, message, table="orders", where=f"id = {order.id}")
    await run_relay_until_empty(url, memory_sink)
    deliver(consumer, OrderCreated(1)).added.assert_added(StockReserved)
    reset_outbox(session)

On an async connection all must be awaited, and `deliver` where handlers are async. `postroad.testing.plugin` is the
pytest plugin: the fixtures `memory_sink` and `deliver`, and a test fails whose `add` was never awaited.
"""

from __future__ import annotations

from postroad.testing.arriving import MemorySink, run_relay_until_empty
from postroad.testing.delivering import DeadLetter, Delivered, deliver
from postroad.testing.messages import Messages
from postroad.testing.reading import assert_same_transaction, outbox_messages, reset_outbox

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
