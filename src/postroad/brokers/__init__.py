"""Destinations. `publisher_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from postroad.config import RabbitMQSettings, is_url
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher, Subscriber

__all__ = ["publisher_for", "subscriber_for"]


def publisher_for(url: str, *, rabbitmq: RabbitMQSettings | None = None) -> Publisher:
    """The publisher for a destination URL, with the settings of its kind. It is not connected yet.

    Raises InvalidSetting, or MissingExtra when the driver is not installed.
    """
    scheme, _, _ = url.partition("://")
    if not is_url(url):  # what it is instead is not shown, for it may be a password that got into the wrong place
        raise InvalidSetting(
            "to is no URL that can be read; it must be amqp://user@host/vhost, amqps://user@host/vhost or null://, "
            "with special characters of user and password percent-encoded",
            settings=("to",),
        )
    match scheme:
        case "null":
            from postroad.brokers.null import NullPublisher

            return NullPublisher()
        case "amqp" | "amqps":
            try:
                return _rabbitmq(url, rabbitmq or RabbitMQSettings())
            except InvalidSetting as error:
                raise InvalidSetting(str(error), settings=("to",)) from error
    raise InvalidSetting(
        f"to is a URL that begins with {scheme!r}; it must begin with amqp://, amqps:// or null://", settings=("to",)
    )


def subscriber_for(url: str, **settings: Any) -> Subscriber:
    """The subscriber to a broker's queue, with the settings of its kind. It is not connected yet.

    Raises InvalidSetting, or MissingExtra when the driver is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in {"amqp", "amqps"}:
        raise InvalidSetting("the consumer's source is no broker's URL; it must begin with amqp:// or amqps://")
    from postroad.brokers.rabbitmq_subscriber import RabbitMQSubscriber

    return RabbitMQSubscriber(url, **settings)


def _rabbitmq(url: str, settings: RabbitMQSettings) -> Publisher:
    from postroad.brokers.envelope import Envelope
    from postroad.brokers.rabbitmq import RabbitMQPublisher

    arguments = asdict(settings)
    envelope = Envelope(mode=arguments.pop("envelope"), prefix=arguments.pop("envelope_prefix"))
    return RabbitMQPublisher(url, envelope=envelope, **arguments)
