"""Checks a history: what was committed against what arrived. Pure.

It checks the promises: no committed message is lost; nothing arrives that was not committed; the first arrivals of a
key's messages are in the order of their positions; and every duplicate is explained by an incident that happened while
the message was in flight.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

__all__ = ["Arrival", "Committed", "Duplicate", "Incident", "Overtaken", "Verdict", "verify"]


class Committed(msgspec.Struct, frozen=True):
    """A message in the log."""

    id: Hashable
    key: str | None
    position: int


class Arrival(msgspec.Struct, frozen=True):
    """A message that a consumer received."""

    id: Hashable
    at: float = 0.0
    """When, in seconds since any fixed time."""
    by: str | None = None
    """Which relay sent it, if known."""


class Incident(msgspec.Struct, frozen=True):
    """An event after which messages in flight may be sent again: a kill, a lost lease, an outage, a restart."""

    reason: str
    began: float
    ended: float
    """Until when messages may have been in flight: at least until everything sent before had arrived."""
    to: str | None = None
    """Which relay it happened to; None: all of them."""
    reach: float = 0.0
    """How long before `began` messages may have arrived whose delivery no relay had recorded yet."""

    def explains(self, before: Arrival, again: Arrival) -> bool:
        """Whether the earlier arrival, or the one that the affected relay sent, was in flight during the incident."""
        if not (self.began - self.reach <= before.at <= self.ended and self.began <= again.at):
            return False
        return self.to in (None, before.by) or before.by is None or (again.by == self.to and again.at <= self.ended)


class Duplicate(msgspec.Struct, frozen=True):
    """A message that arrived again."""

    message: Committed
    before: Arrival
    """The arrival before that."""
    again: Arrival
    reason: str | None
    """None: no incident explains it."""


class Overtaken(msgspec.Struct, frozen=True):
    """A message whose first arrival came after the first arrival of a later message of its key."""

    message: Committed
    by: Committed


class Verdict(msgspec.Struct, frozen=True):
    """The differences between the two histories."""

    committed: int
    arrived: int
    lost: Sequence[Committed]
    phantoms: Sequence[Arrival]
    overtaken: Sequence[Overtaken]
    duplicates: Sequence[Duplicate]

    @property
    def unexplained(self) -> Sequence[Duplicate]:
        """Duplicates that no incident explains."""
        return [each for each in self.duplicates if each.reason is None]

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.phantoms or self.overtaken or self.unexplained)

    def __str__(self) -> str:
        summary = (
            f"{self.committed:,} committed, {self.arrived:,} arrived: {len(self.lost):,} lost, "
            f"{len(self.phantoms):,} phantoms, {len(self.overtaken):,} out of order, "
            f"{len(self.duplicates):,} duplicates, {len(self.unexplained):,} of them without a reason"
        )
        lines = [summary]
        lines += _first("lost", (f"{each.id} at position {each.position}" for each in self.lost))
        lines += _first("never committed", (str(each.id) for each in self.phantoms))
        lines += _first(
            "out of order",
            (f"{each.message.id} of key {each.message.key} after {each.by.id}" for each in self.overtaken),
        )
        lines += _first("without a reason", map(_both, self.unexplained))
        return "\n".join(lines)


def verify(committed: Iterable[Committed], arrived: Sequence[Arrival], incidents: Collection[Incident] = ()) -> Verdict:
    """Compare. `arrived` is in the order in which consumers received the messages, at least within each key."""
    known = {message.id: message for message in committed}
    times: defaultdict[Hashable, list[Arrival]] = defaultdict(list)
    for arrival in arrived:
        times[arrival.id].append(arrival)
    return Verdict(
        committed=len(known),
        arrived=len(arrived),
        lost=sorted((each for each in known.values() if each.id not in times), key=lambda each: each.position),
        phantoms=[arrival for arrival in arrived if arrival.id not in known],
        overtaken=_overtaken(known, arrived),
        duplicates=[
            Duplicate(known[id], before, again, _reason(before, again, incidents))
            for id, every in times.items()
            if id in known
            for before, again in pairwise(every)
        ],
    )


def _overtaken(known: Mapping[Hashable, Committed], arrived: Iterable[Arrival]) -> list[Overtaken]:
    seen: set[Hashable] = set()
    furthest: dict[str, Committed] = {}
    found = []
    for arrival in arrived:
        message = known.get(arrival.id)
        if message is None or message.key is None or message.id in seen:
            continue
        seen.add(message.id)
        ahead = furthest.get(message.key)
        if ahead is not None and ahead.position > message.position:
            found.append(Overtaken(message, ahead))
        else:
            furthest[message.key] = message
    return found


def _reason(before: Arrival, again: Arrival, incidents: Iterable[Incident]) -> str | None:
    return next((each.reason for each in incidents if each.explains(before, again)), None)


def _both(found: Duplicate) -> str:
    by = " and ".join(f"{each.at:.3f}{f' by {each.by}' if each.by else ''}" for each in (found.before, found.again))
    return f"{found.message.id} at {by}"


def _first(words: str, found: Iterable[str], most: int = 5) -> list[str]:
    every = list(found)
    shown = [f"  {words}: {each}" for each in every[:most]]
    return [*shown, f"  and {len(every) - most:,} more"] if len(every) > most else shown
