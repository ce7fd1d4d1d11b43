"""One message, or a batch, inside its transaction: first_time → decode → handler → check. Twice: sync and async.

Whatever the handler adds follows from the message: it gets its correlation id, and its id as the causation id.

A handler that commits its transaction by itself commits the inbox's row too. When it then fails, or is caught by the
check, that row must go, or the next attempt would take the message for one that was processed before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.consumer.transactions import ENDED, Busy, Lost, StoreOut, TransactionEnded
from postroad.correlation import trusted_traceparent
from postroad.message import correlated
from postroad.stores.connections import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from postroad.consumer.attempts import Attempts
    from postroad.consumer.registry import HandlerRegistry
    from postroad.consumer.transactions import Transactions
    from postroad.inbox import FirstTimes, Inbox
    from postroad.received import Received

__all__ = ["HandlerTimedOut", "HandlerTransaction", "following"]


class HandlerTimedOut(Exception):
    """The handler took longer than it may."""


class HandlerTransaction:
    """How a consumer deals with messages."""

    def __init__(
        self,
        consumer: str,
        inbox: Inbox,
        handlers: HandlerRegistry,
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
        self._failed: dict[str, Any] = {}
        """By identity: the transaction in which a handler failed, where the handler may have committed it."""

    @property
    def unfinished(self) -> int:
        """How many handlers run in threads, also those whose tasks were cancelled."""
        return self._transactions.unfinished

    async def one(self, message: Received, *, marked: bool = False) -> bool:
        """Begin, handle, commit; whether it was the first time. `marked`: the beginning of this attempt was noted.

        Raises StoreOut, Busy, Lost, Unreadable, or whatever the handler raised; then nothing is committed, unless the
        handler has done that itself; see `undo`.
        """
        work = self._one_async if self._transactions.is_async else self._one
        first: bool = await self._run(partial(work, message, marked), [message])
        return first

    async def many(self, messages: Sequence[Received]) -> int:
        """The same for a batch, with one inbox statement; how many of them were for the first time."""
        work = self._many_async if self._transactions.is_async else self._many
        first: int = await self._run(partial(work, messages), messages)
        return first

    async def undo(self, messages: Sequence[Received]) -> None:
        """Make sure that messages whose handler failed don't count as processed. Raises StoreOut or Busy."""
        if self._failed:
            await self._undo([message.identity for message in messages])

    async def undo_all(self) -> None:
        """The same for all of them. Raises StoreOut or Busy."""
        await self._undo(list(self._failed))

    async def _undo(self, identities: Sequence[str]) -> None:
        of_transaction: dict[Any, list[str]] = {}
        for identity in identities:
            if identity in self._failed:
                of_transaction.setdefault(self._failed[identity], []).append(identity)
        for transaction, failed in of_transaction.items():
            await self._transactions.undo(transaction, self._consumer, failed)
            for identity in failed:
                self._failed.pop(identity, None)  # another undo may have ended during the await

    async def _run(self, work: Callable[[Any], Any], messages: Sequence[Received]) -> Any:
        try:
            return await self._transactions.run(work)
        except Exception:
            with suppress(StoreOut, Busy):  # it is tried again before anything else is done with the message
                await self.undo(messages)
            raise

    # -- in a transaction --------------------------------------------------------------------------------------------

    async def _one_async(self, message: Received, marked: bool, tx: Any) -> bool:
        try:
            reported = await self._reported(tx)
            noted = await self._note(tx, [message])
            if marked:  # after the inbox, which waits for others no longer than it should
                await self._attempts.ended(tx, message)
        except Exception as error:
            raise _busy(error) from error
        if not noted.new[0]:
            return False
        event = self._handlers.event(message)
        try:
            with following(message):
                await self._in_time(self._handlers.call(event, tx, message))
            if (asked := self._transactions.check(tx, reported, noted.transaction)) is not None:
                await asked
        except BaseException as error:
            self._fail(error, tx, reported, noted, [message])
            raise
        return True

    def _one(self, message: Received, marked: bool, tx: Any) -> bool:
        try:
            reported = self._transactions.reported(tx)
            noted = self._note(tx, [message])
            if marked:
                self._attempts.ended(tx, message)
        except Exception as error:
            raise _busy(error) from error
        if not noted.new[0]:
            return False
        event = self._handlers.event(message)
        try:
            with following(message):
                self._handlers.check_result(self._handlers.call(event, tx, message))
            self._transactions.check(tx, reported, noted.transaction)
        except BaseException as error:
            self._fail(error, tx, reported, noted, [message])
            raise
        return True

    async def _many_async(self, messages: Sequence[Received], tx: Any) -> int:
        try:
            reported = await self._reported(tx)
            noted = await self._note(tx, messages)
        except Exception as error:
            raise _busy(error) from error
        events = self._events(messages, noted.new)
        if not events:
            return 0
        try:
            await self._in_time(self._handlers.call_batch(events, tx))
            if (asked := self._transactions.check(tx, reported, noted.transaction)) is not None:
                await asked
        except BaseException as error:
            self._fail(error, tx, reported, noted, messages)
            raise
        return len(events)

    def _many(self, messages: Sequence[Received], tx: Any) -> int:
        try:
            reported = self._transactions.reported(tx)
            noted = self._note(tx, messages)
        except Exception as error:
            raise _busy(error) from error
        events = self._events(messages, noted.new)
        if not events:
            return 0
        try:
            self._handlers.check_result(self._handlers.call_batch(events, tx))
            self._transactions.check(tx, reported, noted.transaction)
        except BaseException as error:
            self._fail(error, tx, reported, noted, messages)
            raise
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

    async def _reported(self, tx: Any) -> bool | None:
        reported = self._transactions.reported(tx)
        return reported if reported is None or isinstance(reported, bool) else await reported

    def _note(self, tx: Any, messages: Sequence[Received]) -> Any:
        arrived = [(message.id, message.type, message.source) for message in messages]
        return self._inbox.note(tx, arrived, consumer=self._consumer)

    def _events(self, messages: Sequence[Received], new: Sequence[bool]) -> list[tuple[Any, Received]]:
        found = [message for message, first in zip(messages, new, strict=True) if first]
        return [(self._handlers.event(message), message) for message in found]

    def _fail(
        self, error: BaseException, tx: Any, reported: bool | None, noted: FirstTimes, messages: Sequence[Received]
    ) -> None:
        """The handler has failed, or the check. Raises Lost or TransactionEnded where they say more than the error."""
        state = self._transactions.state(tx, reported)
        if state is not State.KEPT:
            new = [message.identity for message, first in zip(messages, noted.new, strict=True) if first]
            self._failed |= dict.fromkeys(new, noted.transaction)
        if isinstance(error, Exception) and not isinstance(error, Lost | TransactionEnded | HandlerTimedOut):
            said = f"{type(error).__name__}: {error}"
            if state is State.LOST:
                raise Lost(said) from error
            if state is State.ENDED:
                raise TransactionEnded(f"{ENDED} ({said})") from error


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
