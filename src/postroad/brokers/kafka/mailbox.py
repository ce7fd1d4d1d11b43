"""Hands over from the client's thread to the event loop: one call of the loop per batch, however many records."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from postroad.brokers.base import Revoked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from postroad.brokers.base import Delivery
    from postroad.errors import PostroadError

__all__ = ["Mailbox"]


class Mailbox:
    """What has arrived and was not received yet. Made in the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._items: deque[Sequence[Delivery] | Revoked] = deque()
        self._adding = threading.Lock()
        """What is put in while others are purged must not be lost."""
        self._end: PostroadError | None = None

    # -- the client's thread -----------------------------------------------------------------------------------------

    def put(self, item: Sequence[Delivery] | Revoked) -> None:
        """Something arrived."""
        with self._adding:
            self._items.append(item)
        self.call(self._arrived.set)

    def revoke(self, sessions: Collection[object], released: Callable[[], None]) -> None:
        """These sessions end. What has arrived of them and was not received is not begun."""
        ending = frozenset(sessions)

        def purge() -> None:
            with self._adding:
                left = [_without(ending, item) for item in self._items]
                self._items.clear()
                self._items.extend(item for item in left if isinstance(item, Revoked) or item)
                self._items.append(Revoked(ending, released))
            self._arrived.set()

        self.call(purge)

    def end(self, outage: PostroadError) -> None:
        """Nothing more will arrive."""
        self._end = self._end or outage
        self.call(self._arrived.set)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the loop, soon; if the loop has ended, nothing waits for it any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- the loop ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many deliveries were not received yet."""
        return sum(len(item) for item in list(self._items) if not isinstance(item, Revoked))

    async def get(self) -> Sequence[Delivery] | Revoked:
        """The next that arrived. Raises what ended the session, at once: what arrived before is delivered again."""
        while True:
            self._arrived.clear()
            if self._end is not None:
                raise self._end
            if self._items:
                return self._items.popleft()
            await self._arrived.wait()


def _without(sessions: Collection[object], item: Sequence[Delivery] | Revoked) -> Sequence[Delivery] | Revoked:
    if isinstance(item, Revoked):
        return item
    return [delivery for delivery in item if delivery.session not in sessions]
