"""For your own tests: what was added, whether by the transaction that wrote the data, and what arrives.

    outbox_messages(session).assert_added(OrderCreated, key=order.id)
    assert_same_transaction(session, message, table="orders", where=f"id = {order.id}")
    await run_relay_until_empty(url, memory_sink)

On an async connection the first two must be awaited. `postroad.testing.plugin` is the pytest plugin: the fixture
`memory_sink`, and a test fails whose `add` was never awaited.
"""

from __future__ import annotations

from postroad.testing.arriving import MemorySink, run_relay_until_empty
from postroad.testing.messages import Messages
from postroad.testing.reading import assert_same_transaction, outbox_messages

__all__ = ["MemorySink", "Messages", "assert_same_transaction", "outbox_messages", "run_relay_until_empty"]
