"""Queries about consumers: which run, which died, and which have dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.stores.admin.contract import ConsumerReport, ConsumerStatus, Count
from postroad.stores.admin.session import from_microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroad.stores.admin.session import Query

__all__ = ["consumer_reports", "list_consumers"]

MOST_DEAD_LETTERS: Final = 10_000
"""At most this many dead letters are counted."""


async def list_consumers(query: Query) -> Sequence[ConsumerStatus]:
    return [_status(row) for row in await query("consumers")]


async def consumer_reports(query: Query, at: datetime) -> Sequence[ConsumerReport]:
    """One report for each name. `at` is now, by the database's clock."""
    running = await list_consumers(query)
    letters = {
        name: (number, from_microseconds(since))
        for name, number, since in await query("dead_letters", MOST_DEAD_LETTERS)
    }
    counted = sum(number for number, _ in letters.values())
    return [
        _report(
            name,
            [each for each in running if each.consumer == name],
            at,
            letters.get(name),
            exact=counted < MOST_DEAD_LETTERS,
        )
        for name in sorted({each.consumer for each in running} | set(letters))
    ]


def _report(
    name: str, processes: Sequence[ConsumerStatus], at: datetime, letters: tuple[int, datetime] | None, *, exact: bool
) -> ConsumerReport:
    alive = sum(each.state == "alive" for each in processes)
    last = min((each.heartbeat_seconds for each in processes), default=None)
    number, since = letters or (0, None)
    return ConsumerReport(
        consumer=name,
        alive=alive,
        died=len(processes) - alive,
        last_heartbeat_at=None if last is None else at - timedelta(seconds=last),
        dead_letters=Count(number, exact=exact),
        dead_letters_since=since,
    )


def _status(row: Sequence[Any]) -> ConsumerStatus:
    instance, consumer, source, host, pid, version, started_at, seconds, alive, handled, duplicates, failed, dead = row
    return ConsumerStatus(
        consumer=consumer,
        instance=instance if isinstance(instance, UUID) else UUID(instance),
        state="alive" if alive else "dead",
        source=source,
        host=host,
        pid=pid,
        version=version,
        started_at=from_microseconds(started_at),
        heartbeat_seconds=max(0.0, seconds),
        handled=handled,
        duplicates=duplicates,
        failed=failed,
        dead=dead,
    )
