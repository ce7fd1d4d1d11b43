"""One message, or a batch, inside its transaction: first_time → decode → handler. Twice: sync and async.

Whatever the handler adds follows from the message: it gets its correlation id, and its id as the causation id.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.consumer.transactions import Busy
from postroad.correlation import trusted_traceparent
from postroad.message import correlated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from contextlib import AbstractContextManager

    from postroad.consumer.attempts import Attempts
    from postroad.consumer.handlers import Handlers
    from postroad.consumer.transactions import Transactions
    from postroad.inbox import Inbox
    from postroad.received import Received

__all__ = ["HandlerTimedOut", "Handling", "following"]


class HandlerTimedOut(Exception):
    """The handler took longer than it may."""


class Handling:
    """How a consumer deals with messages."""

    def __init__(
        self,
        consumer: str,
        inbox: Inbox,
        handlers: Handlers,
        transactions: Transactions,
        attempts: Attempts,
        *,
        timeout: float | None = None,
    ) -> None:
        """`timeout` is how many seconds a call of an async handler may take, None for any number."""
        self._timeout = timeout
        self._consumer = consumer
        self._inbox = inbox
        self._handlers = handlers
        self._transactions = transactions
        self._attempts = attempts

    @property
    def unfinished(self) -> int:
        """How many handlers run in threads, also those whose tasks were cancelled."""
        return self._transactions.unfinished

    async def one(self, message: Received, *, marked: bool = False) -> bool:
        """Begin, handle, commit; whether it was the first time. `marked`: the beginning of this attempt was noted.

        Raises StoreOut, Busy, Lost, Unreadable, or whatever the handler raised; then nothing is committed.
        """
        work = self._one_async if self._transactions.is_async else self._one
        first: bool = await self._transactions.run(partial(work, message, marked))
        return first

    async def many(self, messages: Sequence[Received]) -> int:
        """The same for a batch, with one inbox statement; how many of them were for the first time."""
        work = self._many_async if self._transactions.is_async else self._many
        first: int = await self._transactions.run(partial(work, messages))
        return first

    # -- in a transaction --------------------------------------------------------------------------------------------

    async def _one_async(self, message: Received, marked: bool, tx: Any) -> bool:
        omen = self._transactions.omen(tx)
        try:
            first = await self._first_time(tx, message)
            if marked:  # after the inbox, which waits for others no longer than it should
                await self._attempts.ended(tx, message)
        except Exception as error:
            raise _busy(error) from error
        if first:
            event = self._handlers.event(message)
            with following(message):
                await self._in_time(self._handlers.call(event, tx, message))
            if (asked := self._transactions.check(tx, omen)) is not None:
                await asked
        return bool(first)

    def _one(self, message: Received, marked: bool, tx: Any) -> bool:
        omen = self._transactions.omen(tx)
        try:
            first = self._first_time(tx, message)
            if marked:
                self._attempts.ended(tx, message)
        except Exception as error:
            raise _busy(error) from error
        if first:
            event = self._handlers.event(message)
            with following(message):
                self._handlers.call(event, tx, message)
            self._transactions.check(tx, omen)
        return bool(first)

    async def _many_async(self, messages: Sequence[Received], tx: Any) -> int:
        omen = self._transactions.omen(tx)
        try:
            answers = await self._first_times(tx, messages)
        except Exception as error:
            raise _busy(error) from error
        events = self._events(messages, answers)
        if events:
            await self._in_time(self._handlers.call_batch(events, tx))
            if (asked := self._transactions.check(tx, omen)) is not None:
                await asked
        return len(events)

    def _many(self, messages: Sequence[Received], tx: Any) -> int:
        omen = self._transactions.omen(tx)
        try:
            answers = self._first_times(tx, messages)
        except Exception as error:
            raise _busy(error) from error
        events = self._events(messages, answers)
        if events:
            self._handlers.call_batch(events, tx)
            self._transactions.check(tx, omen)
        return len(events)

    async def _in_time(self, handler: Awaitable[None]) -> None:
        """Cancel a handler that takes too long: it has failed, even if it hides that it was cancelled."""
        if self._timeout is None:
            return await handler
        try:
            async with asyncio.timeout(self._timeout) as limit:
                await handler
        finally:
            if limit.expired():
                raise HandlerTimedOut(
                    f"the handler took longer than handler_timeout, {self._timeout:g} s, and was cancelled"
                ) from None

    def _first_time(self, tx: Any, message: Received) -> Any:
        return self._inbox.first_time(tx, message.identity, consumer=self._consumer, type=message.type)

    def _first_times(self, tx: Any, messages: Sequence[Received]) -> Any:
        ids = [(message.identity, message.type) for message in messages]
        return self._inbox.first_times(tx, ids, consumer=self._consumer)

    def _events(self, messages: Sequence[Received], answers: Sequence[bool]) -> list[tuple[Any, Received]]:
        new = [message for message, first in zip(messages, answers, strict=True) if first]
        return [(self._handlers.event(message), message) for message in new]


def _busy(error: Exception) -> Busy:
    """What goes wrong while the inbox is asked is not the handler's fault."""
    return Busy(f"{type(error).__name__}: {error}")


def following(message: Received) -> AbstractContextManager[None]:
    """What is added inside this block follows from the message: it gets its correlation id and trace, and its id as the
    causation id. Handlers of single messages run inside such a block; those of batches say themselves what follows
    from what.
    """
    return correlated(
        message.correlation_id or message.id,
        traceparent=trusted_traceparent(message.headers.get("traceparent")),
        causation_id=message.id,
    )
