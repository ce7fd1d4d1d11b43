"""RabbitMQ: a publisher to a durable topic exchange, and a subscriber to a queue. This module imports no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.rabbitmq.checks import CHECKS
from postroad.brokers.rabbitmq.settings import PublisherSettings, SubscriberSettings, url_warnings
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher, Subscriber
    from postroad.brokers.registry import Subscription
    from postroad.findings import Facts

__all__ = ["BROKER"]


def _publisher(url: str, settings: PublisherSettings) -> Publisher:
    from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher

    return RabbitMQPublisher(url, settings)


def _subscriber(url: str, settings: SubscriberSettings, subscription: Subscription) -> Subscriber:
    from postroad.brokers.rabbitmq.subscriber import RabbitMQSubscriber

    name = f"postroad {subscription.consumer}"
    return RabbitMQSubscriber(url, settings.completed(subscription), connection_name=name)


async def _facts(url: str, settings: PublisherSettings, known: Facts) -> Facts:
    from postroad.brokers.rabbitmq.facts import gather

    return await gather(url, settings, known)


BROKER = Broker(
    name="rabbitmq",
    title="RabbitMQ",
    url="amqp://user@host/vhost, amqps://user@host/vhost",
    publisher=_publisher,
    publisher_settings=PublisherSettings,
    subscriber=_subscriber,
    subscriber_settings=SubscriberSettings,
    url_warnings=url_warnings,
    facts=_facts,
    checks=tuple(CHECKS.all),
    extra="rabbitmq",
    drivers=frozenset({"aiormq", "pamqp", "yarl"}),
)
