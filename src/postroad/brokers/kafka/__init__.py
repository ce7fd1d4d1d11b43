"""Kafka: a publisher to topics, and a subscriber to topics. This module imports no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.kafka.checks import CHECKS
from postroad.brokers.kafka.settings import PublisherSettings
from postroad.brokers.kafka.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher, Subscriber
    from postroad.brokers.registry import Subscription
    from postroad.findings import Facts

__all__ = ["BROKER"]


def _publisher(url: str, settings: PublisherSettings) -> Publisher:
    from postroad.brokers.kafka.publisher import KafkaPublisher

    return KafkaPublisher(url, settings)


def _subscriber(url: str, settings: SubscriberSettings, subscription: Subscription) -> Subscriber:
    from postroad.brokers.kafka.subscriber import KafkaSubscriber

    completed = settings.completed(subscription)
    return KafkaSubscriber(url, completed, consumer=subscription.consumer, types=subscription.types)


async def _facts(url: str, settings: PublisherSettings, known: Facts) -> Facts:
    from postroad.brokers.kafka.facts import gather

    return await gather(url, settings, known)


BROKER = Broker(
    name="kafka",
    title="Kafka",
    url="kafka://user@host1,host2, kafkas://user@host",
    publisher=_publisher,
    publisher_settings=PublisherSettings,
    subscriber=_subscriber,
    subscriber_settings=SubscriberSettings,
    facts=_facts,
    checks=tuple(CHECKS.all),
    extra="kafka",
    drivers=frozenset({"confluent_kafka"}),
)
