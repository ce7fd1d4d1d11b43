"""How an event becomes bytes. Nothing here does I/O.

The rules:

- What can't be written as it is, is refused: JSON has no NaN and no Infinity, and encoders write `null` for them.
- An event is data of the application's own. A dict that is more than a dict, a task of a task framework, a class and a
  message of postroad are passed by mistake, and would be written as something that no consumer expects.
"""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.errors import InvalidMessage
from postroad.tombstone import Tombstone

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JSON", "encode_event"]

TASK_FRAMEWORKS: Final = frozenset(
    {"apscheduler", "arq", "celery", "dramatiq", "huey", "procrastinate", "rq", "taskiq"}
)
JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_OWN_MESSAGES: Final = frozenset({"postroad.message", "postroad.received"})


def encode_event(event: Any) -> tuple[bytes, str]:
    """The payload and its content type; both are empty for a Tombstone. Raises InvalidMessage."""
    write, content_type = _writer_for(event.__class__)
    payload = write(event)
    if content_type is JSON and (b"null" in payload or b"NaN" in payload or b"Infinity" in payload):
        _check_numbers(event)
    return payload, content_type


@lru_cache(maxsize=1024)
def _writer_for(cls: type) -> tuple[Callable[[Any], bytes], str]:
    """What turns an event of this class into bytes, and their content type."""
    for base, writer in _WRITERS.items():
        if issubclass(cls, base):
            return writer
    if cls.__module__ in _OWN_MESSAGES or _task_framework(cls) or issubclass(cls, type):
        return _refuse, JSON
    if hasattr(cls, "model_dump_json"):  # pydantic knows best how to write its own models
        return _write_model, JSON
    if cls is dict or issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls):
        return _write_json, JSON
    return (_write_json if hasattr(cls, "__attrs_attrs__") else _refuse), JSON


def _write_nothing(event: Tombstone) -> bytes:
    return b""


def _write_text(event: str) -> bytes:
    try:
        return event.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"the event is a str that is no valid Unicode text: {error.reason}") from None


def _write_model(event: Any) -> bytes:
    try:
        text: str = event.model_dump_json()
    except Exception as error:  # whatever a user's own type raises while it is written
        raise _not_json(event, error) from error
    return text.encode()


def _write_json(event: Any) -> bytes:
    try:
        return _json.encode(event)
    except Exception as error:  # as above
        raise _not_json(event, error) from error


def _not_json(event: Any, error: Exception) -> InvalidMessage:
    return InvalidMessage(f"{event.__class__.__name__} could not be encoded as JSON: {error}")


def _encode_nested(value: Any) -> Any:
    """What msgspec does not know inside an event: pydantic models."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{value.__class__.__name__} is not supported")


_json: Final = msgspec.json.Encoder(enc_hook=_encode_nested)


_WRITERS: Final[dict[type, tuple[Callable[[Any], bytes], str]]] = {
    bytes: (bytes, _BINARY),
    bytearray: (bytes, _BINARY),
    memoryview: (bytes, _BINARY),
    str: (_write_text, "text/plain; charset=utf-8"),
    Tombstone: (_write_nothing, ""),
}


# -- what is no event ------------------------------------------------------------------------------------------------


def _refuse(event: Any) -> bytes:
    raise InvalidMessage(_why_not(event))


def _why_not(event: Any) -> str:
    """What is wrong with an event of a class that can't be written."""
    cls = event.__class__
    name = cls.__name__
    if isinstance(event, type):
        return f"the event is the class {event.__name__}; add an instance of it: {event.__name__}(…)"
    if cls.__module__ in _OWN_MESSAGES:
        return f"{name} is a message of postroad, not an event; add the event itself, or Messages with add_many"
    if framework := _task_framework(cls):
        return (
            f"{name} is a task of {framework}, not an event; add an event of your own, and start the task in a "
            "handler that receives it"
        )
    if issubclass(cls, dict):
        return f"{name} is not a plain dict, and may mean more than its items say; if they are all, add dict(event)"
    return (
        f"an event of type {name} can't be added; "
        "use a dataclass, a msgspec Struct, a pydantic or attrs model, a dict, a str or bytes, or a Tombstone()"
    )


def _task_framework(cls: type) -> str | None:
    """The task framework that the class, or one that it inherits from, belongs to."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next((root for root in roots if root in TASK_FRAMEWORKS), None)


# -- what JSON has no number for -------------------------------------------------------------------------------------


def _check_numbers(event: Any) -> None:
    """Called for a payload with what encoders write for NaN and Infinity: null, and the text of a Decimal."""
    name = event.__class__.__name__
    try:
        lost = _first_lost(msgspec.to_builtins(event, builtin_types=(Decimal,), enc_hook=_plain))
    except Exception as error:
        raise _not_json(event, error) from error
    if lost is not None:
        path, value = lost
        raise InvalidMessage(
            f"{_path_text(path)} is {value} in this {name}, and JSON has no number for it; "
            "leave the field out, or say what it means: None, or a text"
        )


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else None


def _first_lost(value: Any) -> tuple[list[Any], float | Decimal] | None:
    """The first value that would not arrive, and the way to it, innermost step first."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ([], value)
    if isinstance(value, Decimal):
        return None if value.is_finite() else ([], value)
    if isinstance(value, dict):
        steps = iter(value.items())
    elif isinstance(value, list | tuple):
        steps = enumerate(value)
    else:
        return None
    for step, inner in steps:
        if (lost := _first_lost(inner)) is not None:
            lost[0].append(step)
            return lost
    return None


def _path_text(steps: list[Any]) -> str:
    """`items[2].price`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in reversed(steps))
    return text.removeprefix(".")
