"""One drain, measured: a process delivers a whole backlog while the server's ledger is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.backlog import LANES, create_log, create_sinks, fill
from benchmarks.ledger import Ledger, Work
from benchmarks.peers import environment
from benchmarks.process import Broken, Outcome, Process
from benchmarks.sections import median, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.services.postgresql import PostgreSQL

HEADER = [
    "",
    "messages/s",
    "INSERT / UPDATE / DELETE each",
    "WAL each",
    "CPU each: process + server",
    "peak memory",
]


class Drained(msgspec.Struct, frozen=True):
    """What one drain cost the process and the server."""

    outcome: Outcome
    work: Work

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.outcome.rate


def log(
    server: PostgreSQL,
    messages: int,
    keys: int,
    sinks: list[str],
    *,
    to: str = "null://",
    lanes: int = LANES,
    given: Mapping[str, Any] | None = None,
) -> str:
    """A backlog that every one of these sinks has yet to read: they were there before it. The database's URL."""
    url = create_log(server)
    create_sinks(url, sinks, to=to, lanes=lanes, given=given)
    fill(server, url, messages, keys=keys)
    return url


def drain_ours(
    server: PostgreSQL,
    url: str,
    sink: str,
    messages: int,
    *,
    to: str = "null://",
    meanwhile: Process | None = None,
    alone: bool = False,
    hang: int = 0,
    given: Mapping[str, Any] | None = None,
) -> Drained:
    """A relay of ours delivers the backlog to a destination, as one sink, while another process may be at work.

    `alone`: without a convoy. `hang`: messages of slots below this get no answer until all others are delivered; then
    `messages` are those others. `given` are settings of the publisher.
    """
    options = ["--alone"] * alone + (["--hang", str(hang), str(messages)] if hang else [])
    options += ["--given", msgspec.json.encode(given).decode()] if given else []
    with Process("relay_process", url, sink, "--to", to, *options) as relay:
        # What was written before must not fall into the measured time, as an autovacuum or as hint bits.
        server.psql(url, "vacuum (analyze)")
        server.psql(url, "checkpoint")
        return _measured(relay, Ledger(server, url), messages, meanwhile)


def drain_peer(server: PostgreSQL, peer: str, messages: int, batch: int) -> Drained:
    """A peer makes a backlog of its own in a fresh database, and drains it in batches of this size."""
    url = server.create_database()
    # Before the backlog is made, not after: this spares the peers from writing each page whole at its first change.
    server.psql(url, "checkpoint")
    arguments = (url, str(messages), str(batch))
    with Process(f"peers.drain_{peer}", *arguments, python=environment.python()) as process:
        drained = _measured(process, Ledger(server, url), messages)
    server.drop_database(url)
    return drained


def _measured(process: Process, ledger: Ledger, messages: int, meanwhile: Process | None = None) -> Drained:
    if meanwhile is not None:
        meanwhile.say()
    process.say()
    outcome = process.outcome()
    if meanwhile is not None:
        meanwhile.say()
    if outcome.messages != messages:
        raise Broken(f"{outcome.messages:,} of {messages:,} messages were delivered")
    return Drained(outcome, ledger.close())


def row(name: str, rounds: list[Drained]) -> list[str]:
    """A line of the table, for all rounds of one contestant."""
    each = [drained.work.per(drained.outcome.messages) for drained in rounds]
    process_cpu = median([drained.outcome.cpu_seconds / drained.outcome.messages for drained in rounds])
    server_cpu = median([work.cpu_seconds for work in each])
    writes = [median([getattr(work, kind) for work in each]) for kind in ("inserted", "updated", "deleted")]
    return [
        name,
        spread([drained.rate for drained in rounds]),
        " / ".join(f"{number:.4f}".rstrip("0").rstrip(".") for number in writes),
        f"{median([work.wal_bytes for work in each]):,.1f} B",
        f"{process_cpu * 1e6:.1f} + {server_cpu * 1e6:.1f} µs",
        f"{max(drained.outcome.peak_bytes for drained in rounds) / 1e6:.0f} MB",
    ]
