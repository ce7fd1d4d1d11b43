"""One attempt to connect for all calls that need a connection: they wait for it together, and share its failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Connecting"]

T = TypeVar("T")


class Connecting(Generic[T]):
    """The attempts of one publisher, one after the other."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._connect = connect
        self._attempt: asyncio.Task[T] | None = None

    async def wait(self) -> T | None:
        """What the attempt that is under way results in, or a new one; None if it was ended. Raises what it raises.

        A call that is cancelled leaves the attempt to the others.
        """
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._connect())
            self._attempt.add_done_callback(_retrieve_exception)
        attempt = self._attempt
        await asyncio.wait((attempt,))
        return None if attempt.cancelled() else attempt.result()

    async def end(self) -> None:
        """End the attempt that is under way."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait((self._attempt,))


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging a failure that no call waits for any more."""
    if not task.cancelled():
        task.exception()
