"""Carrying what was committed to a broker in memory, within a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.memory import MemoryBroker
from postroad.config import DEFAULT_SCHEMA
from postroad.relay.relay import Relay
from postroad.stores import store_for
from postroad.testing.messages import Messages

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher
    from postroad.relay.summary import Summary
    from postroad.stores.base import Store

__all__ = ["MemorySink", "run_relay_until_empty"]


class MemorySink(MemoryBroker):
    """A broker in memory. `messages` is what arrived: a list, and `assert_added` asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Messages = Messages()


async def run_relay_until_empty(
    database: str | Store, to: Publisher, *, sink: str = "tests", schema: str = DEFAULT_SCHEMA
) -> Summary:
    """Carry all that is committed, and say what was done. `database` is a URL, or a store.

    A sink remembers how far it has come: a second call carries what was added since.
    """
    store = store_for(database, schema=schema) if isinstance(database, str) else database
    return await Relay(store, to, sink=sink).run_until_empty()
