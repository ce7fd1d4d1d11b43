"""drain: how fast one relay process empties a backlog in PostgreSQL, what that writes, and how others do.

All contestants take their turns on one server, round after round, because a machine is never equally busy for long. A
ratio is taken within a round; what is shown is the median of all rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import draining
from benchmarks.peers.environment import PeersMissing
from benchmarks.peers.environment import python as peers_python
from benchmarks.process import Process
from benchmarks.sections import Plan, Section, median, spread

if TYPE_CHECKING:
    from benchmarks.draining import Drained
    from tests.services.postgresql import PostgreSQL

KEYS = 10_000
PEERS = {"txoutbox": 2_000, "pgqueuer": 1_000, "pgmq": 10_000}
"""With the fastest size of batch among those tried (100 to 20,000); their own defaults are 50, 10 and 1."""
UNKEYED, KEYED = "postroad, no keys", f"postroad, {KEYS:,} keys"
HOT_KEY, RETENTION = "postroad, one hot key", "postroad, retention deleting at the same time"


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(500_000, quick=50_000)
    peer_messages = min(messages, 10_000 if plan.quick else 50_000)  # a rate is what counts, and they take longer
    section = Section("drain", f"Draining a backlog of {messages:,} messages", [*draining.HEADER, "postroad is"])
    rounds: dict[str, list[Drained]] = {}
    sinks = [f"round {number}" for number in range(plan.rounds())]
    logs = {UNKEYED: draining.log(server, messages, 0, sinks), KEYED: draining.log(server, messages, KEYS, sinks)}
    peers = _peers(section)
    for sink in sinks:
        for name, url in logs.items():
            rounds.setdefault(name, []).append(draining.drain_ours(server, url, sink, messages))
        for peer in peers:
            rounds.setdefault(peer, []).append(draining.drain_peer(server, peer, peer_messages, PEERS[peer]))
    rounds[HOT_KEY] = [_hot_key(server, messages)]
    rounds[RETENTION] = [_with_retention(server, messages, section)]
    _describe(section, rounds, peers)
    return section


def _peers(section: Section) -> tuple[str, ...]:
    try:
        peers_python()
    except PeersMissing as missing:
        section.notes.append(f"The peers could not be installed and are left out: {missing}")
        return ()
    return tuple(PEERS)


def _hot_key(server: PostgreSQL, messages: int) -> Drained:
    """All messages have the same key, so all are in one lane."""
    return draining.drain_ours(server, draining.log(server, messages, 1, ["hot"]), "hot", messages)


def _with_retention(server: PostgreSQL, messages: int, section: Section) -> Drained:
    url = draining.log(server, messages, 0, ["retained"])
    with Process("retention_process", url) as retention:
        drained = draining.drain_ours(server, url, "retained", messages, meanwhile=retention)
        deleted = retention.outcome()
    section.notes.append(
        f"Retention deleted {deleted.messages:,} messages in {deleted.seconds:.1f} s, as fast as it could; "
        "what it writes is in that line's figures."
    )
    return drained


def _describe(section: Section, rounds: dict[str, list[Drained]], peers: tuple[str, ...]) -> None:
    ours = rounds[UNKEYED]
    ratios = {}
    for name, drains in rounds.items():
        ratio = "1 x"
        if name in peers:
            ratios[name] = [one.rate / other.rate for one, other in zip(ours, drains, strict=True)]
            ratio = spread(ratios[name], "{:.1f} x") + " as fast"
        elif name != UNKEYED:
            ratio = ""
        section.rows.append([*draining.row(name, drains), ratio])
    section.notes += [f"{name}: {rounds[name][0].outcome.settings}" for name in (UNKEYED, *peers)]
    section.at_least("messages/s from PostgreSQL, no keys", 120_000, median([each.rate for each in ours]))
    section.at_least(
        f"messages/s from PostgreSQL, {KEYS:,} keys", 120_000, median([each.rate for each in rounds[KEYED]])
    )
    if ratios:
        best = min(ratios, key=lambda name: median(ratios[name]))
        section.at_least(f"times as fast as the best peer ({best})", 10, median(ratios[best]), "{:.1f}")
    wal = median([each.work.wal_bytes / each.outcome.messages for each in ours])
    section.at_most("bytes of WAL per message", 10, wal, "{:.2f}")
    section.raw = {name: [_raw(each) for each in drains] for name, drains in rounds.items()}


def _raw(drained: Drained) -> dict[str, object]:
    outcome = drained.outcome
    return {"rate": drained.rate, "outcome": outcome, "work_per_message": drained.work.per(outcome.messages)}
