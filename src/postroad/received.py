"""What a handler receives: the message, and its payload decoded into an event. No I/O.

Decoding is the reverse of what `message` does: the same kinds of classes, by the same libraries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.message import CODEC_HEADERS, RESERVED_HEADERS
from postroad.shredded import ShreddedPayload
from postroad.tombstone import Tombstone, is_tombstone

if TYPE_CHECKING:
    from postroad.message import StoredMessage

__all__ = ["Empty", "Received", "Unreadable", "decoder_for", "identity_of", "is_readable", "received"]

Decoder = Callable[[bytes], Any]
Empty = type[Tombstone] | type[ShreddedPayload]


class Unreadable(ValueError):
    """This message can't be decoded, now or later: it has no id, or its payload does not fit the handler's class."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was delivered."""

    id: str
    """The producer's id of the message. It is the same at every delivery, so it serves as an idempotency key."""
    type: str
    source: str | None = None
    key: str | None = None
    payload: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = {}
    """The user's own headers."""
    correlation_id: str | None = None
    causation_id: str | None = None
    time: str | None = None
    """When it was added, as the producer wrote it (RFC 3339)."""
    attempt: int = 1
    """The number of this attempt. A crash of the process during the first attempt is not counted."""
    identity: str = ""
    """The inbox's key for this message; see `identity_of`."""
    erased_key: str | None = None
    """The id of the key that its payload was encrypted with, if that key was erased; the payload is empty then."""

    @property
    def without_content(self) -> Empty | None:
        """Which event it is, if it has no content; None if it has some."""
        if self.erased_key is not None:
            return ShreddedPayload
        return Tombstone if is_tombstone(self.payload, self.content_type) else None

    @property
    def is_shredded(self) -> bool:
        """Its payload was erased with its key. See `ShreddedPayload`."""
        return self.erased_key is not None

    @property
    def is_tombstone(self) -> bool:
        """It has no content: what its key names is gone. See `Tombstone`."""
        return is_tombstone(self.payload, self.content_type)

    def __post_init__(self) -> None:
        """Compute the identity once: it is used several times for each message."""
        if not self.identity:
            msgspec.structs.force_setattr(self, "identity", identity_of(self.id, self.source))


def identity_of(id: str, source: str | None) -> str:
    """A message's identity: its source and its id. The same id from another source is another message.

    A source is a URI, which has no spaces, so the first space ends it.
    """
    if not source:
        return f" {id}" if " " in id else id
    return f"{source.replace(' ', '%20')} {id}"


def received(message: StoredMessage) -> Received:
    """A message of the log as its handler receives it."""
    known = message.all_headers
    return Received(
        id=str(message.id),
        type=message.type,
        source=known.get("source"),
        key=message.key,
        payload=message.payload,
        content_type=message.content_type,
        headers={
            name: value
            for name, value in known.items()
            if name not in RESERVED_HEADERS or name in CODEC_HEADERS  # these say how to read the payload
        },
        correlation_id=known.get("correlation_id"),
        causation_id=known.get("causation_id"),
        time=message.created_at.isoformat(),
    )


def is_readable(cls: type) -> bool:
    """Whether payloads can be decoded into objects of this class."""
    return cls in {bytes, str, dict, Tombstone, ShreddedPayload} or _is_pydantic(cls) or _is_for_msgspec(cls)


@lru_cache(maxsize=1024)
def decoder_for(cls: type[Any]) -> Decoder:
    """A function that decodes a payload into an object of this class. It raises Unreadable."""
    decode = _decode_with(cls)

    def checked(payload: bytes) -> Any:
        try:
            return decode(payload)
        except Exception as error:  # whatever a user's own type raises while it is made
            raise Unreadable(f"its payload is no {cls.__name__}: {error}") from error

    return checked


def _decode_with(cls: type) -> Decoder:
    if cls is Tombstone:
        return lambda _: Tombstone()
    if cls is bytes:
        return bytes
    if cls is str:
        return bytes.decode
    if _is_pydantic(cls):  # knows best how to read its own models
        validate: Decoder = cls.model_validate_json  # type: ignore[attr-defined]
        return validate
    return msgspec.json.Decoder(cls, dec_hook=_decode_nested).decode


def _decode_nested(cls: type, value: Any) -> Any:
    """Decode what msgspec does not know inside an event: pydantic models."""
    if _is_pydantic(cls):
        return cls.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(f"{cls.__name__} is not supported")


def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "model_validate_json")


def _is_for_msgspec(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")
