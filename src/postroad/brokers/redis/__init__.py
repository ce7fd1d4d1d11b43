"""Redis Streams: a publisher to streams, and a subscriber to streams. This module imports no driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.redis.settings import PublisherSettings
from postroad.brokers.redis.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher, Subscriber
    from postroad.brokers.registry import Subscription

__all__ = ["BROKER"]


def _publisher(url: str, settings: PublisherSettings) -> Publisher:
    from postroad.brokers.redis.publisher import RedisPublisher

    return RedisPublisher(url, settings)


def _subscriber(url: str, settings: SubscriberSettings, subscription: Subscription) -> Subscriber:
    from postroad.brokers.redis.subscriber import RedisSubscriber

    completed = settings.completed(subscription)
    return RedisSubscriber(url, completed, consumer=subscription.consumer, types=subscription.types)


BROKER = Broker(
    name="redis",
    title="Redis Streams",
    url="redis://user@host/0, rediss://user@host/0, redis+sentinel://user@host/NAME/0",
    publisher=_publisher,
    publisher_settings=PublisherSettings,
    subscriber=_subscriber,
    subscriber_settings=SubscriberSettings,
    extra="redis",
    drivers=frozenset({"hiredis"}),
)
