"""How long a call of an async handler may take. All handlers of a consumer have the same limit, so the first that began
is the first to reach it, and one timer is enough for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.consumer.errors import HandlerTimedOut

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

__all__ = ["TimeLimit"]


class TimeLimit:
    """The calls that are under way. A task makes one at a time."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds`: None for no limit."""
        self._seconds = seconds
        self._ends_at: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled because their call took too long, and have not ended it yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which the timer is set."""

    async def call(
        self, task: asyncio.Task[Any] | None, handler: Callable[..., Awaitable[None]], *arguments: Any
    ) -> None:
        """Call a handler in this task, the current one, and cancel it if it takes too long: it has failed, even if it
        hides that it was cancelled.
        """
        if self._seconds is None or task is None:
            await handler(*arguments)
            return
        loop = task.get_loop()
        self._ends_at[task] = ends_at = loop.time() + self._seconds
        if self._loop is not loop:  # then no other call is under way; what another loop has left will never end
            self._loop, self._ends_at = loop, {task: ends_at}
            loop.call_at(ends_at, self._cancel_late, loop)
        try:
            await handler(*arguments)
        finally:
            self._ends_at.pop(task, None)
            if task in self._late:
                self._late.remove(task)
                task.uncancel()
                raise HandlerTimedOut(
                    f"the handler took longer than handler_timeout, {self._seconds:g} s, and was cancelled"
                ) from None

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first of the calls that were under way when the timer was set has reached its limit, or has ended."""
        if self._loop is not loop:  # the consumer runs in another loop now
            return
        self._loop = None
        late = [task for task, ends_at in self._ends_at.items() if ends_at <= loop.time()]
        for task in late:
            del self._ends_at[task]
            self._late.add(task)
            task.cancel()
        for ends_at in self._ends_at.values():  # of which the first is the earliest
            self._loop = loop
            loop.call_at(ends_at, self._cancel_late, loop)
            break
