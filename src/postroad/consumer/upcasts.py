"""Old versions of events, and the functions that turn them into newer ones.

The rules:

- An upcast takes the payload of one old type and returns the event of a newer type. It is a plain function of its
  argument: a message that it fails for can never be read, and becomes a dead letter.
- One old type has one upcast in a process, or one of a consumer's own, which comes first.
- Upcasts follow each other, from type to type, until a type has a handler.
"""

from __future__ import annotations

import inspect
from collections import ChainMap
from typing import TYPE_CHECKING, Any, Final, ForwardRef, TypeVar, get_origin

import msgspec

from postroad.consumer.signatures import annotation_of, is_async_function, name_of, signature_of
from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import checked_name, type_name
from postroad.payload import encode_event
from postroad.received import Unreadable, decoder_for, is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["EVERYWHERE", "Upcast", "Upcasts", "convert", "upcast"]

F = TypeVar("F", bound="Callable[[Any], Any]")


class Upcast(msgspec.Struct, frozen=True):
    """A step from an old type to a newer one."""

    type: str
    to: str
    takes: Any
    """What the payload is decoded into for the function."""
    function: Any

    def __call__(self, old: Any) -> Any:
        """The newer event. Raises Unreadable."""
        try:
            return self.function(convert(old, self.takes))
        except Unreadable:
            raise
        except Exception as error:  # whatever the user's function raises
            raise Unreadable(
                f"{name_of(self.function)}, which upcasts {self.type!r} to {self.to!r}, failed: "
                f"{type(error).__name__}: {error}"
            ) from error


class Upcasts:
    """Upcasts by the type that they take. Those of a consumer come before those of `upcast`."""

    def __init__(self, others: Upcasts | None = None) -> None:
        self._own: dict[str, Upcast] = {}
        self.known: ChainMap[str, Upcast] = ChainMap(self._own, *(() if others is None else others.known.maps))

    def add(self, type: str, to: type | str, function: Callable[[Any], Any]) -> None:
        """Register an upcast. Raises InvalidSetting."""
        step = _step(type, to, function)
        known = self._own.get(step.type)
        if known is not None and not _is_same(known.function, function):  # a module may be imported again
            raise InvalidSetting(
                f"upcast: {step.type!r} is upcast by {name_of(known.function)} already; {name_of(function)} would "
                "replace it; if consumers differ, give each its own: @consumer.upcast(...)"
            )
        _check_no_cycle(step, self.known)
        self._own[step.type] = step

    def steps(self, type: str, handled: Collection[str]) -> Sequence[Upcast]:
        """The upcasts from an old type to one that has a handler; none if there is no way to such a type."""
        steps: list[Upcast] = []
        while (step := self.known.get(type)) is not None and step not in steps:
            steps.append(step)
            if step.to in handled:
                return steps
            type = step.to
        return []

    def types(self, handled: Collection[str]) -> list[str]:
        """The old types that can be upcast to a type that has a handler, and have none themselves."""
        return [type for type in self.known if type not in handled and self.steps(type, handled)]


EVERYWHERE: Final = Upcasts()
"""Those of `upcast`, for all consumers of the process."""


def upcast(type: str, *, to: type | str) -> Callable[[F], F]:
    """Turn messages of an old type into events of a newer one, for every consumer in this process::

        @upcast("order.created.v1", to=OrderCreated)
        def add_currency(old: dict) -> OrderCreated:
            return OrderCreated(old["order"], old["total"], currency="EUR")

    A consumer with a handler for OrderCreated then takes messages of the old type, too, and its queue is bound to it.
    `to` is the newer event's class, or the name of its type. The function's annotation says what it takes: a dict, if
    there is none, the old event's class, str or bytes. It returns the newer event, or a dict with its fields. Upcasts
    follow each other: what is upcast to a type that has an upcast itself is passed on. `Consumer.upcast` registers
    one for that consumer alone. Raises InvalidSetting.
    """

    def register(function: F) -> F:
        EVERYWHERE.add(type, to, function)
        return function

    return register


def convert(value: Any, cls: type) -> Any:
    """The value as an object of this class, by the way of JSON if it is not one. Raises Unreadable."""
    if isinstance(value, cls):
        return value
    try:
        payload = encode_event(value)[0]
    except InvalidMessage as error:
        raise Unreadable(f"an upcast returned what is no event: {error}") from error
    return decoder_for(cls)(payload)


# -- what is registered ----------------------------------------------------------------------------------------------


def _step(type: str, to: type | str, function: Callable[[Any], Any]) -> Upcast:
    try:
        old = checked_name("type", type)
        if not isinstance(to, str) and not (inspect.isclass(to) and is_readable(to) and to.__module__ != "builtins"):
            raise InvalidSetting(
                f"upcast: to is {to!r}; it must be the class of the newer event, or the name of its type"
            )
        new = checked_name("type", to if isinstance(to, str) else type_name(to))
    except InvalidMessage as error:
        raise InvalidSetting(f"upcast: {error}") from None
    if old == new:
        raise InvalidSetting(f"upcast: {old!r} is the type of {to if isinstance(to, str) else to.__name__} itself")
    return Upcast(old, new, _taken_by(function, to), function)


def _taken_by(function: Any, to: type | str) -> type:
    """The class that the function takes, by its annotation. Raises InvalidSetting."""
    if not callable(function):
        raise InvalidSetting(f"upcast: {function!r} is no function")
    name = name_of(function)
    if is_async_function(function) or inspect.isgeneratorfunction(function):
        raise InvalidSetting(f"upcast: {name} must be a plain function, which returns the newer event")
    signature = signature_of(function)
    try:
        [parameter] = signature.bind("old").arguments
    except (TypeError, ValueError):
        raise InvalidSetting(
            f"upcast: {name}{signature} can't be called with one argument; an upcast takes the old event, (old)"
        ) from None
    given = signature.parameters[parameter]
    taken = _class_of(annotation_of(given, function))
    written = given.annotation.__forward_arg__ if isinstance(given.annotation, ForwardRef) else given.annotation
    if taken is None and isinstance(written, str) and written != "Any":
        raise InvalidSetting(
            f"upcast: the annotation of {name}({parameter}: {written}) can't be evaluated; define the class "
            "at the top of its module, and before this function"
        )
    if taken is not None and not (inspect.isclass(taken) and is_readable(taken)):
        raise InvalidSetting(
            f"upcast: {name} takes {given.annotation!r}; it must be the class of the old event, dict, str or bytes"
        )
    _check_result(function, signature.return_annotation, to)
    return dict if taken is None else taken


def _class_of(annotation: Any) -> Any:
    """The class of a generic, such as dict for dict[str, Any]; None for Any."""
    return None if annotation is Any else get_origin(annotation) or annotation


def _check_result(function: Any, annotation: Any, to: type | str) -> None:
    parameter = inspect.Parameter("result", inspect.Parameter.POSITIONAL_ONLY, annotation=annotation)
    result = _class_of(annotation_of(parameter, function))
    if isinstance(to, str) or not inspect.isclass(result) or issubclass(result, (to, dict)):
        return
    raise InvalidSetting(
        f"upcast: {name_of(function)} returns {result.__name__}, and is registered to return {to.__name__}, or a dict "
        "with its fields"
    )


def _check_no_cycle(step: Upcast, known: Mapping[str, Upcast]) -> None:
    way = [step.type]
    following: Upcast | None = step
    while following is not None:
        way.append(following.to)
        if following.to == step.type:
            raise InvalidSetting(f"upcast: {name_of(step.function)} would close a circle: {' → '.join(way)}")
        following = known.get(following.to)


def _is_same(one: Any, other: Any) -> bool:
    return (one.__module__, name_of(one)) == (other.__module__, name_of(other))
