"""Which classes of a module are events.

Those with `@event` are, and those with fields and a public name that are neither a part of another class of the module
nor its base. A list of classes says it without rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import InvalidSetting
from postroad.message import has_type_of_its_own, type_name
from postroad.schemas.json_schema import is_event_class, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["by_type", "events_of"]


def events_of(module: ModuleType) -> dict[str, type]:
    """The events that a module, or a package by what it imports from its own modules, defines, by their types.

    Raises InvalidSetting.
    """
    name = module.__name__
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and is_event_class(value) and f"{value.__module__}.".startswith(f"{name}.")
    ]
    classes = list(dict.fromkeys(own))  # a class may have two names
    found = [cls for cls in classes if has_type_of_its_own(cls) or _is_public(cls, classes)]
    if not found:
        raise InvalidSetting(
            f"the module {name!r} defines no events; an event is a dataclass, a msgspec Struct, a pydantic or attrs "
            "model, with @event or a public name; those that it imports from elsewhere are not its own"
        )
    return by_type(found)


def by_type(classes: Iterable[Any]) -> dict[str, type]:
    """These classes by the types of their messages. Raises InvalidSetting."""
    found: dict[str, type] = {}
    for cls in classes:
        if not isinstance(cls, type) or not is_event_class(cls):
            raise InvalidSetting(f"{cls!r} is no event; an event is a class with fields, such as a dataclass")
        known = found.setdefault(type_name(cls), cls)
        if known is not cls:
            raise InvalidSetting(
                f"{_full_name(known)} and {_full_name(cls)} have the same type, {type_name(cls)!r}; "
                "give one of them another with @event"
            )
    return found


def _is_public(cls: type, classes: list[type]) -> bool:
    """Neither named as a private class, nor a part or a base of another one."""
    others = [other for other in classes if other is not cls]
    is_used = any(issubclass(other, cls) or cls in parts_of(other) for other in others)
    return not cls.__name__.startswith("_") and not is_used


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
