"""Measure postroad: `python -m benchmarks`, or `make bench`. See docs/benchmarks.md.

Timings never fail anything: the exit code is 0 unless something is broken.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    add,
    bad_key,
    claim_check,
    compression,
    console,
    debezium,
    drain,
    inbox,
    kafka,
    kafka_inbox,
    lanes,
    large,
    machine,
    metrics,
    nats,
    operations,
    rabbitmq,
    redis,
    relays,
    sinks,
    sqlite,
    stream_inbox,
    takeover,
    waiting,
    wakeup,
    webhooks,
)
from benchmarks.process import REPOSITORY
from benchmarks.report import Results, save, show, write_docs
from benchmarks.sections import Plan
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.sections import Section

ON_POSTGRESQL: dict[str, Callable[[PostgreSQL, Plan], Section]] = {
    "drain": drain.run,
    "lanes": lanes.run,
    "sinks": sinks.run,
    "waiting": waiting.run,
    "add": add.run,
    "compression": compression.run,
    "claim_check": claim_check.run,
    "large": large.run,
    "rabbitmq": rabbitmq.run,
    "kafka": kafka.run,
    "debezium": debezium.run,
    "nats": nats.run,
    "redis": redis.run,
    "webhooks": webhooks.run,
    "bad_key": bad_key.run,
    "wakeup": wakeup.run,
    "operations": operations.run,
    "takeover": takeover.run,
    "relays": relays.run,
    "inbox": inbox.run,
    "kafka_inbox": kafka_inbox.run,
    "nats_inbox": stream_inbox.run_nats,
    "redis_inbox": stream_inbox.run_redis,
    "metrics": metrics.run,
    "console": console.run,
}
ELSEWHERE: dict[str, Callable[[Plan], Section]] = {"sqlite": sqlite.run}
NAMES = [*ON_POSTGRESQL, *ELSEWHERE]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure postroad, side by side with its peers."
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument(
        "--messages", type=int, metavar="N", help="use so many messages instead of each benchmark's own number"
    )
    parser.add_argument("--quick", action="store_true", help="few messages, one round: does it work?")
    parser.add_argument(
        "--large", action="store_true", help="also with 5,000,000 delivered messages in the log (minutes)"
    )
    parser.add_argument("--json", type=Path, default=REPOSITORY / "benchmarks/results/latest.json", metavar="PATH")
    parser.add_argument("--write-docs", action="store_true", help="put the results into docs/benchmarks.md")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every measured process compiles what it imports
    plan = Plan(messages=given.messages, quick=given.quick)
    chosen = given.only or [name for name in NAMES if given.large or name != "large"]
    with ExitStack() as stack:
        server = stack.enter_context(PostgreSQL(15)) if any(name in ON_POSTGRESQL for name in chosen) else None
        results = Results(machine.facts(server), [])
        for name in chosen:
            if server is not None and name in ON_POSTGRESQL:
                section = ON_POSTGRESQL[name](server, plan)
            else:
                section = ELSEWHERE[name](plan)
            show(section)
            results.sections.append(section)
            save(results, given.json)
    if given.write_docs:
        write_docs(results, REPOSITORY / "docs/benchmarks.md")


if __name__ == "__main__":
    main()
