"""Delivers what a test has added to consumers, in the test's own transaction, which is never committed.

The rules:

- The consumers' own steps run: inbox, codecs, decoding, handler, check. Only the transaction is the test's, and each
  attempt is in a savepoint of it.
- What a handler adds is delivered, too, until nothing is left. Time jumps to the next retry or scheduled message.
- Nothing here commits, opens a connection, or waits.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, overload

from postroad.consumer.transactions import run_steps, run_steps_async
from postroad.errors import InvalidSetting
from postroad.kinds import duration
from postroad.stores.connections.kinds import adapter_for
from postroad.stores.connections.pending import Call, Pending
from postroad.testing.delivering import EPOCH, MICROSECOND, Deliveries, Run
from postroad.testing.savepoint import inside_transaction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from postroad.consumer import Consumer
    from postroad.stores.connections import AsyncConnection, SyncConnection

__all__ = ["deliveries"]

MOST: Final = 1000
_DELIVER: Final = Call("deliveries", undone="nothing was delivered to")


@overload
def deliveries(
    connection: SyncConnection,
    /,
    *consumers: Consumer[Any],
    until: datetime | timedelta | str | None = ...,
    most: int = ...,
) -> Deliveries: ...
@overload
def deliveries(
    connection: AsyncConnection,
    /,
    *consumers: Consumer[Any],
    until: datetime | timedelta | str | None = ...,
    most: int = ...,
) -> Pending[Deliveries]: ...
def deliveries(
    connection: Any, /, *consumers: Consumer[Any], until: datetime | timedelta | str | None = None, most: int = MOST
) -> Deliveries | Pending[Deliveries]:
    """Deliver the messages that this connection sees to the handlers of these consumers, in its own transaction, until
    nothing is left; await it on an async connection. Nothing is committed, so roll back at the end of the test.

    A handler gets the connection as its transaction, and each attempt has a savepoint. Retries and scheduled messages
    are not waited for: time jumps to them, but not beyond `until`, a moment, or a length of time from now. Raises
    AssertionError after more than `most` attempts, or when a handler ends the transaction; NoTransaction and the like
    as `Outbox.add` does; InvalidSetting.
    """
    cls: type = type(connection)
    adapter = adapter_for(cls)
    _check(consumers, most, is_async=adapter.is_async, cls=cls)
    started = (datetime.now(UTC) - EPOCH) // MICROSECOND
    run = Run(adapter, connection, consumers, started=started, until=_moment(until, started), most=most)
    if adapter.is_async:
        names = ", ".join(consumer.name for consumer in consumers)
        return Pending(lambda: _deliver_async(run), _DELIVER, f"consumer {names}")
    found: Deliveries = run_steps(inside_transaction(adapter, connection, run.steps()))
    return found


async def _deliver_async(run: Run) -> Deliveries:
    found: Deliveries = await run_steps_async(inside_transaction(run.adapter, run.connection, run.steps()))
    return found


# -- what deliveries is given ----------------------------------------------------------------------------------------


def _check(consumers: Sequence[Any], most: int, *, is_async: bool, cls: type) -> None:
    if not consumers:
        raise InvalidSetting("deliveries has no consumer; say who gets the messages: deliveries(session, consumer)")
    names: set[str] = set()
    schemas = {consumer.schema for consumer in consumers if hasattr(consumer, "schema")}
    for consumer in consumers:
        if not hasattr(consumer, "in_transactions_of_a_test"):
            raise InvalidSetting(
                f"deliveries got {consumer!r:.80} for a consumer; it takes Consumers, after the session"
            )
        if consumer.name in names:
            raise InvalidSetting(
                f"deliveries got two consumers named {consumer.name!r}, and the inbox would take what one of them has "
                "handled for handled by the other; give each a name of its own"
            )
        names.add(consumer.name)
        if consumer.types and consumer.is_async != is_async:
            handlers, needed = ("async", "an async") if consumer.is_async else ("sync", "a sync")
            raise InvalidSetting(
                f"consumer {consumer.name!r} has {handlers} handlers, and {cls.__name__} is "
                f"{'an async' if is_async else 'a sync'} connection; pass {needed} one, which they can use"
            )
    if len(schemas) > 1:
        raise InvalidSetting(f"these consumers have inboxes in several schemas, {', '.join(sorted(schemas))}; use one")
    if type(most) is not int or most < 1:
        raise InvalidSetting(f"most is {most!r}; it must be a whole number, at least 1")


def _moment(until: Any, started: int) -> int | None:
    if until is None:
        return None
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise InvalidSetting(f"until is {until!r}, which has no time zone; give one: datetime.now(UTC)")
        return (until - EPOCH) // MICROSECOND
    return started + duration("until", until) // MICROSECOND
