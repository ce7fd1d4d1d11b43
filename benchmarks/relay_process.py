"""The relay that is measured, in a process of its own: delivers all that is committed, and reports on itself.

Run by the benchmarks as `python -m benchmarks.relay_process DATABASE SINK`; settings are the library's defaults.
"""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.subject import report, wait_for_go
from postroad.brokers import publisher_for
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores import store_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sink")
    parser.add_argument("--to", default="null://")
    parser.add_argument("--alone", action="store_true", help="every lane reads and settles alone")
    arguments = parser.parse_args()
    settings = RelaySettings()
    store = store_for(arguments.database)
    if arguments.alone:
        store.many = None  # type: ignore[misc]
    relay = Relay(store, publisher_for(arguments.to), sink=arguments.sink, settings=settings)
    starting_cpu_seconds = wait_for_go()
    summary = asyncio.run(relay.run_until_empty())
    report(
        messages=summary.published,
        seconds=summary.seconds,  # connecting and taking the lanes included
        settings=f"defaults: {settings.lanes} lanes, pages of {settings.batch_size:,}",
        starting_cpu_seconds=starting_cpu_seconds,
    )


if __name__ == "__main__":
    main()
