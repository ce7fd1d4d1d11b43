"""Tells CloudEvents from messages of other programs, and their type, before a delivery is unwrapped. Pure.

For sources that other programs may write to, such as topics and streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad.brokers.cloudevents import PREFIXES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.brokers.base import Delivery

__all__ = ["is_event", "type_of"]

_STRUCTURED: Final = "application/cloudevents+json"
_IDS: Final = tuple((f"{prefix}id", f"{prefix}type") for prefix in PREFIXES)


class _Typed(msgspec.Struct):
    type: str = ""


def is_event(headers: Mapping[str, str], content_type: str | None) -> bool:
    """Whether it is a CloudEvent, in binary or structured mode."""
    for id, _ in _IDS:  # a loop, because this is asked for each message
        if id in headers:
            return True
    return content_type is not None and content_type.lower().startswith(_STRUCTURED)


def type_of(delivery: Delivery) -> str | None:
    """The type of a CloudEvent; None if it can't be read, which is decided elsewhere."""
    if (delivery.content_type or "").lower().startswith(_STRUCTURED):
        try:
            return msgspec.json.decode(delivery.body, type=_Typed).type
        except (ValueError, RecursionError):  # ValueError: malformed JSON, or no UTF-8
            return None
    for id, type in _IDS:
        if id in delivery.headers:
            found = delivery.headers.get(type)
            return None if found is None else str(found)
    return None
