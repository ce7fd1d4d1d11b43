"""A consumer's handlers in the process that has the messages, a relay's or a web server's: no broker in between, and
the same inbox.

Messages of a type that no handler takes are skipped. A handler that fails refuses its message, and the relay, or the
sender of the request, retries it; the inbox makes sure that a message that comes again has no second effect. While the
database is unavailable no further handler is begun: each would wait for it as long as the first.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from postroad import events
from postroad.consumer.attempts import cut
from postroad.consumer.delivery import handle_group_traced, is_failure
from postroad.consumer.errors import InboxUnavailable, MessageBusy, PayloadUnavailable, TransactionLost
from postroad.consumer.model import Summary
from postroad.consumer.outages import is_outage
from postroad.errors import BrokerUnavailable, Refusal, StoreUnavailable
from postroad.received import Unreadable, received
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from postroad.consumer.handler_transaction import HandlerTransaction
    from postroad.consumer.registry import HandlerRegistry
    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.otel import ProcessSpan, Tracing
    from postroad.received import Received

__all__ = ["LocalHandler"]

T = TypeVar("T")

LAST_SECONDS: Final = 1.0
"""How long handlers that were cancelled are waited for, because the relay ends."""
PAYLOADS: Final = "payload store"
"""The route of messages whose payloads are elsewhere, for when that store is unavailable."""


class _Given(NamedTuple):
    """A message to handle, and its number among those that are handled with it."""

    position: int
    message: Received

    @property
    def key(self) -> str | None:
        return self.message.key


class _Failures(dict[int, Refusal | BrokerUnavailable]):
    """Why messages of one call were not handled, by position."""

    outage: BrokerUnavailable | None = None
    """The database is unavailable, so no further handler is begun."""

    def unavailable(self, error: InboxUnavailable | MessageBusy) -> BrokerUnavailable:
        """The error to raise at the end of the call. If it concerns one message alone, others go on until then."""
        unavailable = BrokerUnavailable(str(error), suspicious=False)
        if is_outage(error):
            self.outage = unavailable
        return unavailable


class LocalHandler:
    """Calls a consumer's handlers with the messages of a `LocalPublisher`, or with those of requests."""

    def __init__(
        self,
        consumer: str,
        handlers: HandlerRegistry,
        transaction: HandlerTransaction,
        listeners: Listeners,
        *,
        concurrency: int,
        in_order: bool,
        tracing: Tracing | None,
        source: str,
        start: Callable[[], Coroutine[Any, Any, None]],
        end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`source` is what spans call the place that messages come from."""
        self.name = consumer
        self._source = source
        self.in_order = in_order
        self.durability = "handled: its handler's transaction is committed, or no handler takes its type"
        self.summary = Summary()
        self.in_flight = 0
        """How many messages are being handled."""
        self._start = start
        self._started = False
        self._starting = asyncio.Lock()
        self._end = end
        self._handlers = handlers
        self._transaction = transaction
        self._listeners = listeners
        self._tracing = tracing
        self._places = asyncio.Semaphore(concurrency)
        self._one_shared = asyncio.Lock()
        """Lanes take turns with shared transactions: two could deadlock on rows that keys don't cover."""

    async def start(self) -> None:
        """Check the consumer's database. Raises BrokerUnavailable; then every call of `handle` checks again."""
        try:
            await self._start()
        except StoreUnavailable as outage:
            raise BrokerUnavailable(str(outage), suspicious=False) from outage
        self._started = True

    async def end(self) -> None:
        """Stop the consumer's tasks and threads."""
        self._started = False
        undoing = asyncio.create_task(self._transaction.undo_all())  # what cancelled handlers have committed
        await asyncio.wait((undoing,), timeout=LAST_SECONDS)
        if undoing.done():
            undoing.exception()  # an outage: then those messages count as handled, as if the process had been killed
        await cancel_and_wait(undoing, seconds=0)
        await self._end()

    async def handle(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Handle the messages that a handler takes: different keys concurrently, those of one key one after the other,
        until one fails; all of them until the database is unavailable.
        """
        if not self._started:
            await self.start()
        types = frozenset(self._handlers.types)
        wanted = [_Given(message.position, received(message)) for message in messages if message.type in types]
        failures = _Failures()
        size = self._handlers.group_size if self._handlers.batch is None else len(wanted)
        if size > 1:
            for at in range(0, len(wanted), size):
                stopped = {each.key for each in wanted if self.in_order and each.position in failures}
                group = [each for each in wanted[at : at + size] if each.key is None or each.key not in stopped]
                await self._handle_group(group, failures)
        else:
            await self._handle_alone(wanted, failures)
        refusals = [each for message in wanted if isinstance(each := failures.get(message.position), Refusal)]
        for failure in failures.values():
            if isinstance(failure, BrokerUnavailable):
                raise BrokerUnavailable(
                    str(failure),
                    confirmed=self._confirmed(messages, failures),
                    refusals=refusals,
                    suspicious=failure.suspicious,
                )
        return refusals

    async def handle_received(self, messages: Sequence[Received]) -> Sequence[Refusal | BrokerUnavailable]:
        """Handle what came in one request: all in one transaction if they are several, or if that fails, each alone.
        Returns why some of them were not handled; all others were, or no handler takes their type.

        Raises BrokerUnavailable.
        """
        if not self._started:
            async with self._starting:
                if not self._started:
                    await self.start()
        types = frozenset(self._handlers.types)
        wanted = [_Given(number, message) for number, message in enumerate(messages) if message.type in types]
        failures = _Failures()
        await self._handle_group(wanted, failures)
        return list(failures.values())

    def _chains(self, messages: Sequence[_Given]) -> Iterable[Sequence[_Given]]:
        """The messages of each key, if they are handled in order; else each message by itself."""
        chains: dict[str | int, list[_Given]] = {}
        for message in messages:
            key = message.key if self.in_order else None
            chains.setdefault(message.position if key is None else key, []).append(message)
        return chains.values()

    def _confirmed(self, messages: Iterable[StoredMessage], failures: Mapping[int, object]) -> set[int]:
        """What was handled, or is of a type that no handler takes; nothing that is behind a failure of its key."""
        stopped: set[str | None] = set()
        confirmed: set[int] = set()
        for message in messages:
            if message.position in failures:
                stopped.add(message.key)
            elif message.key is None or not self.in_order or message.key not in stopped:
                confirmed.add(message.position)
        return confirmed

    async def _run(self, handlers: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all of them. If this is cancelled, they are cancelled too. Those that do not end in time are
        abandoned, because their database does not answer: their messages are not confirmed, and are published again.
        """
        tasks = [asyncio.create_task(each) for each in handlers]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            left = await cancel_and_wait(*tasks, seconds=LAST_SECONDS)
            if abandoned := len(left) + self._transaction.unfinished:
                self._listeners.emit(events.LocalHandlersAbandoned(self.name, handlers=abandoned))
            raise
        return [task.result() for task in tasks]

    async def _handle_group(self, messages: Sequence[_Given], failures: _Failures) -> None:
        """All in one transaction; if that fails, each alone, so that only the one that causes it is refused."""
        if len(messages) > 1 and failures.outage is None:
            given, began = [each.message for each in messages], time.monotonic()
            try:
                async with self._one_shared if self._handlers.batch is None else nullcontext():
                    [new] = await self._run([self._handle_together(given)])
            except BaseException as error:
                if not is_failure(error):
                    raise
                if isinstance(error, InboxUnavailable | MessageBusy) and is_outage(error):
                    failures.unavailable(error)
                else:  # it is raised again for the message that causes it
                    reason = cut(f"{type(error).__name__}: {error}")
                    event = events.GroupFailed(self.name, size=len(messages), reason=reason)
                    self._listeners.emit(event.caused_by(error))
            else:
                for message, first in zip(given, new, strict=True):
                    self._finish(message, began, first=first)
                self._measure(given, new, began)
                return
        await self._handle_alone(messages, failures)

    async def _handle_together(self, messages: Sequence[Received]) -> Sequence[bool]:
        if self._tracing is None:
            return await self._handle_all(messages)
        return await handle_group_traced(self._tracing, self._handle_all, messages, self.name, self._source)

    async def _handle_alone(self, messages: Sequence[_Given], failures: _Failures) -> None:
        """Each in a transaction of its own."""
        await self._run([self._handle_in_order(chain, failures) for chain in self._chains(messages)])

    async def _handle_in_order(self, messages: Sequence[_Given], failures: _Failures) -> None:
        """Handle them until one fails."""
        for message in messages:
            failure = await asyncio.create_task(self._handle(message, failures))  # in a context of its own
            if failure is not None:
                failures[message.position] = failure
                return

    async def _handle(self, given: _Given, failures: _Failures) -> Refusal | BrokerUnavailable | None:
        async with self._places:
            if failures.outage is not None:
                return failures.outage
            if self._tracing is None:
                return await self._call_handler(given, failures, None)
            with self._tracing.process([given.message], self.name, self._source) as span:
                return await self._call_handler(given, failures, span)

    async def _call_handler(
        self, given: _Given, failures: _Failures, span: ProcessSpan | None
    ) -> Refusal | BrokerUnavailable | None:
        position, message = given
        began = time.monotonic()
        try:
            [first] = await self._handle_all([message])
        except (InboxUnavailable, MessageBusy) as waits:
            if span is not None:
                span.end_as("waiting")
            if isinstance(waits, PayloadUnavailable):  # no attempt is counted, and other keys go on
                return Refusal(position, str(waits), route=PAYLOADS, error=waits)
            return failures.unavailable(waits)
        except BaseException as error:
            if not is_failure(error):
                raise
            if span is not None:
                span.fail(error, "lost" if isinstance(error, TransactionLost) else "failed")
            if isinstance(error, TransactionLost):  # and the message may be what breaks the connection
                return BrokerUnavailable(str(error))
            if isinstance(error, Unreadable):
                return Refusal(position, str(error), permanent=True, error=error)
            self._measure([message], [False], began)
            return await self._refused(given, failures, error)
        if span is not None:
            span.end_as("handled" if first else "duplicate")
        self._finish(message, began, first=first)
        self._measure([message], [first], began)
        return None

    async def _handle_all(self, messages: Sequence[Received]) -> Sequence[bool]:
        self.in_flight += len(messages)
        try:
            return await self._transaction.handle(messages)
        finally:
            self.in_flight -= len(messages)

    def _measure(self, messages: Sequence[Received], new: Sequence[bool], began: float) -> None:
        if self._listeners.measure:
            created = [message.time for message, first in zip(messages, new, strict=True) if first]
            self._listeners.processed(self.name, time.monotonic() - began, created)

    def _finish(self, message: Received, began: float, *, first: bool) -> None:
        self.summary.handled += first
        self.summary.duplicates += not first
        if first and self._listeners.wants(events.MessageHandled):
            took = (time.monotonic() - began) * 1000
            self._listeners.emit(events.MessageHandled(self.name, message.id, message.type, duration_ms=took))

    async def _refused(self, given: _Given, failures: _Failures, error: BaseException) -> Refusal | BrokerUnavailable:
        try:
            await self._transaction.undo([given.message])
        except (InboxUnavailable, MessageBusy) as waits:
            return failures.unavailable(waits)
        self.summary.failed += 1
        return Refusal(given.position, cut(f"{type(error).__name__}: {error}"), error=error)
