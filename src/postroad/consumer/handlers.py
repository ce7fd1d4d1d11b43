"""Which function deals with which type, and what it is called with. Checked when it is registered."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import checked_name, type_name
from postroad.received import Received, Unreadable, decoder_for, is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Handlers", "event_types"]

BUILTINS = frozenset({bytes, str, dict})


class Handlers:
    """A handler for each type; or one for all of them that takes batches."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._events: dict[str, type] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self.batch: Callable[..., Any] | None = None
        self.batch_size = 1

    @property
    def types(self) -> list[str]:
        """What can be handled."""
        return list(self._events)

    @property
    def is_async(self) -> bool:
        """Whether the functions are coroutine functions: all or none are."""
        return any(map(_is_async, self._all()))

    def add(self, types: dict[str, type], function: Callable[..., Any]) -> None:
        """One message at a time."""
        if self.batch is not None:
            raise InvalidSetting(
                f"consumer {self._consumer!r} has an on_batch handler, which is then the only one, so that the order "
                "of a key's messages can be kept; give it these types too"
            )
        self._note(types, function)
        self._functions |= dict.fromkeys(types, function)

    def add_batch(self, types: dict[str, type], function: Callable[..., Any], size: int) -> None:
        """Many at a time."""
        if self.batch is not None or self._functions:
            raise InvalidSetting(
                f"consumer {self._consumer!r} has handlers already; an on_batch handler is the only one, so that the "
                "order of a key's messages can be kept; make another consumer, with a queue and a name of its own"
            )
        if type(size) is not int or size < 1:
            raise InvalidSetting(f"size is {size!r}; it must be a whole number, at least 1")
        self._note(types, function)
        self.batch = function
        self.batch_size = size

    def _note(self, types: dict[str, type], function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidSetting(f"a handler is {function!r}; it must be a function")
        if (others := self._all()) and _is_async(others[0]) != _is_async(function):
            raise InvalidSetting(
                f"handler {_name(function)} is {'async' if _is_async(function) else 'sync'} and {_name(others[0])} is "
                "not; all handlers of a consumer share its transactions, so they must be of one kind"
            )
        for type in types:
            if type in self._events:
                raise InvalidSetting(f"consumer {self._consumer!r} has a handler for {type!r} already")
        self._events |= types

    def event(self, message: Received) -> Any:
        """The event in the message. Raises Unreadable."""
        cls = self._events.get(message.type)
        if cls is None:
            raise Unreadable(
                f"no handler of consumer {self._consumer!r} takes the type {message.type!r}; "
                f"it has some for {', '.join(map(repr, self._events)) or 'none'}"
            )
        return decoder_for(cls)(message.payload)

    def call(self, event: Any, tx: Any, message: Received) -> Any:
        """Call the handler; an async one gives an awaitable."""
        if self.batch is not None:
            return self.batch([(event, message)], tx)
        return self._functions[message.type](event, tx, message)

    def call_batch(self, events: Sequence[tuple[Any, Received]], tx: Any) -> Any:
        """Call the handler that takes many."""
        assert self.batch is not None  # noqa: S101 - asked before
        return self.batch(events, tx)

    def _all(self) -> list[Callable[..., Any]]:
        return [self.batch] if self.batch is not None else list(self._functions.values())


def event_types(events: Sequence[type], type: str | None) -> dict[str, type]:
    """The types that a handler for these classes takes."""
    if not events:
        raise InvalidSetting("a handler must say which events it takes: @consumer.on(OrderCreated)")
    if type is not None and len(events) > 1:
        raise InvalidSetting(f"type is {type!r} for {len(events)} classes; give each its own with @event")
    found: dict[str, Any] = {}
    for cls in events:
        if not inspect.isclass(cls) or not is_readable(cls):
            raise InvalidSetting(
                f"a handler can't be given {cls!r}; it must be a dataclass, a msgspec Struct, a pydantic or attrs "
                "model, dict, str or bytes"
            )
        if cls in BUILTINS and type is None:
            raise InvalidSetting(
                f"a {cls.__name__} has no type of its own; say it: on({cls.__name__}, type='order.created')"
            )
        try:
            found[checked_name("type", type_name(cls) if type is None else type)] = cls
        except InvalidMessage as error:
            raise InvalidSetting(str(error)) from None
    return found


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted, not whether there is one
    )


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
