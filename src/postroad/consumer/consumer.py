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
from postroad.codecs.chain import Decoder
from postroad.config import RelaySettings
from postroad.consumer.attempts import Attempts
from postroad.consumer.begin import checked_begin
from postroad.consumer.errors import InboxUnavailable
from postroad.consumer.handler_transaction import HandlerTransaction
from postroad.consumer.liveness import ConsumerLiveness
from postroad.consumer.local import LocalHandler
from postroad.consumer.model import ConsumerOptions, ConsumerStats, Summary
from postroad.consumer.probe import check_begin
from postroad.consumer.registry import HandlerRegistry, event_types
from postroad.consumer.retention import InboxRetention, may_come_again_for
from postroad.consumer.run import Run
from postroad.consumer.transactions import Transactions
from postroad.errors import InvalidSetting, PostroadError, StoreUnavailable
from postroad.inbox import Inbox, checked_consumer
from postroad.kinds import duration, whole_number
from postroad.listeners import Listeners, MeasuringListener
from postroad.retry import Backoff
from postroad.stores.connections.errors import is_transient
from postroad.waiting import cancel_and_wait, connect_or_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from postroad.brokers.base import Subscriber
    from postroad.codecs.base import Codec
    from postroad.dead_letters import DeadLetterBox
    from postroad.kinds import Duration
    from postroad.listeners import Listener
    from postroad.otel import Tracing
    from postroad.received import Received
    from postroad.retry import RetryPolicy
    from postroad.setting import SettingsGroup

__all__ = ["Consumer"]

E = TypeVar("E")
F = TypeVar("F", bound="Callable[[Any], Any]")
Tx = TypeVar("Tx")
Result = TypeVar("Result", bound="Awaitable[None] | None")

END_SECONDS: Final = 1.0
IN_A_RELAY: Final = "the relay in its process"
IN_A_SERVER: Final = "requests to its process"
SHORTEST_HEARTBEAT: Final = timedelta(milliseconds=100)
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
        heartbeat: Duration | None = "5s",
        inbox: Inbox | None = None,
        codecs: Iterable[Codec] = (),
        report_interval: Duration = "10s",
        listeners: Iterable[Listener] | None = None,
        tracing: Tracing | None = None,
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
        consumer's events; without any, events are logged. Every `report_interval` the consumer reports what it has
        handled. `tracing` makes spans of OpenTelemetry, see `postroad.otel`. `heartbeat` is how often the consumer
        records in the database that it is alive, in a transaction of its own, for `postroad consumers`; None: never.

        `codecs` are those of the producers' outboxes, with their keys and stores of payloads; see `postroad.codecs`.
        Compression is undone without them.

        With `concurrency=1` there is at most one transaction at a time, also for heartbeats and the inbox's retention,
        so `begin` may give the same connection every time. With more, each transaction needs a connection of its own.
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
        self._report_seconds = duration("report_interval", report_interval).total_seconds()
        if not self._report_seconds:
            raise InvalidSetting(f"report_interval is {report_interval!r}; it must be longer than 0")
        self._heartbeat = None if heartbeat is None else _checked_heartbeat(heartbeat)
        self._listeners = Listeners(listeners)
        self.tracing = tracing
        """Makes spans of OpenTelemetry; None: there are none. The command line sets it, unless it is set."""
        self._options = ConsumerOptions(self.name, concurrency, keep_order, retry or Backoff(), grace_seconds)
        self._begin = checked_begin(begin)
        self._handlers = HandlerRegistry(self.name, begin, messages_per_transaction=messages_per_transaction)
        self._checks_begin = True
        self._transactions = Transactions(begin, self._inbox.schema, concurrency)
        # With concurrency=1 every `begin` may give the same connection, so there is never a second transaction.
        self._heartbeats = self._transactions if concurrency == 1 else Transactions(begin, self._inbox.schema, 1)
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
            decoder=Decoder(codecs),
        )
        longest = (limit or duration("handler_timeout", DEFAULT_HANDLER_TIMEOUT)) * messages_per_transaction
        self._longest_delay = longest.total_seconds() if concurrency == 1 else 0.0
        """How long a transaction of handlers may delay a heartbeat, in seconds."""
        self._run: Run | None = None
        self._local: LocalHandler | None = None
        self._phase: Literal["starting", "running", "ended", "failed"] = "starting"
        self._done = Summary()
        """What runs that have ended did."""
        self._retention: asyncio.Task[None] | None = None
        self._liveness: ConsumerLiveness | None = None
        self._listeners.attach(self)

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
        """How many of its threads are at work now, also those whose handlers were given up."""
        return sum(each.unfinished for each in {self._transactions, self._heartbeats})

    @property
    def schema(self) -> str:
        """The schema of the inbox's tables."""
        return self._inbox.schema

    @property
    def retention(self) -> tuple[timedelta | None, timedelta | None]:
        """How long the inbox remembers a message, and how long the source keeps one; None: for ever."""
        return self._retain, self._message_ttl

    @property
    def queue_arguments(self) -> dict[str, Any]:
        """The arguments with which its queue is declared, where its broker has such."""
        return dict(getattr(self._source_settings, "arguments", None) or {})

    @property
    def dead_letter_queue(self) -> str | None:
        """The queue for its dead letters, where its broker has such. Raises InvalidSetting as `run` does."""
        queue: str | None = getattr(self._subscriber(), "dead_letter_queue", None)
        return queue

    def add_listener(self, listener: Listener) -> None:
        """Give events to this listener, too. Call it before the consumer runs."""
        self._listeners.add(listener)
        if isinstance(listener, MeasuringListener):
            listener.attach(self)

    def emit(self, event: events.Event) -> None:
        """Give an event to the consumer's listeners."""
        self._listeners.emit(event)

    def stats(self) -> ConsumerStats:
        """What the consumer has done and knows at this moment. From any thread, at any time."""
        run, local, done = self._run, self._local, replace(self._done)
        for part in (run, local):
            if part is not None:
                done.add(part.summary)
        running = self._phase == "running"
        return ConsumerStats(
            consumer=self.name,
            phase="draining" if running and run is not None and run.stopping.is_set() else self._phase,
            handled=done.handled,
            duplicates=done.duplicates,
            failed=done.failed,
            dead=done.dead,
            in_flight=sum(part.in_flight for part in (run, local) if part is not None),
        )

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

    def upcast(self, type: str, *, to: type[Any] | str) -> Callable[[F], F]:
        """Turn messages of an old type into events of a newer one, for this consumer alone; see `postroad.upcast`."""

        def register(function: F) -> F:
            self._handlers.upcasts.add(type, to, function)
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

    @property
    def types(self) -> Sequence[str]:
        """The types that its handlers take, and the old ones that are upcast to them."""
        return self._handlers.types

    @property
    def event_classes(self) -> Mapping[str, type]:
        """The types of events that have a handler, and the class that the handler gets."""
        return self._handlers.events

    @property
    def keeps_order(self) -> bool:
        """Whether the messages of a key are handled one after the other."""
        return self._options.keep_order

    def in_transactions_of_a_test(self) -> HandlerTransaction:
        """The handlers, for a test that runs the steps in a transaction of its own. Raises InvalidSetting."""
        self._check_handlers()
        transactions = Transactions(self._begin, self._inbox.schema, 1)
        transactions.is_async = self._handlers.is_async
        return self._transaction.within(transactions, Attempts(transactions, self.name))

    def receiving_from(self, source: Subscriber, *, retry: RetryPolicy) -> Consumer[Tx]:
        """The same name, handlers and transactions with another source of messages, for tests."""
        other = copy(self)
        options = replace(self._options, retry=retry)
        # A test may have its transactions inside one of its own, which is rolled back at its end.
        vars(other).update(
            _source=source, _options=options, _retain=None, _run=None, _retention=None, _checks_begin=False,
            _heartbeat=None, _liveness=None,
            _local=None, _done=Summary(),
        )  # fmt: skip
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
        # And it may have `report`, for events that happen while it receives.
        if hasattr(subscriber, "report"):
            subscriber.report = self._listeners.emit
        run = self._run = Run(
            self._options,
            subscriber,
            self._handlers,
            self._transaction,
            self._attempts,
            listeners=self._listeners,
            limit=limit,
            report_interval=self._report_seconds,
            tracing=self.tracing,
        )
        summary = run.summary
        self._phase = "starting"  # it may have ended or failed before
        try:
            if await self._reach(run, relay, limit, subscriber.name):
                self._listeners.emit(events.ConsumerStarted(self.name, types=self._handlers.types))
                summary = await run.run(until_empty=until_empty)
        except Exception:
            self._phase = "failed"
            raise
        finally:
            self._run = None
            self._done.add(summary)
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

    async def _reach(self, run: Run, relay: RelaySettings, limit: float | None, source: str) -> bool:
        """Start, and wait for a database that can't be reached yet; False when the consumer was stopped meanwhile."""
        return await connect_or_wait(
            lambda: self._start(relay, source, run.summary),
            lambda reason, waited: self._listeners.emit(
                events.ConsumerStoreUnavailable(self.name, reason=reason, waited_s=waited)
            ),
            stopping=run.stopping,
            limit=limit,
        )

    def publisher(self, *, relay: RelaySettings | None = None) -> LocalPublisher:
        """The handlers as a relay's destination: `Relay(store, consumer.publisher(), sink=consumer.name)`."""
        return LocalPublisher(self._local_handler("local", IN_A_RELAY, relay))

    def for_requests(self) -> LocalHandler:
        """The handlers for messages that come in requests, see `postroad.asgi.webhook`."""
        return self._local_handler("http", IN_A_SERVER, None)

    def _local_handler(self, source: str, place: str, relay: RelaySettings | None) -> LocalHandler:
        handler = self._local = LocalHandler(
            self.name,
            self._handlers,
            self._transaction,
            self._listeners,
            concurrency=self._options.concurrency,
            in_order=self._options.keep_order,
            tracing=self.tracing,
            source=source,
            start=lambda: self._start(relay, place, handler.summary),
            end=self._end,
        )
        return handler

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

    def dead_letters(self) -> DeadLetterBox:
        """The messages that the consumer has given up, as its broker has them, for operators: see
        `Admin.retry_dead_letters`. It does not connect yet.
        """
        subscriber = self._subscriber()
        if not hasattr(subscriber, "dead_letters"):
            raise InvalidSetting(f"consumer {self.name!r}: {subscriber!r} gives no access to its dead letters")
        box: DeadLetterBox = subscriber.dead_letters()
        return box

    async def _start(self, relay: RelaySettings | None, source: str, summary: Summary) -> None:
        """Check `begin` and the inbox before the first message. Raises InvalidSetting, NotMigrated and the like, or
        StoreUnavailable.
        """
        self._start_transactions()
        try:
            if self._checks_begin:
                await check_begin(self._transactions, self._begin, self.name)
            await self._transactions.call(lambda tx: self._transactions.query_within(tx, "open_inbox", self.name))
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
        self._phase = "running"
        if self._retain is not None and self._retention is None:
            retention = InboxRetention(self.name, self._attempts, self._listeners, retain=self._retain)
            retention.check(may_come_again_for(relay or RelaySettings(), self._message_ttl))
            self._retention = asyncio.create_task(retention.run(duration("every", CLEAN_EVERY).total_seconds()))
        if self._heartbeat is not None and self._liveness is None:
            self._liveness = ConsumerLiveness(
                self.name,
                self._heartbeats,
                source=source,
                summary=summary,
                listeners=self._listeners,
                every=self._heartbeat,
                delayed_by=self._longest_delay,
            )
            self._liveness.start(is_async=self._handlers.is_async)

    def _start_transactions(self) -> None:
        self._check_handlers()
        self._transactions.start(is_async=self._handlers.is_async)

    def _check_handlers(self) -> None:
        if not self._handlers.types:
            raise InvalidSetting(f"consumer {self.name!r} has no handler; register one: @consumer.on(OrderCreated)")

    async def _end(self) -> None:
        if self._phase == "running":
            self._phase = "ended"
        retention, self._retention = self._retention, None
        if retention is not None:
            await cancel_and_wait(retention, seconds=END_SECONDS)
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            await liveness.end()
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


def _checked_heartbeat(heartbeat: Duration) -> float:
    given = duration("heartbeat", heartbeat)
    if not SHORTEST_HEARTBEAT <= given <= timedelta(minutes=5):
        raise InvalidSetting(f"heartbeat is {heartbeat!r}; it must be from 100ms to 5m, or None for no heartbeat")
    return given.total_seconds()


def _choice(name: str, value: Any, right: Sequence[str]) -> str:
    if value not in right:
        raise InvalidSetting(f"{name} is {value!r}; it must be one of {', '.join(map(repr, right))}")
    return str(value)
