"""A Kafka topic as the contract of a subscriber needs it, and what a group has left of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from confluent_kafka import Producer

from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.kafka.subscriber import KafkaSubscriber
from postroad.brokers.kafka.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Subscription
from tests.services.kafka import Kafka

QUICK = {"session_timeout": "6s", "connect_timeout": "5s"}


def kafka_subscriber(
    url: str, consumer: str = "orders", types: tuple[str, ...] = (), **settings: Any
) -> KafkaSubscriber:
    completed = SubscriberSettings(**(QUICK | settings)).completed(Subscription(consumer, types=types))
    return KafkaSubscriber(url, completed, consumer=consumer, types=types)


def produce(
    kafka: Kafka,
    topic: str,
    *values: bytes | None,
    key: bytes | None = None,
    headers: Any = (),
    **where: Any,
) -> None:
    """Put records into a topic, in order."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, key, headers=list(headers), **where)
    assert producer.flush(60) == 0


async def received(subscriber: KafkaSubscriber, count: int) -> list[Delivery]:
    """So many deliveries; partitions that are revoked meanwhile are let go."""
    found: list[Delivery] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            now = await subscriber.receive()
            if isinstance(now, Revoked):
                now.released()
            else:
                found += now
    return found


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - it is the brokers, or another process, that get it done
            await asyncio.sleep(0.05)


class KafkaSource:
    """One partition, so that all is in order."""

    requeues = False

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.topic = kafka.create_topic()
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.subscriber = self.another()

    def another(self, **settings: Any) -> KafkaSubscriber:
        return kafka_subscriber(self._kafka.url(), topic=self.topic, group=self.group, **settings)

    async def put(self, *bodies: bytes) -> None:
        await asyncio.to_thread(produce, self._kafka, self.topic, *bodies, headers=[("mine", b"yes")])

    async def left(self) -> list[bytes]:
        subscriber = self.another()
        await subscriber.open()
        bodies: list[bytes] = []
        while True:
            waiting = await subscriber.waiting()
            if not waiting:
                break
            deliveries = await received(subscriber, 1)
            bodies += [delivery.body for delivery in deliveries]
            subscriber.ack(deliveries)
        await subscriber.close()
        return bodies

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        records = await asyncio.to_thread(self._kafka.records, f"{self.group}.dead")
        return [(record.value() or b"", text_headers(record)) for record in records]

    async def drop(self) -> None:
        """Brokers that come back soon end no session."""
        poller = self.subscriber._poller
        assert poller is not None
        await asyncio.to_thread(self._kafka.stop)
        async with asyncio.timeout(60):
            await asyncio.wrap_future(poller.ended)
        await asyncio.to_thread(self._kafka.start)


def text_headers(record: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers() or ()}
