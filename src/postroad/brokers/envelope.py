"""How a stored message looks on the wire: CloudEvents 1.0, whatever the broker.

Nothing here knows a broker and nothing here does I/O. A broker takes the content type, the headers and the body from
here and puts them where its protocol wants them; only the prefix of the headers differs between protocols.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from postroad.errors import InvalidSetting
from postroad.message import RESERVED_HEADERS

if TYPE_CHECKING:
    from postroad.message import StoredMessage

__all__ = ["CannotEncode", "Envelope", "Mode", "Wire", "decoded_headers", "headers_and_body"]

Mode = Literal["binary", "structured", "plain"]

MODES: Final = get_args(Mode)
# Every prefix that a CloudEvents binding defines: HTTP, NATS and RabbitMQ; Kafka; AMQP 1.0 in its two spellings.
PREFIXES: Final = ("ce-", "ce_", "cloudEvents:", "cloudEvents_")
STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=utf-8"


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
        return headers_and_body(message, self.mode, self.prefix)


def headers_and_body(message: StoredMessage, mode: Mode = "binary", prefix: str = "ce-") -> Wire:
    """The content type, headers and body of a message. Raises CannotEncode."""
    known, headers = _told_apart(message)
    if mode == "plain":
        return Wire(message.content_type, headers, message.payload)
    attributes = _attributes(message, known, headers)
    if mode == "structured":
        return Wire(STRUCTURED_TYPE, headers, _document(attributes, message))
    for name, value in attributes.items():
        headers[prefix + name] = value
    return Wire(message.content_type, headers, message.payload)


def decoded_headers(message: StoredMessage) -> dict[str, str]:
    """All headers of a message. Raises CannotEncode when somebody else wrote them, and wrongly."""
    try:
        return message.all_headers
    except msgspec.MsgspecError as error:
        raise CannotEncode(f"its headers are no JSON object of strings: {error}") from None


def _told_apart(message: StoredMessage) -> tuple[dict[str, str], dict[str, str]]:
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
    """A second of UTC as RFC 3339 writes it. The messages of a page share theirs, so it is made once."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def _document(attributes: dict[str, str], message: StoredMessage) -> bytes:
    document: dict[str, Any] = {**attributes, "datacontenttype": message.content_type}
    field, data = _data(message)
    document[field] = data
    return msgspec.json.encode(document)


def _data(message: StoredMessage) -> tuple[str, Any]:
    """JSON is embedded as it is, text as a string; whatever is neither goes as base64, also what only says it is."""
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
