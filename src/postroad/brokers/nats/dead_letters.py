"""A message as a dead letter: its body and headers, where it was, and why it is dead. Pure.

NATS' own headers are left out, because they are commands to a server. A letter has an id of its own, so that a stream
drops it if it is stored twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.brokers.cloudevents import percent_decoded
from postroad.brokers.nats.frames import MESSAGE_ID, header_block
from postroad.brokers.nats.reading import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.brokers.nats.deliveries import Received

__all__ = ["letters"]

LARGE_HEADER: Final = 256


def letters(received: Received, notes: Mapping[str, str], durable: str, largest: int) -> tuple[bytes, bytes]:
    """The headers and the body, of at most so many bytes: where there is no room for all headers, with fewer."""
    arrival, place = received
    own = _own(arrival.headers)
    id = {MESSAGE_ID: f"{durable}/{place.stream}/{place.number}@{place.time_ns}"}
    about = {
        **notes,
        "postroad-stream": place.stream,
        "postroad-subject": arrival.subject.decode(errors="replace"),
        "postroad-sequence": str(place.number),
        "postroad-deliveries": str(place.deliveries),
    }
    large = sorted(name for name, value in own.items() if len(value) > LARGE_HEADER)
    small = {name: value for name, value in own.items() if name not in large}
    cut = {name: value[:LARGE_HEADER] for name, value in about.items()} | {"postroad-left-out": ",".join(large)}
    for headers in (own | about | id, small | cut | id, cut | id):
        block = header_block(headers)
        if len(block) + len(arrival.body) <= largest:
            return block, arrival.body
    return header_block(id), arrival.body


def _own(block: bytes) -> dict[str, str]:
    try:
        headers = percent_decoded(headers_of(block))
    except UnicodeDecodeError:
        return {}
    return {name: value for name, value in headers.items() if not name.lower().startswith("nats-")}
