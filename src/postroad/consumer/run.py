"""One run of a consumer: receives messages, dispatches them, and shuts down cleanly when it is stopped.

- When a session with the broker has ended, what was not started is forgotten: the broker delivers it again. When only
  some sessions end (`revocations`), the others go on.
- A run until the queue is empty gives up when the database or the broker is unavailable for longer than its limit.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.backoff import FIRST_SECONDS
from postroad.brokers.base import Revoked
from postroad.consumer.delivery import DeliveryProcessor
from postroad.consumer.dispatch import Dispatcher
from postroad.consumer.model import Summary
from postroad.consumer.outages import BACKOFF, Outages
from postroad.consumer.reports import Reports
from postroad.consumer.revocations import Revocations
from postroad.errors import BrokerUnavailable, LoginRefused
from postroad.heap import keep_large_blocks
from postroad.waiting import calling, cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroad.brokers.base import Subscriber
    from postroad.consumer.attempts import Attempts
    from postroad.consumer.handler_transaction import HandlerTransaction
    from postroad.consumer.model import ConsumerOptions
    from postroad.consumer.registry import HandlerRegistry
    from postroad.listeners import Listeners
    from postroad.otel import Tracing

__all__ = ["Run"]

LAST_SECONDS: Final = 1.0
"""How long a consumer that ends waits, beyond its grace, for what it has cancelled; and then for the broker."""
LEAST_SECONDS: Final = 0.1


class Run:
    """One run of a consumer. The subscriber is opened and closed here."""

    def __init__(
        self,
        options: ConsumerOptions,
        subscriber: Subscriber,
        handlers: HandlerRegistry,
        transaction: HandlerTransaction,
        attempts: Attempts,
        *,
        listeners: Listeners,
        limit: float | None,
        report_interval: float,
        tracing: Tracing | None = None,
    ) -> None:
        """`limit`: seconds to wait for a database or a broker that is unavailable; None: for ever."""
        self.summary = Summary()
        self.stopping = asyncio.Event()
        self._options = options
        self._subscriber = subscriber
        self._transaction = transaction
        self._listeners = listeners
        self._report_interval = report_interval
        self._processor = DeliveryProcessor(
            options,
            subscriber,
            transaction,
            attempts,
            summary=self.summary,
            listeners=listeners,
            stopping=self.stopping,
            tracing=tracing,
        )
        self._outages = Outages(limit, self.stopping.set, consumer=options.consumer, listeners=listeners)
        self.dispatcher = Dispatcher(
            options,
            subscriber,
            handlers,
            self._processor,
            outages=self._outages,
            listeners=listeners,
            stopping=self.stopping,
        )
        self._revocations = Revocations(options, self.dispatcher, self._processor, listeners)

    async def run(self, *, until_empty: bool) -> Summary:
        """Receive until stopped, or until there is nothing left.

        Raises BrokerUnavailable or StoreUnavailable when one of them is unavailable for longer than the limit.
        """
        keep_large_blocks()
        began = time.monotonic()
        receiving = asyncio.create_task(self._receive(), name=f"postroad consumer {self._options.consumer}")
        ending: list[asyncio.Task[Any]] = [asyncio.create_task(self.stopping.wait())]
        if until_empty:
            ending.append(asyncio.create_task(self._until_empty()))
        reports = Reports(self._options.consumer, self.summary, self._listeners, now=began)
        try:
            with calling(lambda: reports.run_once(time.monotonic()), every=self._report_interval):
                await asyncio.wait((receiving, *ending), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()  # it ends only by an error, or when it has given up
            self.stopping.set()
        finally:
            await cancel_and_wait(receiving, *ending, seconds=LAST_SECONDS)
            await self._finish()
            self.summary.seconds = time.monotonic() - began
        if self._outages.given_up is not None:
            raise self._outages.given_up
        return self.summary

    @property
    def in_flight(self) -> int:
        """How many messages are being processed. From any thread."""
        return sum(len(items) for items in list(self.dispatcher.tasks.values()))

    def stop(self) -> None:
        """Start nothing more, let handlers end, ack, and give back the rest."""
        self.stopping.set()

    async def _receive(self) -> None:
        outages, starting = 0, True
        while True:
            try:
                await self._subscriber.open()
                self._listeners.emit(
                    events.Receiving(self._options.consumer, source=self._subscriber.name, attempts=outages + 1)
                )
                outages, starting = 0, False
                self._outages.end("broker")
                while True:
                    received = await self._subscriber.receive()
                    if isinstance(received, Revoked):
                        self._revocations.begin(received)
                        continue
                    for delivery in received:
                        self.dispatcher.add(delivery)
                    self.dispatcher.hand_out()
            except BrokerUnavailable as outage:
                if starting and isinstance(outage, LoginRefused):
                    raise
                self.dispatcher.forget()
                outages += 1
                wait = self._outages.begin("broker", str(outage), BACKOFF.after(outages))
                if self._outages.given_up is not None:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self.stopping.wait()

    async def _until_empty(self) -> None:
        dispatcher = self.dispatcher
        while True:
            dispatcher.idle.clear()
            if dispatcher.empty:
                with suppress(BrokerUnavailable):
                    if not await self._subscriber.waiting() and not dispatcher.tasks and not dispatcher.parked:
                        return
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SECONDS):
                    await dispatcher.idle.wait()

    # -- ending ------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Wait for what was started, as long as the grace allows; closing the subscriber gives back the rest.

        Where no order is kept, the rest is given back at once, for other consumers. Otherwise they would start with
        messages that come after those that are being handled here.
        """
        self.stopping.set()
        unstarted = self.dispatcher.take_unstarted()
        if not self._options.keep_order:
            with suppress(BrokerUnavailable):
                await self._subscriber.pause()
            self._subscriber.give_back(sorted((item.delivery for item in unstarted), key=lambda each: each.tag))
        late: set[asyncio.Task[None]] = set()
        if self.dispatcher.tasks:
            _, late = await asyncio.wait(self.dispatcher.tasks, timeout=self._options.grace)
        await self._cancel(late)
        await self._revocations.end()
        closing = asyncio.create_task(self._subscriber.close())
        await asyncio.wait((closing,), timeout=LAST_SECONDS)
        if closing.done():
            closing.result()

    async def _cancel(self, late: Collection[asyncio.Task[None]]) -> None:
        """Cancel what has not ended within the grace. A database that does not answer is waited for one second in all;
        then its statements are abandoned, and the broker delivers their messages again.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + LAST_SECONDS
        left = await cancel_and_wait(*late, seconds=LAST_SECONDS)
        unmarking = asyncio.create_task(self._processor.unmark_all())
        await asyncio.wait((unmarking,), timeout=max(LEAST_SECONDS, deadline - now()))
        left |= await cancel_and_wait(unmarking, seconds=0)
        self.summary.abandoned = len(left) + self._transaction.unfinished
        if self.summary.abandoned:
            self._listeners.emit(
                events.HandlersAbandoned(
                    self._options.consumer, handlers=self.summary.abandoned, grace_s=self._options.grace
                )
            )
