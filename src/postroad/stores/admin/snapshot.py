"""What one look at the database gives, and rates between two of them. Pure but for `take_snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.admin.admin import Admin
    from postroad.stores.admin.contract import AuditEntry, SinkReport, StatusReport
    from postroad.stores.leases import RelayStatus

__all__ = ["Snapshot", "added_per_second", "published_per_second", "take_snapshot"]

AUDIT_LINES: Final = 50


class Snapshot(msgspec.Struct, frozen=True):
    """The state of all sinks and relays, and the last lines of the audit."""

    report: StatusReport
    relays: Sequence[RelayStatus]
    audit: Sequence[AuditEntry]


async def take_snapshot(admin: Admin) -> Snapshot:
    """Look at the database, with calls of the admin API only."""
    return Snapshot(await admin.status(), await admin.relays(), await admin.audit(AUDIT_LINES))


def published_per_second(sink: SinkReport, now: Snapshot, before: Snapshot | None) -> float:
    """How fast a sink publishes: since the snapshot before, or in the last whole minute if there is none."""
    seconds = 0.0 if before is None else _seconds(now, before)
    old = None if before is None else next((each for each in before.report.sinks if each.sink == sink.sink), None)
    if old is None or before is None or seconds <= 0:
        return sink.published_per_minute[-2] / 60
    minutes = int(now.report.at.timestamp() // 60 - before.report.at.timestamp() // 60)
    if not 0 <= minutes < len(sink.published_per_minute):
        return 0.0
    new = sum(sink.published_per_minute[-1 - minutes :])
    return max(0.0, (new - old.published_per_minute[-1]) / seconds)


def added_per_second(now: Snapshot, before: Snapshot | None) -> float | None:
    """How fast messages are added, by the positions of the log; None if that is not known."""
    end, old = _log_end(now), None if before is None else _log_end(before)
    if end is None or old is None or before is None or _seconds(now, before) <= 0:
        return None
    return max(0.0, (end - old) / _seconds(now, before))


def _seconds(now: Snapshot, before: Snapshot) -> float:
    return (now.report.at - before.report.at).total_seconds()


def _log_end(snapshot: Snapshot) -> int | None:
    return max((lane.position + lane.gap for sink in snapshot.report.sinks for lane in sink.lanes), default=None)
