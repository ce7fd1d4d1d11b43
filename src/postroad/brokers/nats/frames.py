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
        self._template = lru_cache(maxsize=1024)(self._make_template)

    def encoded(self, message: StoredMessage, reply: str, largest: int) -> bytes:
        """The frame that publishes a message, with at most so many bytes of headers and body. Raises CannotEncode."""
        subject = self.subject_of(message)
        if self._mode == "binary":
            return self._binary(message, subject, reply.encode(), largest)
        if wrong := check_subject(subject):
            raise CannotEncode(wrong)
        id = f"{message.id}{self._id_ending(message, subject)}"
        headers, body = self._wrapped(message)
        block = f"{headers}{MESSAGE_ID}: {id}\r\n{self._ending}".encode()
        if len(block) + len(body) > largest:
            raise _too_large(len(block) + len(body), largest)
        return publish(subject, body, reply=reply, headers=block)

    def _binary(self, message: StoredMessage, subject: str, reply: bytes, largest: int) -> bytes:
        """The same, with the headers that `wrap` makes, percent-encoded; what is the same for many messages is kept."""
        key, body = message.key, message.payload
        size, template = self._template(
            subject, message.headers_json, message.type, message.content_type, key is not None
        )
        id, time = str(message.id).encode(), time_of(message)
        gaps: tuple[bytes, ...] = ()
        if key is not None:
            encoded = percent_encoded(key).encode()
            size, gaps = size + 2 * len(encoded), (encoded, encoded)
        total = size + len(body)
        if total > largest:
            raise _too_large(total, largest)
        return template % (reply, size, total, id, time, *gaps, id, body)

    def _make_template(
        self, subject: str, headers_json: str, type: str, content_type: str, has_key: bool
    ) -> tuple[int, bytes]:
        """The size of the headers of all such messages, but for the key; and their frame, with gaps."""
        if wrong := check_subject(subject):
            raise CannotEncode(wrong)
        names = ["ce-id", "ce-time", *(["ce-subject", "ce-partitionkey"] if has_key else [])]
        key = "" if has_key else None
        message = StoredMessage(0, UUID(int=0), "", key, 0, type, b"", content_type, headers_json, 0)
        headers = wrap(message, "binary", PREFIX).headers
        _check_headers(headers)
        headers = {name: value for name, value in headers.items() if name not in names}
        if content_type:
            headers[DATA_CONTENT_TYPE] = content_type
        lines = _lines(headers).replace("%", "%%") + "".join(f"{name}: %b\r\n" for name in names)
        ending = f"{self._id_ending(message, subject)}\r\n{self._ending}".replace("%", "%%")
        block = f"{lines}{MESSAGE_ID}: %b{ending}".encode()
        id, time = b"." * 36, b"." * 27
        size = len(block % (id, time, *([b"", b""] if has_key else []), id))
        return size, b"HPUB %b %%b %%d %%d\r\n%b%%b\r\n" % (subject.replace("%", "%%").encode(), block)

    def _id_ending(self, message: StoredMessage, subject: str) -> str:
        """What follows the id of a message in that by which a stream drops duplicates."""
        ending = percent_encoded(dedupe_id(message)[36:])  # a message may have any text as the id of its rewind
        if self._id_has_subject:
            return f"{ending}/{percent_encoded(subject)}"  # a stream may get a message from two sinks, by two subjects
        return ending

    def _wrapped(self, message: StoredMessage) -> tuple[str, bytes]:
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        _check_headers(headers)
        headers.pop(CONTENT_TYPE, None)
        lines = _lines(headers)
        if content_type:  # no attribute, so it is not encoded, if it can be sent as it is
            plain = content_type.isascii() and content_type.isprintable()
            lines += f"{CONTENT_TYPE}: {content_type if plain else percent_encoded(content_type)}\r\n"
        return lines, body


def _too_large(size: int, largest: int) -> CannotEncode:
    return CannotEncode(
        f"it has {size:,} bytes with its headers and the server takes at most {largest:,} (max_payload)"
    )


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
