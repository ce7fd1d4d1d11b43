"""CloudEvents 1.0, whatever the broker: `wrap` makes the wire form of a message, `unwrap` reads a delivery. Pure.

A broker takes content type, headers and body from here and puts them where its protocol wants them; only the prefix of
the headers differs between protocols.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from postroad.errors import InvalidSetting
from postroad.message import RESERVED_HEADERS
from postroad.received import Received, Unreadable

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery
    from postroad.message import StoredMessage

__all__ = ["MODES", "PREFIXES", "CannotEncode", "Envelope", "Mode", "Wire", "decoded_headers", "unwrap", "wrap"]

Mode = Literal["binary", "structured", "plain"]

MODES: Final = get_args(Mode)
# Every prefix that a CloudEvents binding defines: HTTP, NATS and RabbitMQ; Kafka; AMQP 1.0 in its two spellings.
PREFIXES: Final = ("ce-", "ce_", "cloudEvents:", "cloudEvents_")
STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=utf-8"

LONGEST_ID: Final = 255  # bytes: what AMQP can carry of a causation id
LONGEST_TYPE: Final = 255
LONGEST_IDENTITY: Final = 1024  # bytes: what the inbox can keep

_JSON: Final = "application/json"
_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "time", "subject", "partitionkey", "correlationid", "causationid"}
    | {"datacontenttype", "dataschema"}
)

# -- wrap: a stored message as a broker sends it ---------------------------------------------------------------------


class CannotEncode(ValueError):
    """This message cannot be put on the wire as it is. A publisher makes a permanent Refusal of it."""


class Wire(NamedTuple):
    """A message as it is handed to a broker's protocol."""

    content_type: str
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

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.mode not in MODES:
            raise InvalidSetting(f"the envelope's mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        if self.prefix not in PREFIXES:
            raise InvalidSetting(f"the envelope's prefix is {self.prefix!r}; it must be one of {', '.join(PREFIXES)}")

    def wrap(self, message: StoredMessage) -> Wire:
        """The message in this form. Raises CannotEncode."""
        return wrap(message, self.mode, self.prefix)


def wrap(message: StoredMessage, mode: Mode = "binary", prefix: str = "ce-") -> Wire:
    """The content type, headers and body of a message. Raises CannotEncode."""
    known, headers = _reserved_and_own(message)
    if mode == "plain":
        return Wire(message.content_type, headers, message.payload)
    attributes = _attributes(message, known, headers)
    if mode == "structured":
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
        "time": f"{_second(message.created_us // 1_000_000)}.{message.created_us % 1_000_000:06}Z",
    }
    if message.key is not None:
        attributes["subject"] = attributes["partitionkey"] = message.key
    if "correlation_id" in known:
        attributes["correlationid"] = known["correlation_id"]
    if "causation_id" in known:
        attributes["causationid"] = known["causation_id"]
    for name in ("traceparent", "tracestate"):  # plain headers too: that is where tracing libraries look
        if name in headers:
            attributes[name] = headers[name]
    return attributes


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """A second of UTC as RFC 3339 writes it, cached because the messages of a page mostly share it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def _document(attributes: dict[str, str], message: StoredMessage) -> bytes:
    document: dict[str, Any] = {**attributes, "datacontenttype": message.content_type}
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


def unwrap(delivery: Delivery) -> Received:
    """The message in a delivery. Raises Unreadable."""
    if delivery.unreadable is not None:
        raise Unreadable(f"its properties can't be read: {delivery.unreadable}")
    headers = {name: _text(value) for name, value in delivery.headers.items()}
    if (delivery.content_type or "").lower().startswith("application/cloudevents+json"):
        attributes, content_type, payload = _structured(delivery.body)
    else:
        attributes, headers = _attributes_and_own(headers)
        content_type, payload = delivery.content_type or "", delivery.body
    for name in attributes.keys() - _ATTRIBUTES:  # extensions of the producer's own
        headers.setdefault(name, attributes[name])
    id = attributes.get("id") or delivery.message_id
    type = attributes.get("type") or delivery.type or ""
    if not id:
        raise Unreadable("it has no id, so the inbox could not tell whether it was processed before")
    if len(id.encode()) > LONGEST_ID or "\0" in id:
        raise Unreadable(f"its id is longer than {LONGEST_ID} bytes, or has a NUL character in it: {id[:60]!r}")
    if len(type.encode()) > LONGEST_TYPE or "\0" in type:
        raise Unreadable(f"its type is longer than {LONGEST_TYPE} bytes, or has a NUL character in it: {type[:60]!r}")
    found = Received(
        id=id,
        type=type,
        source=attributes.get("source"),
        key=attributes.get("partitionkey") or attributes.get("subject"),
        payload=payload,
        content_type=content_type,
        headers=headers,
        correlation_id=_usable(attributes.get("correlationid") or delivery.correlation_id),
        causation_id=attributes.get("causationid"),
        time=attributes.get("time"),
    )
    if len(found.identity.encode()) > LONGEST_IDENTITY or "\0" in found.identity:
        raise Unreadable(f"its source is too long, or has a NUL character in it: {found.source!r:.60}")
    return found


def _usable(correlation_id: str | None) -> str | None:
    """The id, if what follows from this message can carry it on."""
    if correlation_id is None or len(correlation_id.encode()) > LONGEST_ID or "\0" in correlation_id:
        return None
    return correlation_id


def _attributes_and_own(headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The attributes among the headers, whatever prefix they have, and the user's own headers."""
    prefix = next((each for each in PREFIXES if f"{each}id" in headers), None)
    if prefix is None:
        return {}, headers
    attributes, own = {}, {}
    for name, value in headers.items():
        if name.startswith(prefix):
            attributes[name[len(prefix) :]] = value
        else:
            own[name] = value
    return attributes, own


def _structured(body: bytes) -> tuple[dict[str, str], str, bytes]:
    try:
        document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        names = document.keys() - {"data", "data_base64"}
        attributes = {name: _text(msgspec.json.decode(document[name])) for name in names}
        content_type = attributes.get("datacontenttype", _JSON)
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


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _string(raw: msgspec.Raw | bytes) -> str:
    return msgspec.json.decode(raw, type=str)
