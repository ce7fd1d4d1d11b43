"""Webhooks: a publisher that sends each message to a URL. `postroad.asgi.webhook` receives. This module imports no
driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.http.settings import PublisherSettings
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher

__all__ = ["BROKER"]


def _publisher(url: str, settings: PublisherSettings) -> Publisher:
    from postroad.brokers.http.publisher import HTTPPublisher

    return HTTPPublisher(url, settings)


BROKER = Broker(
    name="http",
    title="webhooks",
    url="https://host/path",
    publisher=_publisher,
    publisher_settings=PublisherSettings,
    extra="http",
    drivers=frozenset({"aiohttp", "cryptography", "multidict", "yarl"}),
)
