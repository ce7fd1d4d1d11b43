"""Destinations. `publisher_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher

__all__ = ["publisher_for"]


def publisher_for(url: str) -> Publisher:
    """The publisher for a destination URL. It is not connected yet."""
    scheme = url.partition(":")[0]
    match scheme:
        case "null":
            from postroad.brokers.null import NullPublisher

            return NullPublisher()
    raise InvalidSetting(f"to is a URL that begins with {scheme!r}; it must be null://")
