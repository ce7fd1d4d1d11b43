"""NATS JetStream: a publisher to streams, and a subscriber to a stream. This module imports no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.nats.settings import PublisherSettings
from postroad.brokers.nats.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher, Subscriber
    from postroad.brokers.registry import Subscription

__all__ = ["BROKER"]


def _publisher(url: str, settings: PublisherSettings) -> Publisher:
    from postroad.brokers.nats.publisher import NATSPublisher

    return NATSPublisher(url, settings)


def _subscriber(url: str, settings: SubscriberSettings, subscription: Subscription) -> Subscriber:
    from postroad.brokers.nats.subscriber import NATSSubscriber

    return NATSSubscriber(
        url,
        settings.completed(subscription),
        consumer=subscription.consumer,
        types=subscription.types,
        in_order=subscription.in_order,
    )


BROKER = Broker(
    name="nats",
    title="NATS",
    url="nats://user@host1,host2, tls://user@host",
    publisher=_publisher,
    publisher_settings=PublisherSettings,
    subscriber=_subscriber,
    subscriber_settings=SubscriberSettings,
    extra="nats",
    drivers=frozenset({"cryptography"}),
)
