"""What a message is: its fields, its limits, its ids, and in which slot it falls.

Nothing here does I/O. A `Message` is what an application adds, a `NewRow` is what is written for it, and a
`StoredMessage` is what a relay reads back. Whatever is wrong with a message is found here, before anything is written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from postroad.errors import InvalidMessage
from postroad.payload import JSON, encode_event
from postroad.tombstone import is_tombstone
from postroad.trace_context import NO_CONTEXT, STATE_HEADER, TRACE_HEADER, TraceContext, current_context

__all__ = [
    "CODEC_HEADERS",
    "CONTENT_ENCODING",
    "DATAREF",
    "ENCRYPTION",
    "LARGEST_PAYLOAD",
    "LARGEST_PAYLOAD_OF_ALL",
    "LONGEST_HEADERS",
    "LONGEST_NAME",
    "RESERVED_HEADERS",
    "REWIND_HEADER",
    "SLOTS",
    "UNSET",
    "Correlation",
    "Message",
    "NewRow",
    "StoredMessage",
    "Unset",
    "any_unread",
    "check_headers",
    "check_payload",
    "checked_name",
    "correlated",
    "correlation_id",
    "encode",
    "event",
    "has_type_of_its_own",
    "new_id",
    "slot_of",
    "type_name",
]

SLOTS: Final = 1024
LONGEST_NAME: Final = 255  # bytes of a topic, type or correlation id: what AMQP can carry of each
LONGEST_KEY: Final = 1024  # bytes of a key
LARGEST_PAYLOAD: Final = 1024 * 1024  # unless an Outbox has another limit
LARGEST_PAYLOAD_OF_ALL: Final = 16 * 1024 * 1024  # bytes; what RabbitMQ takes by default
LONGEST_HEADERS: Final = 64 * 1024  # bytes of all headers, as JSON
REWIND_HEADER: Final = "postroad-rewind"  # marks what is published again by a rewind, and says by which
CONTENT_ENCODING: Final = "content_encoding"  # how the payload is compressed
ENCRYPTION: Final = "encryption"  # how, and with which key, it is encrypted
DATAREF: Final = "dataref"  # where it is, if it is stored elsewhere
CODEC_HEADERS: Final = frozenset({CONTENT_ENCODING, ENCRYPTION, DATAREF})
RESERVED_HEADERS: Final = frozenset({"source", "correlation_id", "causation_id"}) | CODEC_HEADERS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+ *(;[\x20-\x7e]*)?", re.ASCII)
_TYPE_ATTRIBUTE: Final = "__postroad_type__"
# A word ends before an upper-case letter that follows a lower-case one or a digit, and before the last capital of an
# abbreviation: HTTPRequestSent -> HTTP Request Sent.
_WORD_BREAK: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

C = TypeVar("C", bound=type)


class Unset(Enum):
    """The argument was left out, which for a key is not the same as None."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


# -- types and correlation -------------------------------------------------------------------------------------------


def event(type: str) -> Callable[[C], C]:
    """Set the type of a class's messages: `@event("order.created.v1")`.

    The name belongs to that class alone; a subclass has its own `@event` or is named after its class.
    """
    checked_name("type", type)

    def name_it(cls: C) -> C:
        setattr(cls, _TYPE_ATTRIBUTE, type)
        return cls

    return name_it


def type_name(cls: type) -> str:
    """The type of a class's messages: that of `@event`, else the class name in dotted words without `Event`."""
    given = cls.__dict__.get(_TYPE_ATTRIBUTE)
    if given is not None:
        return str(given)
    words = _WORD_BREAK.split(cls.__name__.strip("_").replace("_", "."))
    if len(words) > 1 and words[-1] == "Event":
        words.pop()
    return ".".join(words).lower()


def has_type_of_its_own(cls: type) -> bool:
    """Whether the class has an `@event`."""
    return _TYPE_ATTRIBUTE in cls.__dict__


_correlation: ContextVar[str | None] = ContextVar("postroad_correlation_id", default=None)
_trace: ContextVar[TraceContext] = ContextVar("postroad_trace", default=NO_CONTEXT)
_causation: ContextVar[str | None] = ContextVar("postroad_causation_id", default=None)


def correlation_id() -> str | None:
    """The correlation id that messages added here and now would get."""
    return _correlation.get()


@contextmanager
def correlated(
    correlation_id: str,
    *,
    traceparent: str | None = None,
    tracestate: str | None = None,
    causation_id: str | None = None,
) -> Iterator[None]:
    """Give every message that is added inside this block the same correlation id, and the trace it belongs to.

    Where a span of OpenTelemetry is current, a message belongs to that span, whatever `traceparent` says.
    `causation_id` is the id of the message that is being handled; a block inside this one keeps it.
    """
    cause = _causation.get() if causation_id is None else causation_id
    with Correlation(correlation_id, TraceContext(traceparent, tracestate), cause):
        yield


class Correlation:
    """The same for the consumer, which opens such a block for each message: a class, because it costs less."""

    __slots__ = ("_before", "_values")

    def __init__(self, correlation_id: str, trace: TraceContext, causation_id: str | None) -> None:
        _checked_text("correlation_id", correlation_id, longest=LONGEST_NAME)
        self._values = (correlation_id, trace, causation_id)

    def __enter__(self) -> None:
        correlation_id, trace, causation_id = self._values
        self._before = _correlation.set(correlation_id), _trace.set(trace), _causation.set(causation_id)

    def __exit__(self, *_: object) -> None:
        correlation, trace, causation = self._before
        _causation.reset(causation)
        _trace.reset(trace)
        _correlation.reset(correlation)


# -- ids and slots ---------------------------------------------------------------------------------------------------


def new_id() -> UUID:
    """A UUIDv7: milliseconds since 1970, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    return UUID(
        int=(milliseconds & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (random >> 68) << 64
        | 0b10 << 62
        | random & (1 << 62) - 1
    )


def slot_of(key: str | None, id: UUID) -> int:
    """The slot of a key, or of the id (in its canonical text form) when there is no key."""
    digest = sha256((str(id) if key is None else key).encode()).digest()
    return (digest[0] << 8 | digest[1]) % SLOTS


# -- what is added ---------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True):
    """What a message is about: the one field that is given by its place."""

    event: Any


class Message(_Event, frozen=True, kw_only=True):
    """An event and what is to be known about it, for `Outbox.add_many`. See `Outbox.add` for the fields."""

    key: str | int | UUID | Unset = UNSET
    type: str | None = None
    topic: str | None = None
    id: UUID | None = None
    headers: Mapping[str, str] | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    deliver_at: datetime | None = None
    deliver_in: timedelta | str | None = None
    content_type: str | None = None


class NewRow(NamedTuple):
    """A message as it is written: the columns that the writer gives, in this order, in every database."""

    id: UUID
    topic: str
    key: str | None
    slot: int
    type: str
    payload: bytes
    content_type: str
    headers: str

    def stored(self, position: int, created_at: datetime) -> StoredMessage:
        """The row as it is read back."""
        return StoredMessage(position, *self, (created_at - _EPOCH) // timedelta(microseconds=1))


def encode(message: Message, source: str, largest_payload: int | None = LARGEST_PAYLOAD) -> NewRow:
    """Check a message and turn it into the row to write. Raises InvalidMessage.

    Without a limit, the payload's size is checked later, when codecs have changed it.
    """
    id = message.id if message.id is not None else new_id()
    if not isinstance(id, UUID):
        raise InvalidMessage(f"id is {_shown(id)}; it must be a uuid.UUID")
    key = _checked_key(message.key)
    payload, content_type = encode_event(message.event)
    if not content_type:
        _check_tombstone(message)
    if message.content_type is not None:
        content_type = _checked_content_type(message, content_type)
    type = _type_of(message)
    if largest_payload is not None:
        check_payload(type, payload, largest_payload)
    return NewRow(
        id=id,
        topic=type if message.topic is None else checked_name("topic", message.topic),
        key=key,
        slot=slot_of(key, id),
        type=type,
        payload=payload,
        content_type=content_type,
        headers=_encode_headers(message, source),
    )


def _check_tombstone(message: Message) -> None:
    if message.type is None or message.key is UNSET:
        missing = "type" if message.type is None else "key"
        raise InvalidMessage(
            f"a Tombstone needs a type and a key, which name what is gone, and {missing} was left out: "
            "add(tx, Tombstone(), type='customer', key=7)"
        )


def _checked_content_type(message: Message, own: str) -> str:
    """The content type that was given. What is encoded here is JSON, and can't be called anything else."""
    given = _checked_text("content_type", message.content_type, longest=LONGEST_NAME)
    if _MEDIA_TYPE.fullmatch(given) is None:
        raise InvalidMessage(f"content_type is {_shown(given)}; it must be a media type, such as 'application/avro'")
    media_type = given.partition(";")[0].strip().lower()
    if media_type.startswith("application/cloudevents"):
        raise InvalidMessage(
            f"content_type is {_shown(given)}, and consumers would take the payload for a CloudEvent; give the content "
            "type of its data, postroad makes the CloudEvent"
        )
    if not own:
        raise InvalidMessage(f"content_type is {_shown(given)}, and a Tombstone has no content; leave it out")
    if own == JSON and not media_type.endswith(("/json", "+json")):
        raise InvalidMessage(
            f"content_type is {_shown(given)}, and {message.event.__class__.__name__} is encoded as JSON; encode it "
            "yourself and add the bytes, or give a type that ends in +json"
        )
    return given


def _type_of(message: Message) -> str:
    if message.type is not None:
        return checked_name("type", message.type)
    return _type_of_class(message.event.__class__)


@lru_cache(maxsize=1024)
def _type_of_class(cls: type) -> str:
    if cls.__module__ == "builtins":
        raise InvalidMessage(f"{cls.__name__} has no type of its own; give one, for example type='order.created'")
    return checked_name("type", type_name(cls))


@lru_cache
def _only_source(source: str) -> str:
    return msgspec.json.encode({"source": source}).decode()


def _encode_headers(message: Message, source: str) -> str:
    correlation = message.correlation_id if message.correlation_id is not None else _correlation.get()
    causation = message.causation_id if message.causation_id is not None else _causation.get()
    trace = current_context()
    if trace is NO_CONTEXT:
        trace = _trace.get()
    if correlation is None and trace.traceparent is None and causation is None and not message.headers:
        return _only_source(source)
    own = _checked_headers(message.headers) if message.headers else {}
    headers = {"source": source}
    # Ordinary headers: the message's own win, and a state belongs to its parent.
    if trace.traceparent is not None and TRACE_HEADER not in own:
        headers[TRACE_HEADER] = _checked_text(TRACE_HEADER, trace.traceparent)
        if trace.tracestate is not None:
            headers[STATE_HEADER] = _checked_text(STATE_HEADER, trace.tracestate)
    if correlation is not None:
        headers["correlation_id"] = _checked_text("correlation_id", correlation, longest=LONGEST_NAME)
    if causation is not None:
        headers["causation_id"] = _checked_text("causation_id", causation, longest=LONGEST_NAME)
    encoded = msgspec.json.encode(headers | own)
    check_headers(encoded)
    return encoded.decode()


# -- checks ----------------------------------------------------------------------------------------------------------


def check_payload(type: str, payload: bytes, largest: int) -> None:
    """Refuse a payload that is too large for a row. Raises InvalidMessage."""
    if len(payload) > largest:
        raise InvalidMessage(
            f"the payload of this {type!r} has {len(payload):,} bytes and the limit is {largest:,}; have it stored "
            "elsewhere (codecs=[ClaimCheck(store)]), or raise the Outbox's largest_payload"
        )


def check_headers(encoded: bytes | str) -> None:
    """Refuse headers that are too large for a row. Raises InvalidMessage."""
    length = len(encoded) if isinstance(encoded, bytes) or encoded.isascii() else len(encoded.encode())
    if length > LONGEST_HEADERS:
        raise InvalidMessage(
            f"headers has {length:,} bytes as JSON and the limit is {LONGEST_HEADERS:,}; "
            "put large data into the event itself"
        )


def checked_name(what: Literal["topic", "type"], value: Any) -> str:
    """A topic or a type: not empty, not longer than a routing key can be."""
    return _checked_text(what, value, longest=LONGEST_NAME)


def _checked_key(key: Any) -> str | None:
    if key is UNSET:
        return None
    if key is None:
        raise InvalidMessage(
            "key is None, which usually is an id that the database has not assigned yet; "
            "flush first to get it, or leave key out if this message needs no order"
        )
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        key = str(key)
    elif not isinstance(key, str):
        raise InvalidMessage(f"key is {_shown(key)}; it must be a str, an int or a uuid.UUID")
    return _checked_text("key", key, longest=LONGEST_KEY)


def _checked_headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers is {_shown(headers)}; it must be a mapping of str to str")
    checked = {}
    for name, value in headers.items():
        _checked_text("a header's name", name)
        if name in RESERVED_HEADERS:
            raise InvalidMessage(f"header {name!r} is postroad's own; use the argument or the Outbox's setting")
        checked[name] = _checked_text(f"header {name!r}", value, may_be_empty=True)
    return checked


def _checked_text(what: str, value: Any, *, longest: int | None = None, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(f"{what} is {_shown(value)}; it must be a str")
    if not value and not may_be_empty:
        raise InvalidMessage(f"{what} is empty")
    if "\0" in value:
        raise InvalidMessage(f"{what} is {_shown(value)}; it must not contain a NUL character")
    try:
        length = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{what} is {_shown(value)}, which is no valid Unicode text: {error.reason}") from None
    if longest is not None and length > longest:
        raise InvalidMessage(f"{what} has {length:,} bytes and the limit is {longest:,}: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value as it may stand in an error: short, whatever it is."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- what is read back -----------------------------------------------------------------------------------------------


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it stands in the log. Headers and the time are decoded when they are asked for."""

    position: int
    id: UUID
    topic: str
    key: str | None
    slot: int
    type: str
    payload: bytes
    content_type: str
    headers_json: str
    created_us: int
    """When the transaction that added it began, in microseconds since 1970."""

    @property
    def is_unread(self) -> bool:
        """It is too large: its payload, content type and headers were not read, and are empty here."""
        return not self.headers_json

    @property
    def is_tombstone(self) -> bool:
        """It has no content: what its key names is gone. See `Tombstone`."""
        return is_tombstone(self.payload, self.content_type) and not self.is_unread

    @property
    def size(self) -> int:
        """What it counts for in a page, as the named queries count it."""
        return len(self.payload) + len(self.headers_json)

    @property
    def all_headers(self) -> dict[str, str]:
        """Postroad's own headers and the user's."""
        return _decode_headers(self.headers_json)

    @property
    def headers(self) -> dict[str, str]:
        """The user's own headers."""
        return {name: value for name, value in self.all_headers.items() if name not in RESERVED_HEADERS}

    @property
    def source(self) -> str:
        """The service that added it: the `source` of its Outbox."""
        return self.all_headers["source"]

    @property
    def correlation_id(self) -> str | None:
        """The id that all messages which follow from one request share."""
        return self.all_headers.get("correlation_id")

    @property
    def causation_id(self) -> str | None:
        """The id of the message that led to this one."""
        return self.all_headers.get("causation_id")

    @property
    def created_at(self) -> datetime:
        """When the transaction that added it began, by the database's clock."""
        return _EPOCH + timedelta(microseconds=self.created_us)


def any_unread(messages: Iterable[StoredMessage]) -> bool:
    """Whether one of them is too large. This is asked about every page: a comprehension costs the least."""
    return bool([True for message in messages if not message.headers_json])


_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
