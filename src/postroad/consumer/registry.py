"""The handlers of a consumer: which function handles which type. Checked when they are registered."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from postroad.consumer.begin import described, is_async_begin
from postroad.consumer.signatures import check_signature, is_async_function, name_of
from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import checked_name, type_name
from postroad.received import Received, Unreadable, decoder_for, is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["HandlerRegistry", "event_types"]

BUILTINS = frozenset({bytes, str, dict})


class HandlerRegistry:
    """One handler for each type, or a single handler of batches for all types."""

    def __init__(
        self, consumer: str, begin: Callable[[], Any] | None = None, *, messages_per_transaction: int = 1
    ) -> None:
        """`begin` makes the handlers' transactions; it must be sync or async as they are."""
        self._consumer = consumer
        self._begin = begin
        self._events: dict[str, type] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self.batch: Callable[..., Any] | None = None
        self.group_size = messages_per_transaction
        """The most messages that share a transaction."""

    @property
    def types(self) -> list[str]:
        """The types that have a handler."""
        return list(self._events)

    @property
    def is_async(self) -> bool:
        """Whether the handlers are coroutine functions: all or none are."""
        return any(map(is_async_function, self._all()))

    def add(self, types: dict[str, type], function: Callable[..., Any]) -> None:
        """Register a handler of single messages. Raises InvalidSetting."""
        if self.batch is not None:
            raise InvalidSetting(
                f"consumer {self._consumer!r} has an on_batch handler, which is then the only one, so that the order "
                "of a key's messages can be kept; give it these types too"
            )
        self._register(types, function, batch=False)
        self._functions |= dict.fromkeys(types, function)

    def add_batch(self, types: dict[str, type], function: Callable[..., Any], size: int) -> None:
        """Register the handler of batches, which is then the only one. Raises InvalidSetting."""
        if self.batch is not None or self._functions:
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

    def _register(self, types: dict[str, type], function: Callable[..., Any], *, batch: bool) -> None:
        if not callable(function):
            raise InvalidSetting(f"a handler is {function!r}; it must be a function")
        check_signature(function, list(types.values()), batch=batch)
        if (others := self._all()) and is_async_function(others[0]) != is_async_function(function):
            kind = "async" if is_async_function(function) else "sync"
            raise InvalidSetting(
                f"handler {name_of(function)} is {kind} and {name_of(others[0])} is not; all handlers of a consumer "
                "share its transactions, so they must be of one kind"
            )
        for type in types:
            if type in self._events:
                raise InvalidSetting(
                    f"consumer {self._consumer!r} has a handler for {type!r} already, "
                    f"{name_of(self.batch or self._functions[type])}; {name_of(function)} would replace it"
                )
        self._check_begin(function)
        self._events |= types

    def _check_begin(self, function: Callable[..., Any]) -> None:
        is_async = is_async_function(function)
        if self._begin is None or is_async_begin(self._begin) in {None, is_async}:
            return
        kind, needed = ("async def", "an async") if is_async else ("def", "a sync")
        raise InvalidSetting(
            f"handler {name_of(function)} is `{kind}`, and begin is {described(self._begin)}, which gives "
            f"{'a sync' if is_async else 'an async'} context manager; such a handler needs {needed} one"
        )

    def event(self, message: Received) -> Any:
        """Decode the event in the message. Raises Unreadable."""
        cls = self._events.get(message.type)
        if cls is None:
            raise Unreadable(
                f"no handler of consumer {self._consumer!r} takes the type {message.type!r}; "
                f"it has some for {', '.join(map(repr, self._events)) or 'none'}"
            )
        return decoder_for(cls)(message.payload)

    def call(self, events: Sequence[tuple[Any, Received]], tx: Any) -> Any:
        """Call the handler of batches, or with a single message that of its type; an async one returns an awaitable."""
        if self.batch is not None:
            return self.batch(events, tx)
        [(event, message)] = events
        return self._functions[message.type](event, tx, message)

    @staticmethod
    def check_result(result: Any) -> None:
        """Refuse an awaitable from a sync handler: it would never run. Raises InvalidSetting."""
        if result is not None and inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidSetting(f"a handler that is not `async def` returned {described(result)}; make it `async def`")

    def _all(self) -> list[Callable[..., Any]]:
        return [self.batch] if self.batch is not None else list(self._functions.values())


def event_types(events: Sequence[type], type: str | None) -> dict[str, type]:
    """The message types of these event classes. Raises InvalidSetting."""
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
                f"{cls.__name__} has no type of its own; give one: on({cls.__name__}, type='order.created')"
            )
        try:
            found[checked_name("type", type_name(cls) if type is None else type)] = cls
        except InvalidMessage as error:
            raise InvalidSetting(str(error)) from None
    return found
