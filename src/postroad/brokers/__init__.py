"""Destinations and sources of messages. A URL's scheme selects one, see `registry`; its driver is imported when it is
used.
"""

from __future__ import annotations

from postroad.brokers.registry import Broker, Subscription, publisher_for, subscriber_for

__all__ = ["Broker", "Subscription", "publisher_for", "subscriber_for"]
