"""What a codec is: it changes a payload before it is written, and undoes that before a handler is called. Pure.

The rules:

- An outbox applies each of its codecs at most once, in this order: compress, encrypt, store elsewhere.
- A header says what was done. A payload without such a header is as the application wrote it.
- What can't be undone raises Unreadable, whose text says why, or KeyErased.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from postroad.errors import InvalidSetting
from postroad.kinds import size
from postroad.message import CONTENT_ENCODING, DATAREF, ENCRYPTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroad.kinds import Size

__all__ = ["STAGES", "About", "Codec", "KeyErased", "checked_codecs", "size_from"]

STAGES: Final = (CONTENT_ENCODING, ENCRYPTION, DATAREF)
"""The headers of codecs, in the order in which an outbox applies them. A consumer undoes them in reverse."""


class About(NamedTuple):
    """The message that a payload belongs to, for a codec that decides by it."""

    id: str
    type: str
    key: str | None
    headers_json: str
    encoding: str = ""
    """How the payload is compressed, if it is."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers: the user's own, and `source`, `correlation_id` and the like."""
        return msgspec.json.decode(self.headers_json, type=dict[str, str])


class Codec(ABC):
    """One change to payloads. It is shared by threads and tasks."""

    header: str
    """The header that says that it was applied: one of STAGES."""
    form: str
    """How the header's value begins; it tells codecs with the same header apart."""

    @abstractmethod
    def encode(self, payload: bytes, about: About) -> tuple[bytes, str] | None:
        """The changed payload and the header's value; None if it stays as it is. Raises InvalidMessage."""

    @abstractmethod
    async def decode(self, payload: bytes, value: str, about: About) -> bytes:
        """The payload as it was before. Raises Unreadable, KeyErased, or PayloadsUnavailable."""


class KeyErased(Exception):
    """The key that a payload was encrypted with was erased. The consumer makes a ShreddedPayload of the message."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"its payload was encrypted with the key {key_id!r:.80}, which was erased")
        self.key_id = key_id


def checked_codecs(codecs: Iterable[Codec]) -> list[Codec]:
    """The codecs in the order of their stages, whatever order they are given in. Raises InvalidSetting."""
    given: list[Any] = list(codecs) if hasattr(codecs, "__iter__") else [codecs]
    for each in given:
        if not isinstance(each, Codec):
            raise InvalidSetting(
                f"codecs has {each!r:.80}; it must be a list of codecs, such as [Zstd(), Encrypt(keys), "
                "ClaimCheck('s3://bucket/payloads')]"
            )
    given.sort(key=lambda each: STAGES.index(each.header))
    for one, other in pairwise(given):
        if (one.header, one.form) == (other.header, other.form):
            raise InvalidSetting(f"codecs has {type(one).__name__} twice; give it once")
    return given


def size_from(name: str, value: Size, *, least: int = 0) -> int:
    """A number of bytes that a codec was given. Raises InvalidSetting."""
    found = size(name, value)
    if found < least:
        raise InvalidSetting(f"{name} is {value!r}; it must be at least {least:,} bytes")
    return found
