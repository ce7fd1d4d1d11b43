"""One relay of several that are measured together: runs until a signal stops it.

Run by the benchmarks as `python -m benchmarks.team_process DATABASE SINK TO`. TO may be slow://, which takes 5 ms for
each page.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from postroad.brokers import publisher_for
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.ops.process import run_relay
from postroad.relay import Relay
from postroad.stores import store_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad import Refusal, StoredMessage


class Slow(NullPublisher):
    """Takes its time for each page."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        await asyncio.sleep(0.005)
        return await super().publish(messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sink")
    parser.add_argument("to")
    given = parser.parse_args()
    publisher = Slow() if given.to == "slow://" else publisher_for(given.to)
    # Idle lanes look often, so that what is measured is not how long they sleep.
    settings = RelaySettings(poll_interval="5ms", max_idle_backoff="5ms")
    asyncio.run(run_relay(Relay(store_for(given.database), publisher, sink=given.sink, settings=settings)))


if __name__ == "__main__":
    main()
