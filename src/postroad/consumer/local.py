"""A consumer's handlers in the relay's own process: no broker in between, and the same inbox.

What the log has and no handler takes is passed over. A handler that fails has refused its message, and the relay does
with it what it does with all refusals; the inbox makes sure that what was committed has no second effect.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad import events
from postroad.consumer.attempts import cut
from postroad.consumer.transactions import Busy, Lost, StoreOut
from postroad.errors import BrokerUnavailable, Refusal, StoreUnavailable
from postroad.listeners import LogListener, tell
from postroad.received import Unreadable, received
from postroad.waiting import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from postroad.consumer.registry import HandlerRegistry
    from postroad.consumer.transaction import HandlerTransaction
    from postroad.message import StoredMessage
    from postroad.received import Received

__all__ = ["LocalHandler"]

T = TypeVar("T")

LAST_SECONDS: Final = 1.0
"""How long handlers that were cancelled are waited for, because the relay ends."""


class LocalHandler:
    """What `LocalPublisher` hands its messages to."""

    def __init__(
        self,
        consumer: str,
        handlers: HandlerRegistry,
        handling: HandlerTransaction,
        *,
        concurrency: int,
        start: Callable[[], Coroutine[Any, Any, None]],
        end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.name = consumer
        self._start = start
        self._started = False
        self._end = end
        self._handlers = handlers
        self._handling = handling
        self._slots = asyncio.Semaphore(concurrency)

    async def start(self) -> None:
        """Make sure that the database is there; it is asked for again by every call until it is."""
        try:
            await self._start()
        except StoreUnavailable as out:
            raise BrokerUnavailable(str(out), suspicious=False) from out
        self._started = True

    async def end(self) -> None:
        """Let go of everything."""
        self._started = False
        await self._end()

    async def handle(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Handle side by side those that a handler takes: no two of them have the same key."""
        if not self._started:
            await self.start()
        wanted = [message for message in messages if message.type in self._handlers.types]
        if self._handlers.batch is not None and len(wanted) > 1 and all(await self._ended([self._at_once(wanted)])):
            return []
        answers = await self._ended(map(self._one, wanted))
        refusals = [answer for answer in answers if isinstance(answer, Refusal)]
        for answer in answers:
            if isinstance(answer, BrokerUnavailable):
                done = [message for message, each in zip(wanted, answers, strict=True) if each is None]
                passed_over = [message for message in messages if message.type not in self._handlers.types]
                confirmed = {message.position for message in [*done, *passed_over]}
                raise BrokerUnavailable(
                    str(answer), confirmed=confirmed, refusals=refusals, suspicious=answer.suspicious
                )
        return refusals

    async def _ended(self, handlers: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """What each of them gives. When this is cancelled, they are; and those that don't end are left to themselves,
        for their database may have gone silent. Their messages are not confirmed, so they come again.
        """
        tasks = [asyncio.create_task(each) for each in handlers]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            left = await cancelled(*tasks, seconds=LAST_SECONDS)
            if abandoned := len(left) + self._handling.unfinished:
                tell(events.LocalHandlersAbandoned(self.name, handlers=abandoned))
            raise
        return [task.result() for task in tasks]

    async def _at_once(self, messages: Sequence[StoredMessage]) -> bool:
        """All in one transaction. False: each must be asked alone, so that one is refused and not all."""
        try:
            await self._handling.many([received(message) for message in messages])
        except Exception:  # what went wrong is said of the one that it goes wrong with
            return False
        return True

    async def _one(self, message: StoredMessage) -> Refusal | BrokerUnavailable | None:
        async with self._slots:
            began, given = time.monotonic(), received(message)
            try:
                await self._handling.undo([given])
                first = await self._handling.one(given)
            except (StoreOut, Busy) as out:
                return BrokerUnavailable(str(out), suspicious=False)
            except Lost as lost:  # and the message may be what breaks the connection
                return BrokerUnavailable(str(lost))
            except Unreadable as error:
                return Refusal(message.position, str(error), permanent=True)
            except Exception as error:
                return await self._refused(message.position, given, error)
            if first and LogListener().wants(events.MessageHandled):
                took = (time.monotonic() - began) * 1000
                tell(events.MessageHandled(self.name, str(message.id), message.type, duration_ms=took))
            return None

    async def _refused(self, position: int, message: Received, error: Exception) -> Refusal | BrokerUnavailable:
        try:
            await self._handling.undo([message])
        except (StoreOut, Busy) as out:
            return BrokerUnavailable(str(out), suspicious=False)
        return Refusal(position, cut(f"{type(error).__name__}: {error}"))
