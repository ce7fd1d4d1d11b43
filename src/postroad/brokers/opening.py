"""How a delivered message is read: CloudEvents 1.0, binary or structured, or plain. `envelope` is the writing side.

Nothing here knows a broker and nothing here does I/O.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.brokers.envelope import PREFIXES
from postroad.received import Received, Unreadable

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery

__all__ = ["opened"]

LONGEST_ID: Final = 255  # bytes: what AMQP can carry of a causation id
LONGEST_TYPE: Final = 255
LONGEST_IDENTITY: Final = 1024  # bytes: what the inbox can keep

_JSON: Final = "application/json"
_ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "time", "subject", "partitionkey", "correlationid", "causationid"}
    | {"datacontenttype", "dataschema"}
)


def opened(delivery: Delivery) -> Received:
    """The message in a delivery. Raises Unreadable."""
    if delivery.unreadable is not None:
        raise Unreadable(f"its properties can't be read: {delivery.unreadable}")
    headers = {name: _text(value) for name, value in delivery.headers.items()}
    if (delivery.content_type or "").lower().startswith("application/cloudevents+json"):
        attributes, content_type, payload = _structured(delivery.body)
    else:
        attributes, headers = _told_apart(headers)
        content_type, payload = delivery.content_type or "", delivery.body
    for name in attributes.keys() - _ATTRIBUTES:  # extensions of the producer's own
        headers.setdefault(name, attributes[name])
    id = attributes.get("id") or delivery.message_id
    type = attributes.get("type") or delivery.type or ""
    if not id:
        raise Unreadable("it has no id, so nobody could tell whether it was processed before")
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


def _told_apart(headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
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
