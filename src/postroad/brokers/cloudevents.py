"""CloudEvents 1.0, whatever the broker: `wrap` makes the wire form of a message, `unwrap` reads a delivery. Pure.

A broker takes content type, headers and body from here and puts them where its protocol wants them; only the prefix of
the headers differs between protocols.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

import msgspec

from postroad.errors import InvalidSetting
from postroad.message import CONTENT_ENCODING, DATAREF, ENCRYPTION, RESERVED_HEADERS
from postroad.received import Received, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroad.brokers.base import Delivery
    from postroad.message import StoredMessage

__all__ = [
    "MODES",
    "PREFIXES",
    "STRUCTURED_TYPE",
    "CannotEncode",
    "Envelope",
    "Mode",
    "Wire",
    "decoded_headers",
    "percent_decoded",
    "percent_encoded",
    "time_of",
    "unwrap",
    "wrap",
]

Mode = Literal["binary", "structured", "plain"]

MODES: Final = get_args(Mode)
# Every prefix that a CloudEvents binding defines: HTTP, NATS and RabbitMQ; Kafka; AMQP 1.0 in its two spellings.
PREFIXES: Final = ("ce-", "ce_", "cloudEvents:", "cloudEvents_")
STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=utf-8"

LONGEST_ID: Final = 255  # bytes: what AMQP can carry of a causation id
LONGEST_TYPE: Final = 255
LONGEST_IDENTITY: Final = 1024  # bytes: what the inbox can keep

# What CloudEvents' binding for HTTP leaves as it is: printable ASCII without the space, the quote and the percent sign.
_SAFE: Final = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
_IS_SAFE: Final = re.compile(r"[!#$&-~]*").fullmatch
_JSON: Final = "application/json"
_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "time", "subject", "partitionkey", "correlationid", "causationid"}
    | {"datacontenttype", "dataschema"}
)


class _Names(NamedTuple):
    """The attributes that a Received has fields for, as their headers are called."""

    id: str
    type: str
    source: str
    partitionkey: str
    subject: str
    correlationid: str
    causationid: str
    time: str


_NAMES: Final = {prefix: _Names(*(f"{prefix}{name}" for name in _Names._fields)) for prefix in ("", *PREFIXES)}
_KNOWN: Final = {prefix: frozenset(f"{prefix}{name}" for name in _ATTRIBUTES) for prefix in PREFIXES}

_CODEC_ATTRIBUTES: Final = {"contentencoding": CONTENT_ENCODING, "payloadencryption": ENCRYPTION}
"""What codecs did, as attributes of a document, whose names have letters and digits alone."""

# -- wrap: a stored message as a broker sends it ---------------------------------------------------------------------


class CannotEncode(ValueError):
    """This message cannot be put on the wire as it is. A publisher makes a permanent Refusal of it."""


class Wire(NamedTuple):
    """A message as it is handed to a broker's protocol."""

    content_type: str
    """Empty for a tombstone, whose body is empty, too."""
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """Which form messages take.

    `binary`: the payload is the body, and the attributes are headers that begin with `prefix`.
    `structured`: the body is one JSON document with the attributes and the payload.
    `plain`: the payload and the user's own headers, for consumers that know nothing of CloudEvents.

    The user's own headers are headers in every mode. The prefix `ce-` is what the binding for RabbitMQ and the official
    Python SDK's `bindings.rabbitmq` read; readers that speak AMQP 1.0, and Spring, want `cloudEvents:`.
    """

    mode: Mode = "binary"
    prefix: str = "ce-"
    percent_encoded: bool = False
    """For a transport whose headers carry printable ASCII alone: `percent_decoded` restores their values."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.mode not in MODES:
            raise InvalidSetting(f"the envelope's mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        if self.prefix not in PREFIXES:
            raise InvalidSetting(f"the envelope's prefix is {self.prefix!r}; it must be one of {', '.join(PREFIXES)}")

    def wrap(self, message: StoredMessage) -> Wire:
        """The message in this form. Raises CannotEncode."""
        wire = wrap(message, self.mode, self.prefix)
        if self.percent_encoded:
            return wire._replace(headers={name: percent_encoded(value) for name, value in wire.headers.items()})
        return wire


def percent_encoded(value: str) -> str:
    """A header's value for a transport that carries printable ASCII alone."""
    return value if _IS_SAFE(value) else quote(value, safe=_SAFE)


def wrap(message: StoredMessage, mode: Mode = "binary", prefix: str = "ce-") -> Wire:
    """The content type, headers and body of a message. Raises CannotEncode."""
    known, headers = _reserved_and_own(message)
    for name in (CONTENT_ENCODING, ENCRYPTION, DATAREF) if mode == "plain" else (CONTENT_ENCODING, ENCRYPTION):
        if name in known:  # how to read the payload, for the consumer's codecs
            headers[name] = known[name]
    if mode == "plain":
        return Wire(message.content_type, headers, message.payload)
    attributes = _attributes(message, known, headers)
    if mode == "structured":
        # In the document too: an element of a batch has no headers of its own.
        attributes |= {name: known[header] for name, header in _CODEC_ATTRIBUTES.items() if header in known}
        return Wire(STRUCTURED_TYPE, headers, _document(attributes, message))
    for name, value in attributes.items():
        headers[prefix + name] = value
    return Wire(message.content_type, headers, message.payload)


def decoded_headers(message: StoredMessage) -> dict[str, str]:
    """All headers of a message. Raises CannotEncode when a program other than postroad wrote them, and wrongly."""
    try:
        return message.all_headers
    except msgspec.MsgspecError as error:
        raise CannotEncode(f"its headers are no JSON object of strings: {error}") from None


def _reserved_and_own(message: StoredMessage) -> tuple[dict[str, str], dict[str, str]]:
    """Postroad's own headers, and the user's."""
    headers = decoded_headers(message)
    known = {name: headers.pop(name) for name in RESERVED_HEADERS if name in headers}
    return known, headers


def _attributes(message: StoredMessage, known: dict[str, str], headers: dict[str, str]) -> dict[str, str]:
    """The CloudEvents attributes, all but `datacontenttype`, which bindings place elsewhere."""
    source = known.get("source")
    if not source:
        raise CannotEncode("it has no header 'source', and CloudEvents requires one; add messages through an Outbox")
    attributes = {
        "specversion": "1.0",
        "id": str(message.id),
        "source": source,
        "type": message.type,
        "time": time_of(message).decode(),
    }
    if message.key is not None:
        attributes["subject"] = attributes["partitionkey"] = message.key
    if "correlation_id" in known:
        attributes["correlationid"] = known["correlation_id"]
    if "causation_id" in known:
        attributes["causationid"] = known["causation_id"]
    if DATAREF in known:
        attributes[DATAREF] = known[DATAREF]
    for name in ("traceparent", "tracestate"):  # plain headers too: that is where tracing libraries look
        if name in headers:
            attributes[name] = headers[name]
    return attributes


class _Times:
    """Makes texts of times. The last one is kept: messages of one transaction, which follow each other, share it."""

    def __init__(self) -> None:
        self._last: tuple[int | None, bytes] = (None, b"")

    def of(self, message: StoredMessage) -> bytes:
        """The attribute `time`: when the transaction that added it began. 27 characters of ASCII."""
        microseconds, text = self._last
        if microseconds != message.created_us:
            microseconds = message.created_us
            text = _second(microseconds // 1_000_000) % (microseconds % 1_000_000)
            self._last = microseconds, text  # together, because another thread may be here, too
        return text


time_of = _Times().of


@lru_cache(maxsize=1024)
def _second(seconds: int) -> bytes:
    """A second of UTC as RFC 3339 writes it, with a gap for its microseconds. It is cached because the messages of a
    page mostly share it.
    """
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]}.%06dZ".encode()


def _document(attributes: dict[str, str], message: StoredMessage) -> bytes:
    document: dict[str, Any] = {**attributes}
    if not message.is_tombstone:
        document["datacontenttype"] = message.content_type
        if message.payload or DATAREF not in attributes:
            field, data = _data(message)
            document[field] = data
    return msgspec.json.encode(document)


def _data(message: StoredMessage) -> tuple[str, Any]:
    """JSON is embedded as it is, text as a string; all else is base64, also a payload that contradicts its type."""
    media_type, _, parameters = message.content_type.lower().partition(";")
    try:
        if media_type.strip().endswith(("/json", "+json")):
            message.payload.decode()  # msgspec looks at the structure only, and the document must be UTF-8
            return "data", msgspec.json.decode(message.payload, type=msgspec.Raw)
        if media_type.startswith("text/") and ("charset" not in parameters or "utf-8" in parameters):
            return "data", message.payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise CannotEncode(
            "its payload is JSON that is nested too deeply for the envelope 'structured'; publish it as 'binary'"
        ) from None
    return "data_base64", b64encode(message.payload).decode()


# -- unwrap: a delivery as the message it carries ----------------------------------------------------------------------


def percent_decoded(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a transport that percent-encodes their values, for a Delivery.

    What is no percent-encoded UTF-8 stays as it is, since other programs' headers may not be encoded.
    """
    return {name: _percent_decoded(value) for name, value in headers.items()}


def _percent_decoded(value: str) -> str:
    if "%" not in value:
        return value
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        return value


def unwrap(delivery: Delivery) -> Received:
    """The message in a delivery. Raises Unreadable."""
    if delivery.unreadable is not None:
        raise Unreadable(f"its properties can't be read: {delivery.unreadable}")
    content_type, payload = delivery.content_type or "", delivery.body
    if content_type.lower().startswith("application/cloudevents+json"):
        document, content_type, payload = _structured(payload)
        attributes: Mapping[str, str] = document
        headers, prefix = _texts(delivery.headers), ""
        _keep_others(document, document.keys() - _ATTRIBUTES, headers, prefix)
    else:
        attributes, headers, prefix = _attributes_and_own(delivery.headers)
    found = attributes.get
    names = _NAMES[prefix]
    id = found(names.id) or delivery.message_id
    type = found(names.type) or delivery.type or ""
    if not id:
        raise Unreadable("it has no id, so the inbox could not tell whether it was processed before")
    if len(id.encode()) > LONGEST_ID or "\0" in id:
        raise Unreadable(f"its id is longer than {LONGEST_ID} bytes, or has a NUL character in it: {id[:60]!r}")
    if len(type.encode()) > LONGEST_TYPE or "\0" in type:
        raise Unreadable(f"its type is longer than {LONGEST_TYPE} bytes, or has a NUL character in it: {type[:60]!r}")
    message = Received(
        id=id,
        type=type,
        source=found(names.source),
        key=found(names.partitionkey) or delivery.key or found(names.subject),
        payload=payload,
        content_type=content_type,
        headers=headers,
        correlation_id=_usable(found(names.correlationid) or delivery.correlation_id),
        causation_id=found(names.causationid),
        time=found(names.time),
    )
    if len(message.identity.encode()) > LONGEST_IDENTITY or "\0" in message.identity:
        raise Unreadable(f"its source is too long, or has a NUL character in it: {message.source!r:.60}")
    return message


def _usable(correlation_id: str | None) -> str | None:
    """The id, if what follows from this message can carry it on."""
    if correlation_id is None or len(correlation_id.encode()) > LONGEST_ID or "\0" in correlation_id:
        return None
    return correlation_id


def _attributes_and_own(headers: Mapping[str, Any]) -> tuple[Mapping[str, str], dict[str, str], str]:
    """Headers among which the attributes are, the user's own headers, and the prefix that attributes have."""
    for value in headers.values():  # mostly all are texts, and this is done for each message
        if value.__class__ is not str:
            headers = _texts(headers)
            break
    for prefix, names in _NAMES.items():
        if prefix and names.id in headers:
            break
    else:
        return _in_any_case(dict(headers))
    known = _KNOWN[prefix]
    own = {name: value for name, value in headers.items() if name not in known}
    others = [name for name in own if name.startswith(prefix)]
    if others:
        _keep_others(own, others, own, prefix)
    return headers, own, prefix


def _keep_others(attributes: dict[str, str], names: Iterable[str], own: dict[str, str], prefix: str) -> None:
    """Attributes that Received has no field for become headers: what codecs did, and extensions of the producer's."""
    for name in names:
        attribute, value = name.removeprefix(prefix), attributes.pop(name)
        if attribute in _CODEC_ATTRIBUTES:
            own[_CODEC_ATTRIBUTES[attribute]] = value
        else:
            own.setdefault(attribute, value)


def _in_any_case(headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str], str]:
    """The same for headers whose names a transport has changed, such as Ce-Id: attributes have lower-case names."""
    lowered = {name.lower() for name in headers}
    prefix = next((each.lower() for each in PREFIXES if f"{each.lower()}id" in lowered), None)
    if prefix is None:
        return {}, headers, ""
    attributes, own = {}, {}
    for name, value in headers.items():
        if name.lower().startswith(prefix):
            attributes[name.lower()[len(prefix) :]] = value
        else:
            own[name] = value
    _keep_others(attributes, attributes.keys() - _ATTRIBUTES, own, "")
    return attributes, own, ""


def _structured(body: bytes) -> tuple[dict[str, str], str, bytes]:
    try:
        document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        names = document.keys() - {"data", "data_base64"}
        attributes = {name: _text(msgspec.json.decode(document[name])) for name in names}
        if document.keys().isdisjoint({"data", "data_base64", "datacontenttype"}):
            return attributes, "", b""  # a tombstone
        content_type = attributes.get("datacontenttype", _JSON)
        if DATAREF in document and document.keys().isdisjoint({"data", "data_base64"}):
            return attributes, content_type, b""  # it is stored elsewhere
        if "data_base64" in document:
            return attributes, content_type, b64decode(_string(document["data_base64"]), validate=True)
        data = bytes(document.get("data", msgspec.Raw(b"null")))
        if content_type.lower().startswith("text/") and data.startswith(b'"'):
            return attributes, content_type, _string(data).encode()
    except RecursionError:
        raise Unreadable("its body is JSON that is nested too deeply to be read") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unreadable(f"its body is no CloudEvent in JSON: {error}") from error
    return attributes, content_type, data


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in headers.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _string(raw: msgspec.Raw | bytes) -> str:
    return msgspec.json.decode(raw, type=str)
