"""What is sent to a NATS server, as bytes: messages with headers, by CloudEvents' NATS binding, and commands. Pure.

Header values are percent-encoded, as the binding asks for; so whatever a message's headers are, they can't become
headers or frames of their own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.brokers.cloudevents import CannotEncode, percent_encoded, time_of, wrap
from postroad.brokers.dedupe import dedupe_id
from postroad.brokers.routing import RoutingKey
from postroad.errors import InvalidSetting
from postroad.message import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroad.brokers.cloudevents import Mode

__all__ = [
    "MESSAGE_ID",
    "Frames",
    "ack",
    "check_subject",
    "header_block",
    "publish",
    "subscribe",
    "unsubscribe",
    "wildcard",
]

PREFIX: Final = "ce-"
CONTENT_TYPE: Final = "content-type"
DATA_CONTENT_TYPE: Final = "ce-datacontenttype"
MESSAGE_ID: Final = "Nats-Msg-Id"
LONGEST_SUBJECT: Final = 2048  # bytes: a server ends a connection that sends a longer line than 4,096

_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")  # printable ASCII without the colon and the space
_WORD: Final = r"(?![*>](?:\.|$))[^\s.\x00-\x20\x7f]+"
_SUBJECT: Final = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_SERVERS_OWN: Final = ("$", "_INBOX.", "_R_.")


class Frames:
    """Encodes messages, by the template of the subject and the form of messages."""

    def __init__(self, subject: str, mode: Mode, stream: str | None = None) -> None:
        _check_template(subject)
        self._mode: Mode = mode
        self.subject_of = RoutingKey(subject, "subject").of
        """The subject of a message. Raises CannotEncode when the message lacks what the template names."""
        self._id_has_subject = subject != "{topic}"
        self._ending = "\r\n" if stream is None else f"Nats-Expected-Stream: {stream}\r\n\r\n"

    def encoded(self, message: StoredMessage, reply: str, largest: int) -> bytes:
        """The frame that publishes a message, with at most so many bytes of headers and body. Raises CannotEncode."""
        subject = self.subject_of(message)
        if wrong := check_subject(subject):
            raise CannotEncode(wrong)
        id = dedupe_id(message)
        if self._mode == "binary":
            headers, body = _binary_headers(message, id), message.payload
        else:
            headers, body = self._wrapped(message)
        if self._id_has_subject:
            id = f"{id}/{percent_encoded(subject)}"  # a stream may get a message from two sinks, by two subjects
        block = f"{headers}{MESSAGE_ID}: {id}\r\n{self._ending}".encode()
        size = len(block) + len(body)
        if size > largest:
            raise CannotEncode(
                f"it has {size:,} bytes with its headers and the server takes at most {largest:,} (max_payload)"
            )
        return b"%b%b%b\r\n" % (f"HPUB {subject} {reply} {len(block)} {size}\r\n".encode(), block, body)

    def _wrapped(self, message: StoredMessage) -> tuple[str, bytes]:
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        _check_headers(headers)
        headers.pop(CONTENT_TYPE, None)
        lines = _lines(headers)
        if content_type:  # no attribute, so it is not encoded, if it can be sent as it is
            plain = content_type.isascii() and content_type.isprintable()
            lines += f"{CONTENT_TYPE}: {content_type if plain else percent_encoded(content_type)}\r\n"
        return lines, body


def _binary_headers(message: StoredMessage, dedupe_id: str) -> str:
    """The headers that `wrap` makes, percent-encoded; what is the same for many messages is kept."""
    id = dedupe_id[:36]  # a UUID, which takes long to be made a text
    id_and_time = f"ce-id: {id}\r\nce-time: {time_of(message).decode()}\r\n"
    fixed = _of_own_headers(message.headers_json, message.type, message.content_type)
    if message.key is None:
        return fixed + id_and_time
    key = percent_encoded(message.key)
    return f"{fixed}{id_and_time}ce-subject: {key}\r\nce-partitionkey: {key}\r\n"


@lru_cache(maxsize=1024)
def _of_own_headers(headers_json: str, type: str, content_type: str) -> str:
    nothing = StoredMessage(0, UUID(int=0), "", None, 0, type, b"", content_type, headers_json, 0)
    headers = wrap(nothing, "binary", PREFIX).headers
    _check_headers(headers)
    headers = {name: value for name, value in headers.items() if name not in {"ce-id", "ce-time"}}
    if content_type:
        headers[DATA_CONTENT_TYPE] = content_type
    return _lines(headers)


def _lines(headers: Mapping[str, str]) -> str:
    lines = "".join(f"{name}: {percent_encoded(value)}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}"


def _check_headers(names: Iterable[str]) -> None:
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise CannotEncode(
                f"it has a header {name!r:.80}; NATS takes names of printable ASCII, without a space or a colon"
            )
        if name.lower().startswith("nats-"):
            raise CannotEncode(f"it has a header {name!r:.80}, which NATS takes for a command to itself; rename it")


# -- subjects --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def check_subject(subject: str) -> str | None:
    """Why a message can't be published to this subject. A message must not choose one that commands the server."""
    if subject.startswith(_SERVERS_OWN):
        return f"its subject would be {subject!r:.80}, which is one of the server's own"
    if _SUBJECT.fullmatch(subject) and len(subject.encode()) <= LONGEST_SUBJECT:
        return None
    return (
        f"its subject would be {subject!r:.80}; NATS accepts words with dots between them, without spaces, '*' and "
        f"'>', of {LONGEST_SUBJECT:,} bytes at most: see the setting 'subject'"
    )


def wildcard(template: str) -> str:
    """A subject with wildcards that matches all that the template can make, and little else."""
    words = template.split(".")
    for index, word in enumerate(words):
        if "{" in word:  # a value may have dots in it, or be a part of a word
            return ".".join([*words[:index], ">"])
    return template


def _check_template(subject: str) -> None:
    filled = re.sub(r"\{[^{}]+\}", "x", subject)
    if wrong := check_subject(filled):
        raise InvalidSetting(
            f"subject is {subject!r:.80}; {wrong.partition('; ')[2] or 'that is a subject of the server itself'}",
            settings=("subject",),
        )


# -- commands --------------------------------------------------------------------------------------------------------


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent before a body; values are percent-encoded."""
    return f"{_lines(headers)}\r\n".encode()


def publish(subject: str, body: bytes, *, reply: str = "", headers: bytes = b"") -> bytes:
    """A frame that publishes a body."""
    place = f"{subject} {reply}" if reply else subject
    if headers:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (
            place.encode(), len(headers), len(headers) + len(body), headers, body
        )  # fmt: skip
    return b"PUB %b %d\r\n%b\r\n" % (place.encode(), len(body), body)


def ack(reply: bytes, word: bytes) -> bytes:
    """A frame that answers a delivery: +ACK, -NAK, or +WPI for "work in progress"."""
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(word), word)


def subscribe(subject: str, sid: int) -> bytes:
    """A frame that subscribes to a subject."""
    return f"SUB {subject} {sid}\r\n".encode()


def unsubscribe(sid: int) -> bytes:
    """A frame that ends a subscription."""
    return f"UNSUB {sid}\r\n".encode()
