"""One transaction: inbox → decode → handler → check, for one message or a group.

A handler that commits its transaction by itself commits the inbox rows too. When it then fails, or the check finds out,
the rows of its message and of those behind it must be deleted, or the next attempt would take them for processed.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.codecs.chain import Decoder
from postroad.consumer.errors import (
    HandlerTimedOut,
    InboxUnavailable,
    MessageBusy,
    PayloadUnavailable,
    TransactionEnded,
    TransactionLost,
)
from postroad.consumer.time_limit import TimeLimit
from postroad.consumer.transaction_check import ENDED, check_transaction
from postroad.errors import PayloadsUnavailable
from postroad.message import Correlation
from postroad.stores.connections import State, reported_through, state_through
from postroad.stores.statements import Arrival
from postroad.trace_context import STATE_HEADER, TRACE_HEADER, trusted_context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from postroad.codecs.chain import Undone
    from postroad.consumer.attempts import Attempts
    from postroad.consumer.registry import HandlerRegistry
    from postroad.consumer.transactions import Steps, Transactions
    from postroad.inbox import Inbox
    from postroad.received import Received

__all__ = ["HandlerTransaction", "following"]


class HandlerTransaction:
    """Calls a consumer's handlers, each message or group in one transaction with its inbox rows."""

    def __init__(
        self,
        consumer: str,
        inbox: Inbox,
        handlers: HandlerRegistry,
        transactions: Transactions,
        attempts: Attempts,
        *,
        timeout: float | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """`timeout` is how many seconds a call of an async handler may take, None for any number. `decoder` undoes what
        the producer's codecs did.
        """
        self.decoder = decoder or Decoder()
        self._timeout = timeout
        self._limit = TimeLimit(timeout)
        self._consumer = consumer
        self._inbox = inbox
        self.handlers = handlers
        self._transactions = transactions
        self._attempts = attempts
        self._failed: dict[str, Any] = {}
        """By identity: the transaction in which a handler failed, where the handler may have committed it."""

    def within(self, transactions: Transactions, attempts: Attempts) -> HandlerTransaction:
        """The same handlers in other transactions."""
        return HandlerTransaction(
            self._consumer,
            self._inbox,
            self.handlers,
            transactions,
            attempts,
            timeout=self._timeout,
            decoder=self.decoder,
        )

    @property
    def unfinished(self) -> int:
        """How many handlers run in threads, also those whose tasks were cancelled."""
        return self._transactions.unfinished

    async def handle(self, messages: Sequence[Received], *, marked: bool = False) -> list[bool]:
        """Begin, record the messages in the inbox, call the handlers of those that are new, commit; for each message
        whether it was new.

        `marked`: the attempt at the only message was marked as begun; the mark is removed in the same transaction.
        Raises InboxUnavailable, MessageBusy (also PayloadUnavailable), TransactionLost, Unreadable, or what a handler
        raised. Nothing is committed then, unless a handler did so itself; see `undo`.
        """
        if self._failed:
            await self.undo(messages)
        undone = await self.decoder.undo(messages)  # before the transaction begins: payloads may be elsewhere
        try:
            new: list[bool] = await self._transactions.run(partial(self.steps, undone, marked))
        except Exception:
            with suppress(InboxUnavailable, MessageBusy):  # tried again before anything else is done with the messages
                await self.undo(messages)
            raise
        return new

    def steps(self, undone: Undone, marked: bool, tx: Any) -> Steps:
        """What is done in the transaction: inbox, decode, handlers, check; for each message whether it was new."""
        messages = undone.messages
        arrived = [Arrival(message.identity, message.type) for message in messages]
        try:  # an error here is not the handler's fault
            reported = yield reported_through(tx)  # before the inbox sets PostgreSQL's sign of this transaction
            recorded = yield self._inbox.record(tx, arrived, consumer=self._consumer)
            if marked:  # after the inbox, which waits for other transactions no longer than its lock_timeout
                yield self._attempts.end(tx, messages[0])
        except Exception as error:
            raise MessageBusy(f"{type(error).__name__}: {error}") from error
        new = [message for message, first in zip(messages, recorded.new, strict=True) if first]
        if undone.failures:
            _check_payloads(new, undone.failures)
        calls: list[tuple[Any, ...]] = [  # functions, each with its arguments
            (function, event, tx, message) for message in new for event, function in (self.handlers.decode(message),)
        ]
        if self.handlers.batch is not None and new:
            calls = [(self.handlers.batch, [(event, message) for _, event, _, message in calls], tx)]
        call: Callable[..., Any] = self.handlers.call_sync
        if self._transactions.is_async:
            call = partial(self._limit.call, asyncio.current_task())
        if len(calls) > 1:
            call = partial(_in_own_context, call)
        flush = getattr(tx, "flush", None)  # of a session: its entities may record events only then
        number = 0
        try:
            for number, called in enumerate(calls):
                with following(new[number]) if len(calls) == len(new) else nullcontext():
                    yield call(*called)
                    state = state_through(tx, reported)
                    yield from check_transaction(self._inbox.schema, tx, state, recorded.transaction)
                    if flush is not None:
                        yield flush()
        except BaseException as error:
            # If this handler has committed by itself, it has committed the effects of those before it as well, and
            # their inbox rows must stay.
            self._fail(error, tx, reported, recorded.transaction, new[number:])
            raise
        return recorded.new

    # -- after a failure ---------------------------------------------------------------------------------------------

    def _fail(
        self, error: BaseException, tx: Any, reported: bool | None, transaction: Any, messages: Sequence[Received]
    ) -> None:
        """The handler or the check has failed. Raises TransactionLost or TransactionEnded where the state of the
        connection explains more than the error does.
        """
        state = state_through(tx, reported)
        if state is not State.KEPT:
            self._failed |= dict.fromkeys((message.identity for message in messages), transaction)
        if isinstance(error, Exception) and not isinstance(error, TransactionLost | TransactionEnded | HandlerTimedOut):
            reason = f"{type(error).__name__}: {error}"
            if state is State.LOST:
                raise TransactionLost(reason) from error
            if state is State.ENDED:
                raise TransactionEnded(f"{ENDED} ({reason})") from error

    async def undo(self, messages: Sequence[Received]) -> None:
        """Make sure that messages whose handler failed don't count as processed. Raises InboxUnavailable or
        MessageBusy; call it again then.
        """
        await self._undo([message.identity for message in messages])

    async def undo_all(self) -> None:
        """The same for every message whose handler failed. Raises InboxUnavailable or MessageBusy."""
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


def _check_payloads(messages: Sequence[Received], failures: Mapping[str, Exception]) -> None:
    """Raise why the payload of one of these messages could not be had."""
    for message in messages:
        failure = failures.get(message.identity)
        if isinstance(failure, PayloadsUnavailable):
            raise PayloadUnavailable(str(failure)) from failure
        if failure is not None:
            raise failure


def following(message: Received) -> AbstractContextManager[None]:
    """What is added to an outbox inside this block gets the message's correlation id and trace, and its id as the
    causation id. Handlers of single messages run inside such a block; those of batches open one for each message.
    """
    trace = trusted_context(message.headers.get(TRACE_HEADER), message.headers.get(STATE_HEADER))
    return Correlation(message.correlation_id or message.id, trace, message.id)


def _in_own_context(call: Callable[..., Coroutine[Any, Any, None] | None], *arguments: Any) -> _InContext | None:
    """Call a handler in a context of its own: what it sets there must not reach the next message."""
    context = copy_context()
    called = context.run(call, *arguments)
    return None if called is None else _InContext(context, called)


class _InContext:
    """Awaits a coroutine with each step in this context, as a task would, but in the task that awaits it."""

    def __init__(self, context: Context, coroutine: Coroutine[Any, Any, None]) -> None:
        self._context = context
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = self._context.run(step, value)
            except StopIteration:
                return
            finally:
                value = None  # a traceback that keeps its own error would keep the connection, too
            try:
                step, value = self._coroutine.send, (yield waits_for)
            except BaseException as error:  # it is cancelled
                step, value = self._coroutine.throw, error
