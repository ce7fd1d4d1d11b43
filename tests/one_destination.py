"""`postroad`, with publishers that call every destination the same.

python -m tests.one_destination relay …

A sink has one destination. Where a test tells relays of one sink apart by the exchange that each of them publishes to,
all exchanges lead into one queue, and this says so.
"""

from __future__ import annotations

from typing import Any

from postroad.brokers.rabbitmq import address
from postroad.ops import main


def _destination(*_: Any, **__: Any) -> str:
    return "amqp://one"


if __name__ == "__main__":
    address.Address.destination = _destination  # type: ignore[method-assign]
    main()
