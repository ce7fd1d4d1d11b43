"""The relays of several sinks that are measured, in one process: they deliver all that is committed, and report.

Run by the benchmarks as `python -m benchmarks.sinks_process DATABASE SINK… [--topics PATTERN…]`; settings are the
library's defaults.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from benchmarks.subject import report, wait_for_go
from postroad.brokers import publisher_for
from postroad.heap import collect_seldom
from postroad.relay import Relay, RelayGroup
from postroad.sink_filter import SinkFilter
from postroad.stores import store_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sinks", nargs="+")
    parser.add_argument("--topics", nargs="+")
    arguments = parser.parse_args()
    filter = SinkFilter(topics=arguments.topics)

    def relay(sink: str) -> Relay:
        return Relay(store_for(arguments.database), publisher_for("null://"), sink=sink, filter=filter)

    group = RelayGroup({sink: partial(relay, sink) for sink in arguments.sinks})
    collect_seldom()  # as `postroad relay`
    starting_cpu_seconds = wait_for_go()
    summaries = asyncio.run(group.run_until_empty())
    report(
        messages=sum(each.published for each in summaries.values()),
        seconds=max(each.seconds for each in summaries.values()),  # connecting and taking the lanes included
        settings=f"{len(arguments.sinks)} sinks, topics {arguments.topics}",
        starting_cpu_seconds=starting_cpu_seconds,
    )


if __name__ == "__main__":
    main()
