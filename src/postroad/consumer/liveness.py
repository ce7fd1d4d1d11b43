"""A running consumer's row in the database: that it is alive, where it runs, and what it has done so far.

The row is for operators alone: nothing that a consumer does depends on it, and a heartbeat that fails delays no
message. It is written in transactions of the user's own `begin`, the only access to the database that a consumer has,
but not in the threads of the handlers: a consumer whose handlers are all busy is alive.

With `concurrency=1` that `begin` may give the same connection every time, so a heartbeat waits until the transaction of
the handlers has ended. It counts for as much longer as the handlers that share one may take: a busy consumer is not
taken for dead, and a dead one is noticed later. PostgreSQL lets no heartbeat count for more than an hour.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.consumer.errors import InboxUnavailable, MessageBusy
from postroad.errors import PostroadError
from postroad.message import new_id
from postroad.safe_text import without_passwords
from postroad.version import __version__
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from postroad.consumer.model import Summary
    from postroad.consumer.transactions import Transactions
    from postroad.listeners import Listeners
    from postroad.stores.statements import Statements

__all__ = ["ConsumerLiveness"]

BEATS_MISSED: Final = 4
"""A consumer counts as dead when it has sent no heartbeat for this many intervals, and no handlers can delay one."""

KEPT: Final = timedelta(days=7)
"""How long the row of a consumer that died is kept."""

END_SECONDS: Final = 1.0
"""How long a consumer that ends waits until its row is deleted; otherwise the row stays, as that of a dead one."""

LONGEST_SOURCE: Final = 250
"""Characters, so that they are at most as many bytes as the column takes."""


class ConsumerLiveness:
    """Keeps the row of one run of a consumer."""

    def __init__(
        self,
        consumer: str,
        transactions: Transactions,
        *,
        source: str,
        summary: Summary,
        listeners: Listeners,
        every: float,
        delayed_by: float = 0.0,
    ) -> None:
        """`source` is what it receives from; `summary` is read at each heartbeat; `every` is in seconds. Where
        `transactions` are also those of the handlers, one may delay a heartbeat by `delayed_by` seconds.
        """
        self.instance = new_id()
        self._consumer = consumer
        self._transactions = transactions
        self._source = without_passwords(source)[:LONGEST_SOURCE]
        self._summary = summary
        self._listeners = listeners
        self._every = every
        self._valid_for = every * BEATS_MISSED + delayed_by
        self._failing = False
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, *, is_async: bool) -> None:
        """Send heartbeats from now on, in transactions of this kind."""
        self._transactions.start(is_async=is_async)
        self._task = asyncio.create_task(self._run(), name=f"postroad consumer {self._consumer} liveness")

    async def run_once(self) -> None:
        """Send one heartbeat."""
        await self._transactions.query_alone("consumer_heartbeat", values_for=self._values)

    async def forget_dead(self) -> None:
        """Delete the rows of consumers that died long ago."""
        await self._transactions.query_alone(
            "forget_consumers",
            values_for=lambda statements: (self._consumer, statements.interval(KEPT.total_seconds())),
        )

    async def end(self) -> None:
        """Delete the row, if the database answers in time. Otherwise it is kept, as that of a consumer that died."""
        if self._task is not None:
            now = asyncio.get_running_loop().time
            deadline = now() + END_SECONDS
            self._ending.set()  # a heartbeat that is being sent may end: not every driver can be cancelled cleanly
            done, _ = await asyncio.wait((self._task,), timeout=END_SECONDS)
            await cancel_and_wait(self._task, seconds=0)
            if done and not self._failing:
                ended = self._transactions.query_alone("consumer_ended", self._consumer, str(self.instance))
                ending = asyncio.create_task(ended)
                await asyncio.wait((ending,), timeout=max(0.0, deadline - now()))
                if ending.done():
                    ending.exception()  # it was asked for; nothing else is to be done about it
                await cancel_and_wait(ending, seconds=0)
        self._transactions.end()

    async def _run(self) -> None:
        forgotten = False
        while not self._ending.is_set():
            try:
                await self.run_once()
                if not forgotten:
                    await self.forget_dead()
                self._failing, forgotten = False, True
            except (InboxUnavailable, MessageBusy, PostroadError) as error:
                if not self._failing:  # once, because an outage is logged by whatever needs the database
                    self._listeners.emit(events.HeartbeatFailed(self._consumer, reason=str(error)))
                self._failing = True
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._ending.wait()

    def _values(self, statements: Statements) -> tuple[Any, ...]:
        done = self._summary
        alive = statements.interval(self._valid_for)
        place = (socket.gethostname()[:LONGEST_SOURCE], os.getpid(), __version__, self._source)
        numbers = (done.handled, done.duplicates, done.failed, done.dead)
        return (self._consumer, str(self.instance), *place, alive, *numbers)
