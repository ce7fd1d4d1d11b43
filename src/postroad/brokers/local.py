"""A destination in the relay's own process: an async function that is given each message.

A handler that raises has refused that message.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from postroad.errors import BrokerUnavailable, InvalidSetting, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from postroad.message import StoredMessage

__all__ = ["LocalPublisher"]


class LocalPublisher:
    """Hands every message to a function, one after the other, and takes its return for the confirm."""

    def __init__(self, handler: Callable[[StoredMessage], Awaitable[None]]) -> None:
        if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - the method itself is wanted, not whether there is one
        ):
            raise InvalidSetting(f"handler is {handler!r}; it must be an async function that takes a StoredMessage")
        self._handler = handler
        self.name = f"handler {getattr(handler, '__qualname__', type(handler).__qualname__)}"

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Call the handler for each message; one that fails does not stop the others."""
        refusals: list[Refusal] = []
        confirmed = set()
        for message in messages:
            try:
                await self._handler(message)
                confirmed.add(message.position)
            except BrokerUnavailable as outage:  # the handler's own way to say that nothing can be done now
                raise BrokerUnavailable(str(outage), confirmed=confirmed, refusals=refusals) from outage
            except Exception as error:
                refusals.append(Refusal(message.position, f"{type(error).__name__}: {error}"))
        return refusals

    async def close(self) -> None:
        """There is nothing to let go of."""
