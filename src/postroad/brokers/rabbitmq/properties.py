"""The properties of an AMQP message as bytes: a dead letter has those that the message came with.

Decoding and encoding them would change some and lose others: pamqp decodes a text that is not UTF-8 and can't encode
it, makes a double a float, and can't decode an impossible time. So they are only split, and copied as bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.brokers.rabbitmq.frames import short_string, table
from postroad.message import new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LEFT_OUT", "USER_ID", "DeadLetter", "dead_letter"]

USER_ID: Final = "postroad-user-id"
LEFT_OUT: Final = "postroad-left-out"

_LENGTH: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">H")
_PERSISTENT: Final = b"\x02"
_NAMED: Final = 500  # characters of the names of those left out

# In the order of their flags, from the highest on: a short string, a table, or so many bytes.
_PROPERTIES: Final[Mapping[str, str | int]] = {
    "content_type": "string", "content_encoding": "string", "headers": "table", "delivery_mode": 1, "priority": 1,
    "correlation_id": "string", "reply_to": "string", "expiration": "string", "message_id": "string", "timestamp": 8,
    "type": "string", "user_id": "string", "app_id": "string", "cluster_id": "string",
}  # fmt: skip

# The values of a table by their types: so many bytes. Types that are not here have their length before them.
_SIZES: Final = {
    b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"U": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8, b"f": 4, b"d": 8, b"D": 5,
    b"T": 8, b"V": 0,
}  # fmt: skip
_WITH_LENGTH: Final = frozenset({b"S", b"x", b"A", b"F"})


class DeadLetter(NamedTuple):
    """What is published beside the body."""

    properties: bytes
    message_id: str


def dead_letter(properties: bytes, notes: Mapping[str, str], *, room: int) -> DeadLetter:
    """The same properties, persistent and without expiration, with these headers beside their own.

    RabbitMQ accepts a user id only from that user, so it becomes a header. The largest headers are left out when
    there is not enough room for all of them, and then the longest note is cut; properties that can't be split are all
    left out.
    """
    try:
        fields = _split(properties)
        headers = _entries(fields.pop("headers", b"")[_LENGTH.size :])
    except (IndexError, ValueError, struct.error):
        fields, headers = {}, {}
        notes = {**notes, LEFT_OUT: "all properties, which can't be decoded"}
    fields.pop("expiration", None)
    user = fields.pop("user_id", None)
    if user is not None:
        notes = {**notes, USER_ID: user[1:].decode(errors="replace")}
    fields["delivery_mode"] = _PERSISTENT
    message_id = fields.get("message_id", b"\0")[1:].decode(errors="replace")
    if not message_id:  # a message that the broker returns is recognized by it
        message_id = str(new_id())
        fields["message_id"] = short_string("the message id", message_id)
    headers = {name: entry for name, entry in headers.items() if name not in notes}
    left_out = _too_large(headers, room=room - len(_encoded(fields, {}, notes)))
    if left_out is not None:
        notes = {**notes, LEFT_OUT: left_out}
    encoded = _encoded(fields, headers, notes)
    while len(encoded) > room and (longest := max(notes.values(), key=len, default="")):
        notes = {name: note[: len(note) // 2] if note is longest else note for name, note in notes.items()}
        encoded = _encoded(fields, headers, notes)
    return DeadLetter(encoded, message_id)


def _too_large(headers: dict[str, bytes], *, room: int) -> str | None:
    """Leave out the largest headers until the others have room, together with a note that names those left out.

    The note, or None when all have room. Sizes are added up, and nothing is encoded again for each header that is left
    out: a hostile message may have tens of thousands of them.
    """
    needed = sum(map(len, headers.values()))
    names, note, note_size = "", None, 0
    for name in sorted(headers, key=lambda name: len(headers[name]), reverse=True):
        if needed + note_size <= room:
            break
        needed -= len(headers.pop(name))
        if len(names) < _NAMED:
            names += f", {name}" if names else name
            note = f"the headers {names:.{_NAMED}}, which are too large"
            note_size = len(table({LEFT_OUT: note}))
    return note


def _split(properties: bytes) -> dict[str, bytes]:
    """Each property that is there, as it is encoded. Raises IndexError, ValueError or struct.error."""
    (flags,) = _FLAGS.unpack_from(properties)
    fields: dict[str, bytes] = {}
    at = _FLAGS.size
    for number, (name, kind) in enumerate(_PROPERTIES.items()):
        if flags & 1 << 15 - number:
            match kind:
                case "string":
                    size = 1 + properties[at]
                case "table":
                    size = _LENGTH.size + _LENGTH.unpack_from(properties, at)[0]
                case _:
                    size = int(kind)
            fields[name] = properties[at : at + size]
            at += size
    if at != len(properties):
        raise ValueError(f"{len(properties)} bytes of properties, of which the flags explain {at}")
    return fields


def _entries(headers: bytes) -> dict[str, bytes]:
    """The entries of a table by their names, as they are encoded. Raises IndexError, ValueError or struct.error."""
    entries: dict[str, bytes] = {}
    at = 0
    while at < len(headers):
        value = at + 1 + headers[at]
        name, kind = headers[at + 1 : value].decode(errors="replace"), headers[value : value + 1]
        if kind in _WITH_LENGTH:
            size = _LENGTH.size + _LENGTH.unpack_from(headers, value + 1)[0]
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"unknown type {kind!r}")
        entries[name] = headers[at : value + 1 + size]
        at = value + 1 + size
    if at != len(headers):
        raise ValueError("the last header is cut off")
    return entries


def _encoded(fields: Mapping[str, bytes], headers: Mapping[str, bytes], notes: Mapping[str, str]) -> bytes:
    entries = b"".join(headers.values()) + table(notes)
    fields = {**fields, "headers": _LENGTH.pack(len(entries)) + entries}
    flags = sum(1 << 15 - number for number, name in enumerate(_PROPERTIES) if name in fields)
    return _FLAGS.pack(flags) + b"".join(fields[name] for name in _PROPERTIES if name in fields)
