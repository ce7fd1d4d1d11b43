"""Runs a relay within a test, from a database to a broker in memory."""

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
    """A broker in memory. `messages` are those that arrived: a list with `assert_added`."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Messages = Messages()


async def run_relay_until_empty(
    database: str | Store, to: Publisher, *, sink: str = "tests", schema: str = DEFAULT_SCHEMA
) -> Summary:
    """Publish all that is committed, and return the relay's summary. `database` is a URL, or a store.

    A sink remembers how far it has come: a second call publishes what was added since.
    """
    store = store_for(database, schema=schema) if isinstance(database, str) else database
    return await Relay(store, to, sink=sink).run_until_empty()
