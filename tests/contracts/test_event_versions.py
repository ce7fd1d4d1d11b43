"""Old versions of events, and bytes with a content type of their own: from the outbox to a handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from postroad import Consumer, Message, Received, Relay, event
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.config import RelaySettings
from tests.consumers import consumed
from tests.logs import Log, log_fixture
from tests.places import Place

log = log_fixture("sqlite", "postgresql15")
AVRO = b"\x02\x00\xff\xfe"


@event("parcel.sent.v1")
@dataclass
class FirstSent:
    weight: int


@event("parcel.sent")
@dataclass
class Sent:
    grams: int


OLD_AND_NEW = [
    Message(FirstSent(2), key=1),
    Message(Sent(3), key=1),
    Message(AVRO, type="parcel.label", key=1, content_type="application/avro"),
]
SEEN = [
    (Sent(2000), "parcel.sent.v1", "application/json"),
    (Sent(3), "parcel.sent", "application/json"),
    (AVRO, "parcel.label", "application/avro"),
]


def parcels(consumer: Consumer[Any]) -> list[Any]:
    seen: list[Any] = []

    @consumer.upcast("parcel.sent.v1", to=Sent)
    def in_grams(old: FirstSent) -> Sent:
        return Sent(old.weight * 1000)

    @consumer.on(Sent)
    async def sent(event: Sent, tx: Any, message: Received) -> None:
        seen.append((event, message.type, message.content_type))

    @consumer.on(bytes, type="parcel.label")
    async def label(event: bytes, tx: Any, message: Received) -> None:
        seen.append((event, message.type, message.content_type))

    return seen


async def relayed(log: Log, publisher: Any) -> None:
    settings = RelaySettings(lanes=1, poll_interval="1ms")
    await Relay(log.store, publisher, sink="s", settings=settings).run_until_empty()


@pytest.mark.parametrize("envelope", ["binary", "structured"])
async def test_a_queue_is_bound_to_old_types_too(log: Log, one_place: Place, vhost: str, envelope: Any) -> None:
    consumer: Consumer[Any] = Consumer(vhost, name="parcels", begin=one_place.begin)
    seen = parcels(consumer)
    await consumed(consumer)  # it declares its queue and binds it
    await log.add(*OLD_AND_NEW)
    publisher = RabbitMQPublisher(vhost, PublisherSettings(envelope=envelope))
    await relayed(log, publisher)
    await consumed(consumer)
    assert seen == SEEN


async def test_handlers_in_the_process_get_old_types_too(log: Log, one_place: Place) -> None:
    consumer: Consumer[Any] = Consumer(name="parcels", begin=one_place.begin)
    seen = parcels(consumer)
    await log.add(*OLD_AND_NEW)
    await relayed(log, consumer.publisher())
    assert seen == SEEN
