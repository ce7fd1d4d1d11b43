"""A destination in the relay's own process: an async function that is given each message, or a consumer's handlers.

A handler that raises has refused that message.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from postroad.brokers.base import Durability
from postroad.brokers.registry import Broker
from postroad.errors import BrokerUnavailable, InvalidSetting, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from postroad.message import StoredMessage

__all__ = ["BROKER", "LocalPublisher", "PageHandler"]


class PageHandler(Protocol):
    """What can be given instead of a function: a consumer's handlers, which handle a whole page."""

    @property
    def name(self) -> str: ...

    @property
    def in_order(self) -> bool:
        """Whether it handles the messages of a key in order, as `Publisher.in_order` says. If not, no two messages of a
        call have the same key.
        """
        ...

    @property
    def durability(self) -> str:
        """What has happened to a message when it is confirmed; see `Durability.meaning`."""
        ...

    async def start(self) -> None:
        """Get ready. Raises BrokerUnavailable."""

    async def handle(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Handle the messages; see `Publisher.publish`."""
        ...

    async def end(self) -> None:
        """Close what `start` opened."""


class LocalPublisher:
    """Calls a function with every message, one after the other and each in a context of its own; its return is the
    confirm.
    """

    def __init__(
        self, handler: Callable[[StoredMessage], Awaitable[None]] | PageHandler, *, name: str | None = None
    ) -> None:
        """`name` is what the sink keeps as its destination. Unless given, it is the function's own name, or the
        consumer's: give one to a function that may be renamed.
        """
        self._handler: PageHandler = _OneByOne(handler) if callable(handler) else handler
        if name is not None and not (name and name.isprintable()):
            raise InvalidSetting(f"name is {name!r}; it must be a text without control characters")
        self.name = f"handler {name or self._handler.name}"
        self.destination = f"local:{name or self._handler.name}"
        self.in_order = getattr(self._handler, "in_order", False) is True

    async def open(self) -> Durability:
        await self._handler.start()
        return Durability(self._handler.durability)

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Call the handler for each message; one that fails does not stop those of other keys."""
        return await self._handler.handle(messages)

    async def close(self) -> None:
        await self._handler.end()


class _OneByOne:
    """A function as a PageHandler."""

    durability = "handled: its handler has returned"
    in_order = False
    """It has no inbox: a relay that lost its lane during a call would go on with a key behind its new owner. So a call
    has one message of a key, and the lease is checked before each call.
    """

    def __init__(self, handler: Callable[[StoredMessage], Awaitable[None]]) -> None:
        if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - the method itself is wanted, not whether there is one
        ):
            raise InvalidSetting(f"handler is {handler!r}; it must be an async function that takes a StoredMessage")
        self._handler = handler
        self.name = getattr(handler, "__qualname__", type(handler).__qualname__)

    async def start(self) -> None:
        """There is nothing to start."""

    async def handle(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        refusals: list[Refusal] = []
        confirmed: set[int] = set()
        for message in messages:
            try:
                # A task has a context of its own: a variable that a handler sets is not set for the next message.
                await asyncio.create_task(self._call(message))
                confirmed.add(message.position)
            except BrokerUnavailable as outage:  # how a handler reports an outage
                raise BrokerUnavailable(
                    str(outage), confirmed=confirmed, refusals=refusals, suspicious=outage.suspicious
                ) from outage
            except Exception as error:
                refusals.append(Refusal(message.position, f"{type(error).__name__}: {error}", error=error))
        return refusals

    async def _call(self, message: StoredMessage) -> None:
        await self._handler(message)

    async def end(self) -> None:
        """There is nothing to end."""


def _by_url(url: str, settings: Any) -> NoReturn:
    raise InvalidSetting(
        "to begins with local://, and handlers in this process have no URL; pass LocalPublisher(handler) to Relay, or "
        "give a consumer: postroad relay --app module:name"
    )


BROKER = Broker(name="local", title="handlers in this process", publisher=_by_url)
