"""Messages as the body and the headers of a request. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.brokers.cloudevents import CannotEncode, Envelope
from postroad.brokers.http.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature_of
from postroad.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postroad.brokers.http.settings import HTTPMode
    from postroad.brokers.http.signatures import Key
    from postroad.message import StoredMessage

__all__ = ["BATCH_TYPE", "Part", "Requests", "is_taken"]

BATCH_TYPE: Final = "application/cloudevents-batch+json; charset=utf-8"

_USER_AGENT: Final = f"postroad/{__version__}"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# The connection's own, what a signature is made of, and what a receiver or a proxy acts on.
_TAKEN: Final = re.compile(
    r"(?i)webhook-.*|ce-.*|proxy-.*|content-.*|accept(?:-.*)?|host|connection|keep-alive|te|trailer|transfer-encoding|upgrade|"
    r"expect|via|forwarded|x-forwarded-.*|authorization|cookie|date|range|if-.*|user-agent|x-http-method.*"
)
_LONGEST_HEADERS: Final = 16_000


class Part(NamedTuple):
    """A message as a request, or as one element of a batch."""

    message: StoredMessage
    content_type: str
    headers: dict[str, str]
    body: bytes


class Requests:
    """How the requests of a sink are made."""

    def __init__(self, mode: HTTPMode, largest: int, together: int) -> None:
        """`largest` is the most bytes of a body, `together` the most messages of a batch."""
        self._most = together if mode == "batched" else 1
        self._batched = mode == "batched"
        self._envelope = Envelope("structured" if mode == "batched" else mode, percent_encoded=True)
        self._largest = largest

    def part(self, message: StoredMessage) -> Part:
        """The message in its form. Raises CannotEncode."""
        content_type, headers, body = self._envelope.wrap(message)
        for name in headers:
            if not name.startswith("ce-"):
                _check_name(name)
        if not content_type.isprintable():
            raise CannotEncode(f"its content type is {content_type!r:.80}, which can't be an HTTP header")
        if len(body) + 2 > self._largest:
            raise CannotEncode(
                f"it has {len(body):,} bytes, and a request at most {self._largest:,} (max_message_size)"
            )
        if sum(map(len, headers)) + sum(map(len, headers.values())) > _LONGEST_HEADERS:
            raise CannotEncode(f"its headers have more than {_LONGEST_HEADERS:,} bytes, which HTTP servers refuse")
        return Part(message, content_type, headers, body)

    def together(self, parts: Iterable[Part]) -> Iterator[Sequence[Part]]:
        """What goes into one request each: one message, or a batch."""
        batch: list[Part] = []
        size = 2
        for part in parts:
            size += len(part.body) + 1
            if batch and (len(batch) == self._most or size > self._largest):
                yield batch
                batch, size = [], len(part.body) + 3
            batch.append(part)
        if batch:
            yield batch

    def request(self, parts: Sequence[Part], keys: Sequence[Key], now: float) -> tuple[bytes, dict[str, str]]:
        """The body and the headers of a request, signed."""
        if self._batched:
            body = b"[" + b",".join([part.body for part in parts]) + b"]"
            content_type = BATCH_TYPE
        else:
            _, content_type, _, body = parts[0]
        id, timestamp = _id(parts), int(now)
        headers = {"user-agent": _USER_AGENT, ID_HEADER: id, TIMESTAMP_HEADER: str(timestamp)}
        if not self._batched:
            headers |= parts[0].headers
        if content_type:
            headers["content-type"] = content_type
        if keys:
            headers[SIGNATURE_HEADER] = signature_of(keys, id, timestamp, body)
        return body, headers


def is_taken(name: str) -> bool:
    """Whether a header belongs to HTTP, to webhooks or to CloudEvents, and not to the user."""
    return _TAKEN.fullmatch(name) is not None


def _check_name(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise CannotEncode(f"it has a header {name!r}, and the name of an HTTP header can't have all of its characters")
    if is_taken(name):
        raise CannotEncode(f"it has a header {name!r}, which HTTP or webhooks use themselves; rename it")


def _id(parts: Sequence[Part]) -> str:
    """The message's id; of a batch, a name that is the same whenever the same messages are sent together."""
    if len(parts) == 1:
        return str(parts[0].message.id)
    digest = sha256(b"".join([part.message.id.bytes for part in parts])).hexdigest()
    return f"batch_{digest[:32]}"
