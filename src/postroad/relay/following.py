"""A lane whose messages another program carries, by a replication slot: look → wait until it is confirmed → settle.

All but that is as in any lane: it is owned, loaded, paused, settled and lost in the same way. `notes.py` says when the
cursor may move. Beyond that:

- Notes are forgotten whenever the lane is loaded: after any error of the store, and when the server was restarted.
- A slot that is not the one that was followed before pauses the sink, in the database, until an operator has seen to
  the messages that no program may have carried, and adopts the slot.
- If the slot confirms nothing, that is reported as an outage of the destination, with what may be the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.errors import BrokerUnavailable
from postroad.outage_reports import OutageReports
from postroad.relay.lane import Lane
from postroad.relay.notes import Notes, why_lost

if TYPE_CHECKING:
    from postroad.stores.replication import Look, Replication

__all__ = ["FollowingLane"]

LOOK_SECONDS: Final = 1.0
"""How often the slot is looked at while messages wait for it."""
IDLE_SECONDS: Final = 10.0
"""How often it is looked at, and remembered, while none does."""
STILL_SECONDS: Final = 30.0
"""A slot that has confirmed nothing for so long, while messages wait, is reported. Kafka Connect confirms only every
`offset.flush.interval.ms`, by default once a minute.
"""


class FollowingLane(Lane):
    """Follows a replication slot."""

    def __init__(self, *lane: Any, slot: str, replication: Replication, **more: Any) -> None:
        super().__init__(*lane, **more)
        self._slot = slot
        self._replication = replication
        self._stalls = OutageReports()
        self._kept_at = float("-inf")

    async def _deliver_pages(self, *, until_empty: bool) -> None:
        notes = Notes(self._progress.cursor)
        confirmed: int | None = None
        moved_at = self._clock.now()
        while not self._stopping.is_set():
            look = await self._look(notes)
            now = self._clock.now()
            if notes.waiting == 0 or look.slot is None or look.slot.confirmed != confirmed:
                confirmed, moved_at = None if look.slot is None else look.slot.confirmed, now
            self._report(look, notes.waiting, now - moved_at)
            if notes.waiting or look.slot is None:
                limit = self._settings.seconds("until_empty_timeout")
                if until_empty and (look.slot is None or now - moved_at >= limit):
                    raise BrokerUnavailable(f"{_reason(self._slot, look)}; {notes.waiting:,} messages wait")
                await self._clock.wait(self._stopping, LOOK_SECONDS)
            elif until_empty:
                break
            else:
                await self._idle.wait(IDLE_SECONDS)
        await self._progress.settle(now=True, with_tally=True)

    async def _look(self, notes: Notes) -> Look:
        """Look once, and move the cursor if the slot has confirmed more. Raises LaneChanged if the slot is lost."""
        progress = self._progress
        look = await self._replication.look(progress.lease, self._slot, notes.after)
        if look.version > progress.lease.version:
            raise progress.lease.changed()
        if (lost := why_lost(self._slot, look)) is not None:
            self._listeners.emit(events.SlotLost(*self._where, slot=self._slot, reason=lost))
            await self._replication.lose(progress.lease, self._slot, lost)
            raise progress.lease.changed()
        if look.added:
            self._idle.worked = True
            self._idle.end_nap()
        notes.add(look)
        if look.slot is not None and look.slot.confirmed is not None:
            carried = notes.carried(look.slot)
            if carried is not None or look.kept is None or self._clock.now() - self._kept_at >= IDLE_SECONDS:
                await self._replication.keep(progress.lease, self._slot, look.slot.identity)
                self._kept_at = self._clock.now()
            if carried is not None:
                progress.follow(*carried)
                await progress.settle(now=True)
        return look

    def _report(self, look: Look, waiting: int, still: float) -> None:
        """Report that nothing is confirmed, less and less often; and that it is again."""
        now, sink = self._clock.now(), self._where[0]
        if look.slot is None or (waiting and still >= STILL_SECONDS):
            if (report := self._stalls.failed(now)) is not None:
                self._listeners.emit(
                    events.BrokerUnavailable(
                        sink,
                        reason=_reason(self._slot, look),
                        retry_ms=LOOK_SECONDS * 1000,
                        waited_s=report.seconds,
                        retries=report.retries,
                    )
                )
        elif still == 0 and (over := self._stalls.worked(now)) is not None:
            self._listeners.emit(events.BrokerRecovered(sink, probes=over.retries, waited_s=over.seconds))


def _reason(name: str, look: Look) -> str:
    """Why a slot may confirm nothing."""
    if look.slot is None:
        return f"there is no replication slot {name!r} yet; Debezium creates it when it is started"
    if not look.slot.active:
        return f"no program reads the replication slot {name!r}"
    return (
        f"the replication slot {name!r} has a reader, which confirms nothing: Debezium needs heartbeat.interval.ms and "
        "heartbeat.action.query, as `postroad debezium` prints them, or its destination is unavailable"
    )
