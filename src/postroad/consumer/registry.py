"""The handlers of a consumer: which function handles which type. Checked when they are registered."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.consumer.begin import described, is_async_begin
from postroad.consumer.signatures import check_signature, is_async_function, name_of
from postroad.consumer.upcasts import EVERYWHERE, Upcasts, convert
from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import checked_name, type_name
from postroad.received import Received, Unreadable, decoder_for, is_readable
from postroad.shredded import ShreddedPayload
from postroad.tombstone import Tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.consumer.upcasts import Upcast
    from postroad.received import Empty

__all__ = ["Handled", "HandlerRegistry", "event_types"]

NAMELESS = frozenset({bytes, str, dict, Tombstone, ShreddedPayload})
"""Classes that say nothing about the type of a message."""
_PLURALS: Final[dict[type, str]] = {Tombstone: "tombstones", ShreddedPayload: "erased payloads"}


class Handled(NamedTuple):
    """What a handler takes: the events of a type, its tombstones, or those whose payloads were erased."""

    type: str
    without_content: Empty | None = None

    def __str__(self) -> str:
        return repr(self.type) if self.without_content is None else f"{_PLURALS[self.without_content]} of {self.type!r}"


class HandlerRegistry:
    """One handler for each type, or a single handler of batches for all types."""

    def __init__(
        self, consumer: str, begin: Callable[[], Any] | None = None, *, messages_per_transaction: int = 1
    ) -> None:
        """`begin` makes the handlers' transactions; it must be sync or async as they are."""
        self._consumer = consumer
        self._begin = begin
        self._events: dict[Handled, type] = {}
        self._functions: dict[Handled, Callable[..., Any]] = {}
        self.upcasts = Upcasts(EVERYWHERE)
        """From old types to those that have a handler."""
        self.batch: Callable[..., Any] | None = None
        self.group_size = messages_per_transaction
        """The most messages that share a transaction."""

    @property
    def types(self) -> list[str]:
        """The types that have a handler, and the old ones that are upcast to them."""
        handled = dict.fromkeys(handled.type for handled in self._events)
        return [*handled, *self.upcasts.types(handled)]

    @property
    def events(self) -> dict[str, type]:
        """The types of events that have a handler, and the class that each is decoded into."""
        return {handled.type: cls for handled, cls in self._events.items() if handled.without_content is None}

    @property
    def is_async(self) -> bool:
        """Whether the handlers are coroutine functions: all or none are."""
        return any(map(is_async_function, self._all()))

    def add(self, types: dict[Handled, type], function: Callable[..., Any]) -> None:
        """Register a handler of single messages. Raises InvalidSetting."""
        if self.batch is not None:
            raise InvalidSetting(
                f"consumer {self._consumer!r} has an on_batch handler, which is then the only one, so that the order "
                "of a key's messages can be kept; give it these types too"
            )
        self._register(types, function, batch=False)

    def add_batch(self, types: dict[Handled, type], function: Callable[..., Any], size: int) -> None:
        """Register the handler of batches, which is then the only one. Raises InvalidSetting."""
        if self._functions:
            raise InvalidSetting(
                f"consumer {self._consumer!r} has handlers already; an on_batch handler is the only one, so that the "
                "order of a key's messages can be kept; make another consumer, with a queue and a name of its own"
            )
        if type(size) is not int or size < 1:
            raise InvalidSetting(f"size is {size!r}; it must be a whole number, at least 1")
        if self.group_size > 1:
            raise InvalidSetting(
                f"messages_per_transaction is {self.group_size}, and consumer {self._consumer!r} has an on_batch "
                "handler, whose batches share a transaction in any case; leave it out, and set size of on_batch"
            )
        self._register(types, function, batch=True)
        self.batch = function
        self.group_size = size

    def _register(self, types: dict[Handled, type], function: Callable[..., Any], *, batch: bool) -> None:
        if not callable(function):
            raise InvalidSetting(f"a handler is {function!r}; it must be a function")
        check_signature(function, list(types.values()), batch=batch)
        if (others := self._all()) and is_async_function(others[0]) != is_async_function(function):
            kind = "async" if is_async_function(function) else "sync"
            raise InvalidSetting(
                f"handler {name_of(function)} is {kind} and {name_of(others[0])} is not; all handlers of a consumer "
                "share its transactions, so they must be of one kind"
            )
        for handled in types:
            if handled in self._events:
                raise InvalidSetting(
                    f"consumer {self._consumer!r} has a handler for {handled} already, "
                    f"{name_of(self._functions[handled])}; {name_of(function)} would replace it"
                )
        self._check_begin(function)
        self._events |= types
        self._functions |= dict.fromkeys(types, function)

    def _check_begin(self, function: Callable[..., Any]) -> None:
        is_async = is_async_function(function)
        if self._begin is None or is_async_begin(self._begin) in {None, is_async}:
            return
        kind, needed = ("async def", "an async") if is_async else ("def", "a sync")
        raise InvalidSetting(
            f"handler {name_of(function)} is `{kind}`, and begin is {described(self._begin)}, which gives "
            f"{'a sync' if is_async else 'an async'} context manager; such a handler needs {needed} one"
        )

    def decode(self, message: Received) -> tuple[Any, Callable[..., Any]]:
        """The event in the message, upcast if its type is an old one, and the function that handles it. That of batches
        is called with pairs of event and message, and the transaction; another with event, transaction and message.
        Raises Unreadable.
        """
        handled = Handled(message.type, message.without_content)
        cls = self._events.get(handled)
        if cls is not None and message.erased_key is None:
            try:
                return decoder_for(cls)(message.payload), self._functions[handled]
            except Unreadable as error:
                raise _with_content_type(error, message) from error.__cause__
        steps = self._steps(message)
        type = steps[-1].to if steps else message.type
        handled = Handled(type, message.without_content)
        cls = self._events.get(handled) or self._raw(type, message)
        if cls is None:
            raise Unreadable(
                f"no handler of consumer {self._consumer!r} takes {_wanted(type, message)}; "
                f"it has some for {', '.join(map(str, self._events)) or 'none'}"
            )
        function = self._functions.get(handled) or self._functions[Handled(type)]
        if message.erased_key is not None:
            return ShreddedPayload(message.erased_key), function
        if not steps or message.without_content is not None:
            return decoder_for(cls)(message.payload), function
        event: Any = message.payload
        for step in steps:
            event = step(event)
        return convert(event, cls), function

    def _steps(self, message: Received) -> Sequence[Upcast]:
        """The upcasts from the message's type to one that has a handler; none if it has one itself."""
        if Handled(message.type, message.without_content) in self._events or Handled(message.type) in self._events:
            return ()
        return self.upcasts.steps(message.type, {handled.type for handled in self._events})

    def _raw(self, type: str, message: Received) -> type[Any] | None:
        """A handler for bytes or str also takes messages without content, if no other handler does."""
        cls = self._events.get(Handled(type))
        return cls if message.is_tombstone and not message.is_shredded and cls in {bytes, str} else None

    @staticmethod
    def call_sync(function: Callable[..., Any], *arguments: Any) -> None:
        """Call a sync handler. Refuses an awaitable as its result, which would never run. Raises InvalidSetting."""
        result = function(*arguments)
        if result is not None and inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidSetting(f"a handler that is not `async def` returned {described(result)}; make it `async def`")

    def _all(self) -> list[Callable[..., Any]]:
        return list(self._functions.values())


def _with_content_type(error: Unreadable, message: Received) -> Unreadable:
    """The error, with a hint if the payload does not claim to be JSON."""
    media_type = message.content_type.partition(";")[0].strip().lower()
    if not media_type or media_type.endswith(("/json", "+json")):
        return error
    return Unreadable(f"{error} (its content type is {media_type!r}; a handler for bytes can decode it)")


def _wanted(type: str, message: Received) -> str:
    if message.is_shredded:
        return (
            f"the type {type!r} without its payload, which was erased with the key {message.erased_key!r} "
            f"(@consumer.on(ShreddedPayload, type={type!r}))"
        )
    if not message.is_tombstone:
        return f"the type {type!r}"
    return f"tombstones of the type {type!r} (@consumer.on(Tombstone, type={type!r}))"


def event_types(events: Sequence[type], type: str | None) -> dict[Handled, type]:
    """What a handler of these event classes takes. Tombstone and ShreddedPayload beside others are of their types.

    Raises InvalidSetting.
    """
    if not events:
        raise InvalidSetting("a handler must say which events it takes: @consumer.on(OrderCreated)")
    others = [cls for cls in events if cls not in _PLURALS]
    if type is not None and len(others) > 1:
        raise InvalidSetting(f"type is {type!r} for {len(others)} classes; give each its own with @event")
    found: dict[Handled, Any] = {Handled(name): cls for name, cls in _named(others, type).items()}
    types = [handled.type for handled in found]
    for kind in (cls for cls in events if cls in _PLURALS):
        found |= {Handled(name, kind): kind for name in types or _named([kind], type)}
    return found


def _named(events: Sequence[type], type: str | None) -> dict[str, type]:
    found: dict[str, Any] = {}
    for cls in events:
        if not inspect.isclass(cls) or not is_readable(cls):
            raise InvalidSetting(
                f"a handler can't be given {cls!r}; it must be a dataclass, a msgspec Struct, a pydantic or attrs "
                "model, dict, str, bytes, Tombstone or ShreddedPayload"
            )
        if cls in NAMELESS and type is None:
            raise InvalidSetting(
                f"{cls.__name__} has no type of its own; give one: on({cls.__name__}, type='order.created')"
            )
        try:
            found[checked_name("type", type_name(cls) if type is None else type)] = cls
        except InvalidMessage as error:
            raise InvalidSetting(str(error)) from None
    return found
