"""The relay that is measured, in a process of its own: delivers all that is committed, and reports on itself.

Run by the benchmarks as `python -m benchmarks.relay_process DATABASE SINK`; settings are the library's defaults.

With `--hang SLOTS MESSAGES`, the first lane's destination does not answer: messages of slots below SLOTS are confirmed
only when MESSAGES others were. The time is that of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from benchmarks.subject import report, wait_for_go
from postroad.brokers import publisher_for
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.heap import collect_seldom
from postroad.relay import Relay
from postroad.stores import store_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage


class HangingPublisher(NullPublisher):
    """Keeps the first lane waiting until all messages of the others are confirmed."""

    def __init__(self, slots: int, messages: int) -> None:
        super().__init__()
        self._slots = slots
        self._left = messages
        self._others_done = asyncio.Event()
        self.done_at = 0.0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        if messages[0].slot < self._slots:
            await self._others_done.wait()
        else:
            self._left -= len(messages)
            if not self._left:
                self.done_at = time.perf_counter()
                self._others_done.set()
        return await super().publish(messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sink")
    parser.add_argument("--to", default="null://")
    parser.add_argument("--given", type=msgspec.json.decode, default={}, help="settings of the publisher, as JSON")
    parser.add_argument("--alone", action="store_true", help="every lane reads and settles alone")
    parser.add_argument("--hang", nargs=2, type=int, metavar=("SLOTS", "MESSAGES"))
    arguments = parser.parse_args()
    settings = RelaySettings()
    store = store_for(arguments.database)
    if arguments.alone:
        store.many = None  # type: ignore[misc]
    hanging = HangingPublisher(*arguments.hang) if arguments.hang else None
    relay = Relay(
        store, hanging or publisher_for(arguments.to, **arguments.given), sink=arguments.sink, settings=settings
    )
    collect_seldom()  # as `postroad relay`
    starting_cpu_seconds = wait_for_go()
    began = time.perf_counter()
    summary = asyncio.run(relay.run_until_empty())
    report(
        messages=arguments.hang[1] if hanging else summary.published,
        seconds=hanging.done_at - began if hanging else summary.seconds,  # connecting and taking the lanes included
        settings=f"defaults: {settings.lanes} lanes, pages of {settings.batch_size:,}",
        starting_cpu_seconds=starting_cpu_seconds,
    )


if __name__ == "__main__":
    main()
