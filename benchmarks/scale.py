"""How many databases, relays and brokers a rate takes: `python -m benchmarks.scale`. Pure and deterministic.

It simulates no queues and no clocks. Each message costs processor time where it is added, read and published, and bytes
of write-ahead log; every part has a capacity, keeps a reserve, and limits the rate of what is behind it. The costs are
those of docs/benchmarks.md; put your own in their place. docs/scale.md has its tables, and a test compares them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MICROSECONDS = 1e-6
DEFAULT_LANES = 4


class Costs(NamedTuple):
    """What one message takes. Times are of one core."""

    add: float = 32.5 * MICROSECONDS
    """From the server's side and the client's together, in add_many of 100 (benchmark `add`)."""
    wal_bytes: float = 900.0
    """A row with 170 bytes of JSON and its index entries, and its deletion by retention (448 B, benchmark `drain`)."""
    read: float = 3.3 * MICROSECONDS
    """Of the server, in a drain without keys (benchmark `drain`)."""
    delete: float = 13.5 * MICROSECONDS
    """Of the server, when retention deletes it: what a drain with retention costs beyond one without."""
    relay: float = 17.7 * MICROSECONDS
    """Of the relay, with RabbitMQ (benchmark `rabbitmq`)."""
    broker: float = 1 / 11_812
    """Of a RabbitMQ node: a bare socket with ready-made frames could not publish faster."""


class Machine(NamedTuple):
    """What a database has to offer, and how much of it may be used."""

    cores: int = 2
    wal_bytes_per_second: float = 200e6
    """What the disk of the write-ahead log can write and a replica can follow."""
    reserve: float = 0.4
    """Kept free for the application's own work, peaks, vacuum, and for catching up after an outage."""


class Plan(NamedTuple):
    """What a rate takes."""

    rate: int
    databases: int
    relays: int
    brokers: int
    limit: str
    """What a database runs out of first."""


def database_rate(costs: Costs, machine: Machine, *, sinks: int = 1) -> tuple[float, str]:
    """The messages per second that one database carries, added, read by every sink and deleted; and what limits it."""
    each = costs.add + sinks * costs.read + costs.delete
    limits = {
        "processor": machine.cores * (1 - machine.reserve) / each,
        "write-ahead log": machine.wal_bytes_per_second * (1 - machine.reserve) / costs.wal_bytes,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def plan(rate: int, costs: Costs, machine: Machine, *, sinks: int = 1) -> Plan:
    """What so many messages per second take, if keys spread evenly over databases."""
    of_one, limit = database_rate(costs, machine, sinks=sinks)
    databases = ceil(rate / of_one)
    usable = 1 - machine.reserve
    for_relays = ceil(rate * sinks * costs.relay / usable)
    # Each database has relays of its own, two at least, so that one can fail.
    return Plan(rate, databases, max(2 * databases, for_relays), ceil(rate * sinks * costs.broker / usable), limit)


def shard_of(key: str, shards: int) -> int:
    """The database of a key: the same in every process and every language."""
    return crc32(key.encode()) % shards


def spread(keys: Mapping[str, int], shards: int) -> list[int]:
    """How many messages each database gets, from the number of messages of each key."""
    counts = [0] * shards
    for key, messages in keys.items():
        counts[shard_of(key, shards)] += messages
    return counts


def skewed(customers: int, messages: int) -> dict[str, int]:
    """Messages of customers of which the n-th has a share of 1/n: a few are large, most are small."""
    whole = sum(1 / n for n in range(1, customers + 1))
    return {f"customer-{n}": round(messages / n / whole) for n in range(1, customers + 1)}


def catch_up(backlog: float, added: float, drained: float) -> float:
    """Seconds until a backlog is gone while messages go on coming. Raises ValueError if it never is."""
    if drained <= added:
        raise ValueError(f"a backlog never ends if {added:,.0f} messages/s are added and {drained:,.0f} are drained")
    return backlog / (drained - added)


def plans_table(rates: Iterable[int], costs: Costs, machine: Machine) -> list[str]:
    head = [
        "| messages/s | databases | relays | RabbitMQ nodes | a database runs out of |",
        "|---:|---:|---:|---:|---|",
    ]
    made = (plan(rate, costs, machine) for rate in rates)
    return [*head, *(f"| {p.rate:,} | {p.databases} | {p.relays} | {p.brokers} | {p.limit} |" for p in made)]


def spread_table(shards: Sequence[int], *, customers: int = 100_000, messages: int = 10_000_000) -> list[str]:
    head = ["| databases | the fullest gets, of an even share | it holds of all |", "|---:|---:|---:|"]
    rows = []
    for number in shards:
        for name, keys in (
            ("even", dict.fromkeys(skewed(customers, messages), 1)),
            ("skewed", skewed(customers, messages)),
        ):
            counts = spread(keys, number)
            share = max(counts) / sum(counts)
            rows.append(f"| {number}, {name} | {share * number:.2f} x | {share:.1%} |")
    return [*head, *rows]


SMALL, LARGE = Machine(), Machine(cores=32, wal_bytes_per_second=1e9)
RATES = (1_000, 10_000, 100_000, 1_000_000)


def report() -> dict[str, list[str]]:
    """The tables of docs/scale.md, by their names there."""
    costs = Costs()
    return {
        "two cores": plans_table(RATES, costs, SMALL),
        "32 cores": plans_table(RATES, costs, LARGE),
        "spread": spread_table((4, 16, 64)),
    }


if __name__ == "__main__":
    for name, lines in report().items():
        print(f"{name}\n\n" + "\n".join(lines) + "\n")
