"""A NATS stream as the contract of a subscriber needs it, and what a durable consumer has left of it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.cloudevents import percent_decoded
from postroad.brokers.nats.subscriber import NATSSubscriber
from postroad.brokers.nats.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Subscription
from tests.destinations import jetstream_of
from tests.services.nats import NATS

QUICK = {"takeover_after": "4s"}


def nats_subscriber(
    url: str, consumer: str = "orders", types: tuple[str, ...] = (), *, in_order: bool = True, **settings: Any
) -> NATSSubscriber:
    subscription = Subscription(consumer, types=types, in_order=in_order)
    completed = SubscriberSettings(**(QUICK | settings)).completed(subscription)
    return NATSSubscriber(url, completed, consumer=consumer, types=types, in_order=in_order)


async def received(subscriber: NATSSubscriber, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            now = await subscriber.receive()
            assert not isinstance(now, Revoked)
            found += now
    return found


class NATSSource:
    """A stream of one subject, and a durable consumer of it."""

    requeues = False

    def __init__(self, server: NATS) -> None:
        self.server = server
        self.word = f"test-{uuid.uuid4().hex[:12]}"
        self.subject = f"{self.word}.orders"
        self.subscriber = self.another()

    def another(self, **settings: Any) -> NATSSubscriber:
        defaults: dict[str, Any] = {"stream": self.word, "subject": self.subject, "durable": f"durable-{self.word}"}
        return nats_subscriber(self.server.url(), **defaults | settings)

    async def put(self, *bodies: bytes) -> None:
        async with jetstream_of(self.server) as jetstream:
            for body in bodies:
                await jetstream.publish(self.subject, body, headers={"mine": "yes"})

    async def left(self) -> list[bytes]:
        subscriber = self.another()
        await subscriber.open()
        bodies: list[bytes] = []
        while await subscriber.waiting():
            deliveries = await received(subscriber, 1)
            bodies += [delivery.body for delivery in deliveries]
            subscriber.ack(deliveries)
        await subscriber.close()
        return bodies

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        letters = await stored(self.server, f"durable-{self.word}-dead")
        return [(body, percent_decoded(headers)) for body, headers in letters]

    async def drop(self) -> None:
        await asyncio.to_thread(self.server.restart)


async def stored(server: NATS, stream: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Bodies and headers of all that a stream has."""
    async with jetstream_of(server) as jetstream:
        state = (await jetstream.stream_info(stream)).state
        numbers = range(state.first_seq, state.last_seq + 1) if state.messages else ()
        messages = [await jetstream.get_msg(stream, number) for number in numbers]
        return [(message.data or b"", dict(message.headers or {})) for message in messages]
