"""Decodes the properties of a delivery that a consumer needs. Pure.

pamqp can decode all properties, and takes a tenth of the time that a consumer with shared transactions has for a
message. The usual form, in which postroad and most other programs publish, is decoded here: texts only, and no more
properties than those of `USUAL`. Whatever is not of that form is left to pamqp, which also says what is wrong with it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pamqp.header import ContentHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Known", "decoded"]

_FLAGS: Final = struct.Struct(">H").unpack_from
_LENGTH: Final = struct.Struct(">I").unpack_from
_SECONDS: Final = struct.Struct(">Q").unpack_from
_TEXT: Final = ord("S")

# Bits of the flags, in the order of the properties.
CONTENT_TYPE, HEADERS, DELIVERY_MODE, CORRELATION_ID = 0x8000, 0x2000, 0x1000, 0x0400
MESSAGE_ID, TIMESTAMP, TYPE = 0x0080, 0x0040, 0x0020
USUAL: Final = CONTENT_TYPE | HEADERS | DELIVERY_MODE | CORRELATION_ID | MESSAGE_ID | TIMESTAMP | TYPE
_UNUSUAL: Final = 0xFFFF & ~USUAL
_LAST_SECOND: Final = 0xFFFFFFFF  # pamqp takes later ones for milliseconds, and refuses some


class Known(NamedTuple):
    """What a consumer needs of a delivery's properties."""

    content_type: str | None = None
    headers: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    type: str | None = None


def decoded(frame: bytes, at: int) -> tuple[Known, str | None]:
    """The properties in a content header's frame, which begin there; and why they can't be decoded, if so: then as many
    as could be.
    """
    try:
        if (usual := _usual(frame, at)) is not None:
            return usual, None
    except (IndexError, UnicodeDecodeError, struct.error):
        pass
    header, problem = ContentHeader(), None
    try:
        header.unmarshal(frame)
    except Exception as error:  # pamqp's own errors, and those of what it calls, such as an invalid timestamp
        problem = f"{type(error).__name__}: {error}"
    its = header.properties
    return Known(its.content_type, its.headers, its.correlation_id, its.message_id, its.message_type), problem


def _usual(frame: bytes, at: int) -> Known | None:
    """None if they are not of the usual form. Raises IndexError, UnicodeDecodeError or struct.error for some others."""
    (flags,) = _FLAGS(frame, at)
    if flags & _UNUSUAL:
        return None
    at += 2
    content_type = headers = correlation_id = message_id = type = None
    if flags & CONTENT_TYPE:
        content_type, at = _short(frame, at)
    if flags & HEADERS:
        headers, at = _texts(frame, at)
        if headers is None:
            return None
    if flags & DELIVERY_MODE:
        at += 1
    if flags & CORRELATION_ID:
        correlation_id, at = _short(frame, at)
    if flags & MESSAGE_ID:
        message_id, at = _short(frame, at)
    if flags & TIMESTAMP:
        if _SECONDS(frame, at)[0] > _LAST_SECOND:
            return None
        at += 8
    if flags & TYPE:
        type, at = _short(frame, at)
    return Known(content_type, headers, correlation_id, message_id, type) if at == len(frame) else None


def _short(frame: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + frame[at]
    return frame[at + 1 : end].decode(), end


def _texts(frame: bytes, at: int) -> tuple[dict[str, str] | None, int]:
    """A table in which all values are texts; None for any other."""
    end = at + 4 + _LENGTH(frame, at)[0]
    at += 4
    found = {}
    while at < end:
        name_end = at + 1 + frame[at]
        if frame[name_end] != _TEXT:
            return None, end
        begin = name_end + 5
        value_end = begin + _LENGTH(frame, name_end + 1)[0]
        found[frame[at + 1 : name_end].decode()] = frame[begin:value_end].decode()
        at = value_end
    return (found if at == end else None), end
