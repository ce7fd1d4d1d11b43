"""Billing: handlers in the relay's own process. A handler that raises has refused its event, and the relay retries it.

postroad relay --app examples.cloudevents.billing:consumer
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

from examples.cloudevents.readings import ReadingTaken
from postroad import Consumer, Received

Transaction = psycopg.Connection[Any]


def begin() -> Transaction:
    """A connection: its `with` block is a transaction."""
    return psycopg.connect(os.environ["POSTROAD_DATABASE"])


consumer = Consumer(name="billing", begin=begin)


@consumer.on(ReadingTaken)
def bill(event: ReadingTaken, tx: Transaction, message: Received) -> None:
    found = tx.execute("select cents from tariffs where name = %s", (event.tariff,)).fetchone()
    if found is None:
        raise LookupError(f"there is no tariff {event.tariff!r}")
    tx.execute("insert into bills values (%s, %s)", (event.reading, event.kwh * found[0]))
