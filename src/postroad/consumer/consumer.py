"""The consumer that users make: its settings, its handlers, and how it is started and stopped."""

from __future__ import annotations

import asyncio
import inspect
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from msgspec.structs import replace

from postroad import events
from postroad.brokers.local import LocalPublisher
from postroad.brokers.registry import Subscription, check_subscriber_settings, subscriber_for, subscriber_settings
from postroad.config import RelaySettings
from postroad.consumer.attempts import Attempts
from postroad.consumer.begin import checked_begin
from postroad.consumer.errors import InboxUnavailable
from postroad.consumer.handler_transaction import HandlerTransaction
from postroad.consumer.local import LocalHandler
from postroad.consumer.model import ConsumerOptions, Summary
from postroad.consumer.probe import check_begin
from postroad.consumer.registry import HandlerRegistry, event_types
from postroad.consumer.retention import InboxRetention, may_come_again_for
from postroad.consumer.run import Run
from postroad.consumer.transactions import Transactions
from postroad.errors import InvalidSetting, PostroadError, StoreUnavailable
from postroad.inbox import Inbox, checked_consumer
from postroad.kinds import duration, whole_number
from postroad.listeners import Listeners
from postroad.retry import Backoff
from postroad.stores.connections.errors import is_transient
from postroad.waiting import cancel_and_wait, connect_or_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from postroad.brokers.base import Subscriber
    from postroad.kinds import Duration
    from postroad.listeners import Listener
    from postroad.received import Received
    from postroad.retry import RetryPolicy
    from postroad.setting import SettingsGroup

__all__ = ["Consumer"]

E = TypeVar("E")
Tx = TypeVar("Tx")
Result = TypeVar("Result", bound="Awaitable[None] | None")

END_SECONDS: Final = 1.0
CLEAN_EVERY: Final = "1h"
MESSAGES_PER_TRANSACTION: Final = whole_number(1, 1000)
DEFAULT_HANDLER_TIMEOUT: Final = "15m"
"""Half of how long RabbitMQ waits for an ack. A message whose handler takes longer than RabbitMQ waits could never be
acked: it would be delivered again without end, and no attempt would be counted.
"""


class Consumer(Generic[Tx]):
    """Handlers for the messages of one queue, each message in a transaction with its effect.

        consumer = Consumer("amqp://localhost", name="inventory", begin=Session.begin)

        @consumer.on(OrderCreated)
        async def reserve(event: OrderCreated, tx: AsyncSession, message: Received) -> None: ...

        asyncio.run(consumer.run())

    Before the handler is called, the transaction is begun and the message recorded in the inbox; when the handler
    returns, the transaction is committed, and then the message acked. What the handler adds to an outbox gets the
    message's correlation id, and its id as the causation id.
    """

    def __init__(
        self,
        source: str | Subscriber | None = None,
        *,
        name: str,
        begin: Callable[[], AbstractAsyncContextManager[Tx] | AbstractContextManager[Tx]],
        message_ttl: Duration | None = None,
        ordering: Literal["key", "none"] = "key",
        concurrency: int = 10,
        messages_per_transaction: int = 1,
        retry: RetryPolicy | None = None,
        retain: Duration | None = "30d",
        handler_timeout: Duration | None = None,
        grace: Duration = "10s",
        inbox: Inbox | None = None,
        listeners: Iterable[Listener] | None = None,
        **broker_settings: Any,
    ) -> None:
        """`source` is the broker's URL; without one the handlers can only run in a relay (`publisher`). Or it is a
        Subscriber, which then has its own settings.

        `broker_settings` are those of the broker's subscriber, checked against its declaration (docs/settings.md lists
        them): for RabbitMQ `queue`, `exchange`, `bindings`, `declare`, `dead_letter_queue`, `prefetch` and others.
        Unless they are given, the broker derives its queue from `name` and its bindings from the types of the handlers.

        `name` is what the inbox knows this consumer by. `begin` gives a context manager that begins a transaction,
        commits at its end and rolls back when it is left by an error; where it is an async one, handlers are async,
        where it is not, they are plain functions and run in threads.

        With `ordering` "key" a key's messages are handled one after the other, and only one process at a time receives
        from the source, the others stand by; with "none" processes share it, and nothing is in order. `concurrency`
        messages are handled at once. `message_ttl` is how long the source keeps a message, where it can be told to.

        With `messages_per_transaction` above 1, up to so many messages that have arrived are handled one after the
        other in one transaction, with one inbox statement, one commit and one ack; 50 make short handlers several times
        as fast. One such transaction runs at a time. When a handler fails, it is rolled back, and its messages are
        handled again, each in a transaction of its own.

        `retry` says when a message whose handler failed is tried again, and when it becomes a dead letter. An async
        handler that takes longer than `handler_timeout` (15 minutes; "0" for no limit) is cancelled, which is a failed
        attempt; sync handlers can't be cancelled and have no limit. `retain` is how long the inbox remembers, None for
        ever; `grace` is how long a consumer that is being stopped waits for its handlers. `listeners` get the
        consumer's events; without any, events are logged.
        """
        self.name = checked_consumer(name)
        keep_order = _choice("ordering", ordering, ("key", "none")) == "key"
        self._source = source
        self._source_settings = _source_settings(source, broker_settings, keep_order=keep_order)
        self._message_ttl = None if message_ttl is None else duration("message_ttl", message_ttl)
        self._retain = None if retain is None else duration("retain", retain)
        self._inbox = inbox or Inbox()
        if type(concurrency) is not int or concurrency < 1:
            raise InvalidSetting(f"concurrency is {concurrency!r}; it must be a whole number, at least 1")
        MESSAGES_PER_TRANSACTION.check("messages_per_transaction", messages_per_transaction)
        grace_seconds = duration("grace", grace).total_seconds()
        self._listeners = Listeners(listeners)
        self._options = ConsumerOptions(self.name, concurrency, keep_order, retry or Backoff(), grace_seconds)
        self._begin = checked_begin(begin)
        self._handlers = HandlerRegistry(self.name, begin, messages_per_transaction=messages_per_transaction)
        self._checks_begin = True
        self._transactions = Transactions(begin, self._inbox.schema, concurrency)
        self._attempts = Attempts(self._transactions, self.name)
        self._limits_handlers = bool(handler_timeout) and duration("handler_timeout", handler_timeout) > timedelta(0)
        limit = duration("handler_timeout", DEFAULT_HANDLER_TIMEOUT if handler_timeout is None else handler_timeout)
        self._transaction = HandlerTransaction(
            self.name,
            self._inbox,
            self._handlers,
            self._transactions,
            self._attempts,
            timeout=limit.total_seconds() or None,
        )
        self._run: Run | None = None
        self._retention: asyncio.Task[None] | None = None

    @property
    def is_async(self) -> bool:
        """Whether the handlers are coroutine functions."""
        return self._handlers.is_async

    @property
    def retry(self) -> RetryPolicy:
        """When a message whose handler failed is tried again."""
        return self._options.retry

    @property
    def unfinished(self) -> int:
        """How many of its handlers run in threads now, also those that were given up."""
        return self._transactions.unfinished

    @property
    def schema(self) -> str:
        """The schema of the inbox's tables."""
        return self._inbox.schema

    def __repr__(self) -> str:
        return f"Consumer(name={self.name!r})"

    # -- handlers ----------------------------------------------------------------------------------------------------

    def on(
        self, event: type[E], /, *, type: str | None = None
    ) -> Callable[[Callable[[E, Tx, Received], Result]], Callable[[E, Tx, Received], Result]]:
        """Call the function with each message of this class's type: the event, the transaction, and the message."""
        types = event_types([event], type)

        def register(function: Callable[[E, Tx, Received], Result]) -> Callable[[E, Tx, Received], Result]:
            self._handlers.add(types, function)
            self._check_limit()
            return function

        return register

    def on_batch(
        self, *events: type[E], type: str | None = None, size: int = 500
    ) -> Callable[
        [Callable[[Sequence[tuple[E, Received]], Tx], Result]], Callable[[Sequence[tuple[E, Received]], Tx], Result]
    ]:
        """Call the function with many messages at once: pairs of event and message, in order, and one transaction.

        A batch is what has arrived, at most `size`; it costs one transaction, one inbox statement and one ack. When it
        fails, its messages are handled one by one, so that one bad message costs only itself.
        """
        types = event_types(events, type)

        def register(
            function: Callable[[Sequence[tuple[E, Received]], Tx], Result],
        ) -> Callable[[Sequence[tuple[E, Received]], Tx], Result]:
            self._handlers.add_batch(types, function, size)
            self._check_limit()
            return function

        return register

    def _check_limit(self) -> None:
        if self._limits_handlers and not self._handlers.is_async:
            raise InvalidSetting(
                f"handler_timeout is given, and the handlers of consumer {self.name!r} are sync: they run in threads, "
                "which can't be cancelled; make them async, or leave handler_timeout out and set time limits where "
                "they wait (statement_timeout, the timeout of an HTTP client)"
            )

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, *, relay: RelaySettings | None = None) -> Summary:
        """Consume until `stop` is called. `retain` is checked against `relay`, the settings of the producer's relay."""
        return await self._consume(relay, until_empty=False)

    async def run_until_empty(self, *, relay: RelaySettings | None = None) -> Summary:
        """Consume until the queue is empty, and end.

        Raises BrokerUnavailable or StoreUnavailable when one of them is unavailable for longer than
        `until_empty_timeout`.
        """
        return await self._consume(relay, until_empty=True)

    def receiving_from(self, source: Subscriber, *, retry: RetryPolicy) -> Consumer[Tx]:
        """The same name, handlers and transactions with another source of messages, for tests."""
        other = copy(self)
        options = replace(self._options, retry=retry)
        # A test may have its transactions inside one of its own, which is rolled back at its end.
        vars(other).update(
            _source=source, _options=options, _retain=None, _run=None, _retention=None, _checks_begin=False
        )
        return other

    async def in_transaction(self, work: Callable[[Tx], Any]) -> Any:
        """Call the function in a transaction of this consumer, in a thread where handlers are plain functions."""
        self._start_transactions()
        try:
            return await self._transactions.call(work)
        finally:
            self._transactions.end()

    def stop(self) -> None:
        """Start nothing more, let handlers end, ack, give back the rest, and end. Call it in the loop's thread."""
        if self._run is not None:
            self._run.stop()

    async def _consume(self, relay: RelaySettings | None, *, until_empty: bool) -> Summary:
        subscriber = self._subscriber()
        relay = relay or RelaySettings()
        limit = relay.seconds("until_empty_timeout") if until_empty else None
        # A subscriber may have `warnings`: events about its settings, such as a password file that all can read.
        for warning in getattr(subscriber, "warnings", ()):
            self._listeners.emit(warning)
        run = self._run = Run(
            self._options,
            subscriber,
            self._handlers,
            self._transaction,
            self._attempts,
            listeners=self._listeners,
            limit=limit,
        )
        try:
            summary = run.summary
            if await self._reach(run, relay, limit):
                self._listeners.emit(events.ConsumerStarted(self.name, types=self._handlers.types))
                summary = await run.run(until_empty=until_empty)
        finally:
            self._run = None
            summary.abandoned = max(summary.abandoned, self._transactions.unfinished)
            await self._end()
        self._listeners.emit(
            events.ConsumerEnded(
                self.name,
                handled=summary.handled,
                duplicates=summary.duplicates,
                failed=summary.failed,
                dead=summary.dead,
                duration_ms=summary.seconds * 1000,
            )
        )
        return summary

    async def _reach(self, run: Run, relay: RelaySettings, limit: float | None) -> bool:
        """Start, and wait for a database that can't be reached yet; False when the consumer was stopped meanwhile."""
        return await connect_or_wait(
            lambda: self._start(relay),
            lambda reason, waited: self._listeners.emit(
                events.ConsumerStoreUnavailable(self.name, reason=reason, waited_s=waited)
            ),
            stopping=run.stopping,
            limit=limit,
        )

    def publisher(self, *, relay: RelaySettings | None = None) -> LocalPublisher:
        """The handlers as a relay's destination: `Relay(store, consumer.publisher(), sink=consumer.name)`."""
        handler = LocalHandler(
            self.name,
            self._handlers,
            self._transaction,
            self._listeners,
            concurrency=self._options.concurrency,
            in_order=self._options.keep_order,
            start=lambda: self._start(relay),
            end=self._end,
        )
        return LocalPublisher(handler)

    def _subscriber(self) -> Subscriber:
        if self._source is None:
            raise InvalidSetting(
                f"consumer {self.name!r} has no broker; give it a URL, Consumer('amqp://host', ...), or run its "
                "handlers in a relay: postroad relay --app"
            )
        if not isinstance(self._source, str):
            return self._source
        subscription = Subscription(
            self.name,
            types=tuple(self._handlers.types),
            in_order=self._options.keep_order,
            batch_size=self._handlers.group_size,
            message_ttl=self._message_ttl,
        )
        return subscriber_for(self._source, subscription, self._source_settings)

    async def _start(self, relay: RelaySettings | None) -> None:
        """Check `begin` and the inbox before the first message. Raises InvalidSetting, NotMigrated and the like, or
        StoreUnavailable.
        """
        self._start_transactions()
        try:
            if self._checks_begin:
                await check_begin(self._transactions, self._begin, self.name)
            await self._transactions.call(lambda tx: self._transactions.within(tx, "open_inbox", self.name, self.name))
        except PostroadError:
            raise
        except InboxUnavailable as outage:
            raise StoreUnavailable(
                f"consumer {self.name!r}: a transaction can't be begun: {outage}", transient=is_transient(outage)
            ) from outage
        except Exception as error:  # some connect only when they are first used
            reason = f"{type(error).__name__}: {error}"
            raise StoreUnavailable(
                f"consumer {self.name!r}: the inbox can't be read: {reason}", transient=is_transient(error)
            ) from error
        if self._retain is not None and self._retention is None:
            retention = InboxRetention(self.name, self._attempts, self._listeners, retain=self._retain)
            retention.check(may_come_again_for(relay or RelaySettings(), self._message_ttl))
            self._retention = asyncio.create_task(retention.run(duration("every", CLEAN_EVERY).total_seconds()))

    def _start_transactions(self) -> None:
        if not self._handlers.types:
            raise InvalidSetting(f"consumer {self.name!r} has no handler; register one: @consumer.on(OrderCreated)")
        self._transactions.start(is_async=self._handlers.is_async)

    async def _end(self) -> None:
        retention, self._retention = self._retention, None
        if retention is not None:
            await cancel_and_wait(retention, seconds=END_SECONDS)
        self._transactions.end()


def _source_settings(
    source: str | Subscriber | None, given: Mapping[str, Any], *, keep_order: bool
) -> SettingsGroup | None:
    """The settings of the broker's subscriber. Refuses those that would have no effect, or no order."""
    own = inspect.signature(Consumer).parameters
    if source is None:
        if given:  # an app whose broker is optional has its settings in any case; its handlers run in a relay
            check_subscriber_settings("a consumer without a source", given, similar=own)
        return None
    if isinstance(source, str):
        return subscriber_settings(source, given, similar=own)
    check_subscriber_settings("a consumer with a Subscriber", given, similar=own)
    for setting, value in given.items():
        if value is not None:  # it is not shown: it may be a password
            raise InvalidSetting(f"{setting} is given beside {source!r}, which has its own; give it to that one")
    if keep_order and getattr(source, "single_active", True) is False:
        raise InvalidSetting(
            f"ordering is 'key', and {source!r} has single_active=False, so a key's messages could be with two "
            "consumers at once; set ordering='none', or single_active=True"
        )
    return None


def _choice(name: str, value: Any, right: Sequence[str]) -> str:
    if value not in right:
        raise InvalidSetting(f"{name} is {value!r}; it must be one of {', '.join(map(repr, right))}")
    return str(value)
