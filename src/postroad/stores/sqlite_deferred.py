"""Deferred messages in SQLite: what a lane's transaction does after the fence has held.

Here a query costs no round trip, so a claim asks for one thing after the other. Times are microseconds since 1970.
`postgresql_deferred` says what each function does.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from postroad.lifecycle import State
from postroad.message import StoredMessage, new_id
from postroad.stores.base import FOLLOWERS, PROBES_PER_SECOND, Claimed, key_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from postroad.stores.base import Deferred, Lease, Tally

__all__ = ["SQLiteDeferred"]


class _Ready(NamedTuple):
    """A message that may be published."""

    position: int
    key: str | None
    state: str
    due_at: int | None
    route: str | None


class SQLiteDeferred:
    """The deferred messages of one lane, within one transaction."""

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str], lease: Lease, now: int) -> None:
        self._connection = connection
        self._sql = sql
        self._sink = lease.sink
        self._lane = (lease.sink, lease.lane)
        self._slots = (lease.first_slot, lease.last_slot)
        self._epoch = lease.epoch
        self._now = now

    # -- loading -----------------------------------------------------------------------------------------------------

    def make_ready(self, *, by_source: bool) -> tuple[dict[str, int], dict[str, int]]:
        self._connection.execute(self._sql["scope_keys"], (*self._lane, by_source))
        self._connection.execute(self._sql["put_back"], (*self._lane, self._now))
        blocked_keys = dict(self._fetch("heads", *self._lane))
        routes = dict(self._fetch("routes", *self._lane))
        held = {key for (key,) in self._fetch("holds", self._sink, *self._slots)}
        self._make_due(position for key, position in blocked_keys.items() if not held.intersection((key, key_of(key))))
        self._make_due(sorted(routes.values()), routed=True, per_second=PROBES_PER_SECOND)
        return blocked_keys | dict.fromkeys(held, 0), routes

    def skipped(self) -> frozenset[int]:
        self._connection.execute(self._sql["forget_ahead"], self._lane)
        return frozenset(position for (position,) in self._fetch("ahead", *self._lane))

    def due_in(self, *, later_than_now: bool = False) -> float | None:
        ((microseconds,),) = self._fetch("due_in", *self._lane, self._now, self._now if later_than_now else -1)
        return None if microseconds is None else max(0.0, microseconds / 1e6)

    def _make_due(self, positions: Iterable[int], *, routed: bool = False, per_second: float = float("inf")) -> None:
        values = [
            (self._sink, position, routed, self._now + int(number // per_second) * 1_000_000)
            for number, position in enumerate(positions)
        ]
        self._connection.executemany(self._sql["make_due"], values)

    # -- recording ---------------------------------------------------------------------------------------------------

    def defer(self, deferred: Sequence[Deferred]) -> None:
        self._connection.executemany(
            self._sql["defer"],
            [
                (*self._lane, self._now, each.position, each.key, each.state.value, each.attempts, each.due_in,
                 each.route, each.error_kept, each.blocks, each.unsure, each.counted)
                for each in deferred
            ],
        )  # fmt: skip
        self._connection.executemany(
            self._sql["note_attempts"],
            [
                (self._sink, each.position, each.attempts, self._now, each.error_kept or "")
                for each in deferred
                if each.counted
            ],
        )
        self._connection.executemany(
            self._sql["add_copy"],
            [
                (
                    self._sink,
                    self._now,
                    each.copy_to,
                    each.position,
                    str(new_id()),
                    each.attempts,
                    each.error_kept or "",
                )
                for each in deferred
                if each.copy_to
            ],
        )

    def forget(self, published: Sequence[int]) -> None:
        values = [(self._sink, position) for position in published]
        self._connection.executemany(self._sql["forget_published"], values)
        self._connection.executemany(self._sql["forget_rewound"], values)
        self._connection.executemany(self._sql["note_delivered"], [(*each, self._now) for each in values])

    def note(self, tally: Tally | None) -> None:
        if tally is not None:
            latencies = None if tally.latencies is None else str(list(tally.latencies))
            self._connection.execute(
                self._sql["note_progress"], (*self._lane, tally.published, tally.refused, latencies)
            )

    def free(self, keys: Collection[str]) -> dict[str, int]:
        blocked_keys = dict(row for key in keys for row in self._fetch("heads_of", *self._lane, key))
        self._make_due(blocked_keys.values(), routed=True)
        return blocked_keys

    # -- claiming ----------------------------------------------------------------------------------------------------

    def claim(self, limit: int, payload_bytes: int, routes: Collection[str]) -> tuple[list[Claimed] | None, bool]:
        ready = {row[0]: _Ready(*row) for row in self._fetch("find_due", *self._lane, self._now, limit + 1)}
        for route in routes:
            ready |= {row[0]: _Ready(*row) for row in self._fetch("find_routed", *self._lane, route, limit + 1)}
        heads = sorted(ready.values(), key=_by_time_then_position)[:limit]
        # A message that probes a route is claimed alone: those that follow it would only be refused with it.
        sure = [head for head in heads if head.route is None or head.route in routes]
        behind = sorted(position for head in sure for position in self._behind(head, limit - len(heads)))
        going = [head.position for head in heads] + behind[: limit - len(heads)]
        claimed: list[Claimed] = []
        room = payload_bytes
        for position in going:
            if room <= 0:
                break
            marked = self._mark(position)
            if marked is None:
                return None, True
            claimed.append(marked)
            room -= marked.message.size
        return sorted(claimed, key=_position), len(ready) > min(len(claimed), len(heads))

    def _behind(self, head: _Ready, room: int) -> list[int]:
        """The messages that follow the head, up to the first that waits for something else."""
        if head.key is None or head.state != State.HELD:
            return []
        line = self._fetch("find_followers", *self._lane, head.key, head.position, min(FOLLOWERS, room))
        return [follower for follower, _ in takewhile(lambda row: row[1], line)]

    def _mark(self, position: int) -> Claimed | None:
        values = (self._sink, position, self._epoch, self._now)
        ((attempts, route, waited, rewind, new_id),) = self._fetch("claim", *values)
        message = self._fetch("read_one", position)
        if not message:
            return None
        other_id = UUID(new_id) if new_id else None
        return Claimed(_stored_message(message[0]), attempts, route, rewind, other_id, waited)

    def forget_gone(self) -> int:
        return self._connection.execute(self._sql["forget_gone"], self._lane).rowcount

    def _fetch(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(self._sql[query], values).fetchall()


def _stored_message(row: Any) -> StoredMessage:
    position, id, *rest = row
    return StoredMessage(position, UUID(id), *rest)


def _position(claimed: Claimed) -> int:
    return claimed.message.position


def _by_time_then_position(ready: _Ready) -> tuple[bool, int, int]:
    return ready.due_at is None, ready.due_at or 0, ready.position
