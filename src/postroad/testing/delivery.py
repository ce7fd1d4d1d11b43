"""Hands events to a consumer's handlers without a broker. The consumer's own code does the rest: inbox, transactions,
attempts, dead letters; only the queue is in memory, and retries happen at once.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

from postroad.brokers.cloudevents import unwrap
from postroad.brokers.memory import MemoryQueue
from postroad.message import Message, StoredMessage, encode
from postroad.stores.connections.pending import Call, Pending
from postroad.testing.messages import Messages
from postroad.testing.outbox import outbox_messages
from postroad.testing.running import run_in_thread

if TYPE_CHECKING:
    from postroad.consumer import Consumer
    from postroad.errors import Refusal
    from postroad.received import Received
    from postroad.retry import RetryPolicy
    from postroad.stores.connections import AsyncConnection, SyncConnection

__all__ = ["DeadLetter", "Delivered", "deliver", "stored"]

_DELIVER: Final = Call("deliver", undone="nothing was delivered to")
SOURCE: Final = "/postroad.testing"
WITHIN: Final = 60.0

AsyncTx = TypeVar("AsyncTx", bound="AsyncConnection")
SyncTx = TypeVar("SyncTx", bound="SyncConnection")


class DeadLetter(msgspec.Struct, frozen=True):
    """A message whose handler failed too often, or that can't be read."""

    message: Received
    reason: str
    """Why its last attempt failed."""
    consumer: str = ""
    """The consumer whose dead-letter queue it would be in."""
    error: Exception | None = None
    """What its last attempt raised, in `deliveries`."""


class Delivered(msgspec.Struct, frozen=True):
    """The outcome of one `deliver`."""

    handled: int
    """Messages whose handler returned, and whose transaction was committed."""
    duplicates: int
    """Messages that had been processed before."""
    failed: int
    """Attempts that failed."""
    dead: list[DeadLetter]
    """Messages that would be in the dead-letter queue now."""
    added: Messages
    """What was added to the outbox and committed meanwhile."""

    @property
    def attempts(self) -> int:
        """How often handlers were called, for all messages together."""
        return self.handled + self.failed


@overload
def deliver(consumer: Consumer[AsyncTx], /, *events: Any, within: float = ...) -> Pending[Delivered]: ...
@overload
def deliver(consumer: Consumer[SyncTx], /, *events: Any, within: float = ...) -> Delivered: ...
@overload
def deliver(consumer: Consumer[Any], /, *events: Any, within: float = ...) -> Any: ...
def deliver(consumer: Consumer[Any], /, *events: Any, within: float = WITHIN) -> Delivered | Pending[Delivered]:
    """Hand these events to the consumer's handlers, with its own transactions and inbox, and return the outcome.

    Await it where handlers are async. An event is anything that can be added to an outbox, a `Message` with its key,
    headers or id, or a message that was read from an outbox. A handler that fails is called again at once, as often as
    the consumer's `retry` allows. Transactions are the consumer's own: they don't see what a test has not committed.
    Raises TimeoutError when the messages are not processed `within` so many seconds.
    """
    if consumer.is_async:
        return Pending(lambda: _deliver(consumer, events, within), _DELIVER, f"consumer {consumer.name}")
    return run_in_thread(_deliver(consumer, events, within))


async def _deliver(consumer: Consumer[Any], events: tuple[Any, ...], within: float) -> Delivered:
    queue = MemoryQueue()
    for position, event in enumerate(events, start=1):
        queue.put_stored(stored(event, position))
    twin = consumer.receiving_from(queue, retry=_AtOnce(consumer.retry))
    try:
        async with asyncio.timeout(within):
            before = {each.id for each in await _log(twin)}
            summary = await twin.run_until_empty()
            added = Messages(each for each in await _log(twin) if each.id not in before)
    except TimeoutError:
        raise TimeoutError(
            f"consumer {consumer.name!r} has not processed these messages within {within:g} s; its log says what it "
            "waits for; does the test hold a transaction open that locks what the handlers write?"
        ) from None
    return Delivered(
        handled=summary.handled,
        duplicates=summary.duplicates,
        failed=summary.failed,
        dead=[DeadLetter(unwrap(each), notes["postroad-reason"], consumer.name) for each, notes in queue.dead],
        added=added,
    )


async def _log(consumer: Consumer[Any]) -> Messages:
    read: Messages = await consumer.in_transaction(lambda tx: outbox_messages(tx, schema=consumer.schema))
    return read


def stored(event: Any, position: int = 1) -> StoredMessage:
    """The event as it would stand in the log."""
    if isinstance(event, StoredMessage):
        return event
    message = event if isinstance(event, Message) else Message(event)
    return encode(message, SOURCE).stored(position, datetime.now(UTC))


class _AtOnce:
    """The consumer's own policy, without its pauses."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        """No time, or None when the message is dead."""
        return None if self._policy.retry_in(attempts, refusal) is None else timedelta(0)
