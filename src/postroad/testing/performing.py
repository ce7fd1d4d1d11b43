"""Calls one handler with one event, in a test's transaction: no inbox, no retry, and its error reaches the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from postroad.consumer.handler_transaction import following
from postroad.received import received
from postroad.stores.connections.pending import Call, Pending
from postroad.testing.delivery import stored

if TYPE_CHECKING:
    from postroad.consumer import Consumer
    from postroad.stores.connections import AsyncConnection, SyncConnection

__all__ = ["perform"]

_PERFORM: Final = Call("perform", undone="no handler was called by")

AsyncTx = TypeVar("AsyncTx", bound="AsyncConnection")
SyncTx = TypeVar("SyncTx", bound="SyncConnection")


@overload
def perform(consumer: Consumer[AsyncTx], event: Any, /, *, tx: Any) -> Pending[None]: ...
@overload
def perform(consumer: Consumer[SyncTx], event: Any, /, *, tx: Any) -> None: ...
@overload
def perform(consumer: Consumer[Any], event: Any, /, *, tx: Any) -> Any: ...
def perform(consumer: Consumer[Any], event: Any, /, *, tx: Any) -> Pending[None] | None:
    """Call the handler that takes this event, with `tx` as its transaction, and raise what it raises.

    Await it where handlers are async. The event is what `deliver` takes. It is encoded and decoded as on its way
    through a broker, so the handler gets what it would get in production. `tx` may be anything that the handler can
    use, such as a fake. Raises Unreadable if no handler takes the event's type.
    """
    handlers = consumer.in_transactions_of_a_test().handlers
    message = received(stored(event))
    event, function = handlers.decode(message)
    arguments = (event, tx, message) if handlers.batch is None else ([(event, message)], tx)
    if not consumer.is_async:
        with following(message):
            handlers.call_sync(function, *arguments)
        return None

    async def call() -> None:
        with following(message):
            await function(*arguments)

    return Pending(call, _PERFORM, f"consumer {consumer.name}")
