"""A message of a stream as a delivery: CloudEvents in both modes, and messages without them. Pure.

A foreign message gets the attributes of a CloudEvent. Its id is its `Nats-Msg-Id`; without one, it is made of stream,
number and time: the time tells it from a message of a stream of the same name that was deleted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import PREFIXES, percent_decoded
from postroad.brokers.nats.reading import Arrival, headers_of

__all__ = ["Place", "Received", "delivery_of", "place_of", "type_of"]

_STRUCTURED: Final = "application/cloudevents+json"


class Place(NamedTuple):
    """Where a message is, and how often it was delivered: what JetStream says in the reply subject."""

    stream: str
    number: int
    """In the stream."""
    deliveries: int
    time_ns: int


class Received(NamedTuple):
    """A message as it has arrived, with its place."""

    arrival: Arrival
    place: Place


class _Typed(msgspec.Struct):
    type: str = ""


def place_of(reply: bytes) -> Place | None:
    """The place in a reply subject: `$JS.ACK.stream.consumer.deliveries.number.…`; with domain and account before the
    stream in the longer form. None if it is no such subject.
    """
    words = reply.split(b".")
    first = 2 if len(words) == 9 else 4
    if len(words) < 9 or words[:2] != [b"$JS", b"ACK"]:
        return None
    try:
        deliveries, number, _, time_ns = map(int, words[first + 2 : first + 6])
        return Place(words[first].decode(), number, deliveries, time_ns)
    except ValueError:  # ValueError: no number, or no UTF-8
        return None


def delivery_of(received: Received, session: object, *, foreign: bool) -> Delivery:
    """The message as it is handed to a consumer; `foreign`: whether it takes messages that are no CloudEvents."""
    arrival, place = received
    try:
        headers = percent_decoded(headers_of(arrival.headers))
        subject = arrival.subject.decode()
    except UnicodeDecodeError as error:
        reason = f"its headers are no UTF-8: {error}"
        return Delivery(session=session, tag=place.number, body=arrival.body, unreadable=reason, original=received)
    unreadable = None
    named = {name.lower(): value for name, value in headers.items()}
    content_type = named.get("ce-datacontenttype") or named.get("content-type")
    if not _is_event(named):
        headers |= _attributes(named, subject, place)
        unreadable = None if foreign else "it is no CloudEvent, and foreign is 'dead_letter'"
    return Delivery(
        session=session,
        tag=place.number,
        body=arrival.body,
        headers={name: value for name, value in headers.items() if not _is_own(name)},
        content_type=content_type,
        redelivered=place.deliveries > 1,
        unreadable=unreadable,
        original=received,
    )


def _is_own(name: str) -> bool:
    """Whether a header is NATS' own, or was taken elsewhere."""
    lowered = name.lower()
    return lowered.startswith("nats-") or lowered in {"content-type", "ce-datacontenttype"}


def _is_event(headers: dict[str, str]) -> bool:
    if headers.get("content-type", "").lower().startswith(_STRUCTURED):
        return True
    return any(f"{prefix.lower()}id" in headers for prefix in PREFIXES)


def _attributes(headers: dict[str, str], subject: str, place: Place) -> dict[str, str]:
    return {
        "ce-specversion": "1.0",
        "ce-id": headers.get("nats-msg-id") or f"{place.stream}/{place.number}@{place.time_ns}",
        "ce-source": f"nats://{place.stream}",
        "ce-type": headers.get("type") or subject,
    }


def type_of(delivery: Delivery) -> str | None:
    """The type of a CloudEvent; None if it can't be read, which is decided elsewhere."""
    if delivery.unreadable is not None:
        return None
    if (delivery.content_type or "").lower().startswith(_STRUCTURED):
        try:
            return msgspec.json.decode(delivery.body, type=_Typed).type
        except (ValueError, RecursionError):  # ValueError: malformed JSON, or no UTF-8
            return None
    lowered = {name.lower(): value for name, value in delivery.headers.items()}
    for prefix in PREFIXES:
        if f"{prefix.lower()}id" in lowered:
            found = lowered.get(f"{prefix.lower()}type")
            return None if found is None else str(found)
    return None
