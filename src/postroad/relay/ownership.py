"""Lane ownership: the only module that takes and releases lanes.

Each round gets a snapshot from the database, plans (`plan.py`), and executes the plan.

- A lease counts from when its renewal was sent, not from when it was answered, and ends early by a margin.
- A lane is released after the page in progress. A relay that has lost its session begins no wave before it has
  reclaimed its lanes: other relays may have evicted it.
- While the relay is idle, its tick sends the heartbeat along. Its snapshot is used only if no round has begun since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.backoff import FIRST_SECONDS, ExponentialBackoff
from postroad.errors import InvalidSetting, LogNotReadable, NotMigrated, StoreUnavailable
from postroad.relay.clock import Monotonic
from postroad.relay.heartbeats import HeartbeatSchedule
from postroad.relay.liveness import LivenessSession
from postroad.relay.owned_lane import OwnedLane
from postroad.relay.plan import EAGER_SECONDS, Observations, OwnState, plan
from postroad.relay.store_outages import NO_ANSWER, StoreOutages
from postroad.stores.leases import Heartbeat, wrong_destination, wrong_filter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroad.config import RelaySettings
    from postroad.listeners import Listeners
    from postroad.relay.clock import Clock
    from postroad.relay.plan import Plan
    from postroad.stores.base import Lease
    from postroad.stores.leases import Leases, RelayIdentity, SinkSnapshot, Suspect

__all__ = ["LaneOwnership", "StartLane"]

RELEASE_SECONDS: Final = 2.0
"""How long to wait for the database when a lane is released, or the relay deregistered."""
_STORE_ERRORS: Final = (StoreUnavailable, LogNotReadable, NotMigrated)

StartLane = Callable[[OwnedLane], Callable[[], None]]
"""Runs a lane, and returns the function that tells it to end after the page in progress."""


class LaneOwnership:
    """Owns the leases of one relay."""

    def __init__(
        self,
        leases: Leases,
        identity: RelayIdentity,
        settings: RelaySettings,
        listeners: Listeners,
        *,
        outages: StoreOutages | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._settings = settings
        self._listeners = listeners
        self._clock = clock or Monotonic()
        self._outages = outages or StoreOutages(identity.sink, listeners, self._clock)
        self._lease = settings.seconds("lease")
        self._heartbeats = HeartbeatSchedule(
            self._lease, tick=None if settings.wakeup == "off" else settings.seconds("tick")
        )
        self._liveness = LivenessSession(
            leases,
            identity,
            settings.lock_id,
            listeners,
            self._outages,
            clock=self._clock,
            on_change=self._on_change,
            retry_seconds=self._heartbeats.interval,
        )
        self._lanes: dict[int, OwnedLane] = {}
        self._stop_lane: dict[int, Callable[[], None]] = {}
        self._observed = Observations()
        self._changed = asyncio.Event()
        """Lanes or relays may have changed: begin a round now."""
        self._stopping = False
        self._until_empty = False
        self._started = False
        self._must_reclaim = False
        """The session was lost, and not all lanes have been reclaimed."""
        self._in_round = False
        self._tick_heartbeat: Heartbeat | None = None
        """The heartbeat that a tick sends along, unless a round has begun since."""
        self._tick_heartbeat_at = float("-inf")
        self._tick_snapshot: SinkSnapshot | None = None
        """The snapshot that it returned, for the next round."""
        self._standby = False
        self._acting_without_lock = False
        self._backoff = ExponentialBackoff(min(settings.seconds("outage_backoff"), self._heartbeats.interval))
        self._failures = 0
        self._unavailable_since: float | None = None

    async def run(self, start: StartLane, *, on_started: Callable[[], None], until_empty: bool = False) -> None:
        """Own this relay's share of the lanes until stopped and all its lanes have ended. `start` is called for each
        lane that was taken, `on_started` after the first plan was executed.

        Until empty: return when all lanes that could be taken have ended; release them only then.
        """
        self._until_empty = until_empty
        while True:
            self._in_round, self._tick_heartbeat = True, None
            pause = await self._round(start)
            self._in_round = False
            if self._started:
                on_started()
            all_ended = all(owned.ended for owned in self._lanes.values())
            if all_ended and (self._stopping or (until_empty and self._started)):
                return
            await self._clock.wait(self._changed, pause)
            self._changed.clear()

    def stop(self) -> None:
        """Take no more lanes. Those that run are released as they end."""
        self._stopping = True
        self._on_change()

    @property
    def lanes(self) -> int:
        """How many lanes the relay owns. From any thread."""
        return sum(owned.kept and not owned.ended for owned in list(self._lanes.values()))

    @property
    def lease_remaining(self) -> float | None:
        """Seconds until the first lease may end, as far as this relay knows; None without a lane. From any thread."""
        ends = [owned.valid_until for owned in list(self._lanes.values()) if owned.kept and not owned.ended]
        return max(0.0, min(ends) - self._clock.now()) if ends else None

    async def release(self, owned: OwnedLane) -> None:
        """The lane has ended: release it, unless it is lost."""
        owned.ended = True
        self._on_change()
        if self._until_empty and not owned.lost:
            return  # it is kept until all lanes have ended, or this relay would take it again
        lease = owned.latest
        try:
            if not owned.lost:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._leases.release(lease)
                self._listeners.emit(events.LaneReleased(lease.sink, lease.lane))
        except _STORE_ERRORS as error:
            self._outages.failed("leases", error, FIRST_SECONDS)
        except TimeoutError:
            self._outages.failed("leases", NO_ANSWER, FIRST_SECONDS)
        finally:
            del self._lanes[lease.lane]
            self._stop_lane.pop(lease.lane, None)  # an eager task may end before `start` returns
            self._on_change()

    async def deregister(self) -> None:
        """Release everything that is this relay's, as far as the database answers. The lock first, so that a relay that
        is notified of the free lanes finds the lock free, too.
        """
        self._liveness.close()
        with suppress(*_STORE_ERRORS, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._leases.deregister(self._identity)

    # -- heartbeats that a tick sends along --------------------------------------------------------------------------

    def next_heartbeat(self) -> Heartbeat | None:
        """The heartbeat for a tick to send along; None while a round is in progress."""
        lock = self._liveness.lock
        if self._in_round or self._must_reclaim or not self._started or (lock is not None and lock.lost):
            return None
        self._tick_heartbeat, self._tick_heartbeat_at = Heartbeat(self._identity, self._lease, lock), self._clock.now()
        return self._tick_heartbeat

    def on_heartbeat(self, heartbeat: Heartbeat, snapshot: SinkSnapshot) -> None:
        """A tick has sent this heartbeat. If a round has begun since, this snapshot is ignored."""
        if heartbeat is self._tick_heartbeat:
            self._heartbeats.answered(snapshot, self._tick_heartbeat_at)
            self._update_lanes(snapshot, self._tick_heartbeat_at)
            self._tick_snapshot = snapshot
            self._changed.set()

    def _on_change(self) -> None:
        self._tick_snapshot = self._tick_heartbeat = None
        self._changed.set()

    # -- one round ---------------------------------------------------------------------------------------------------

    async def _round(self, start: StartLane) -> float:
        """Get a snapshot, plan, and act. Returns how long to wait for the next round."""
        try:
            async with asyncio.timeout(self._heartbeats.interval):
                pause = await self._plan_and_act(start)
        except _STORE_ERRORS as error:
            return self._back_off(error)
        except TimeoutError:
            return self._back_off(NO_ANSWER)
        self._outages.worked("leases")
        self._failures = 0
        self._unavailable_since = None
        return pause

    async def _plan_and_act(self, start: StartLane) -> float:
        if self._stopping and not self._heartbeat_is_due():
            return self._until_heartbeat()  # another statement would only delay the relay that takes over
        running = set(self._lanes)
        snapshot = await self._get_snapshot()
        self._check_destination(snapshot)
        if self._stopping:
            return self._until_heartbeat()
        if not self._started and snapshot.lanes != self._settings.lanes:
            sink, wanted = self._identity.sink, self._settings.lanes
            self._listeners.emit(events.LanesDiffer(sink, wanted=wanted, lanes=snapshot.lanes))
        await self._liveness.keep_open()
        todo = plan(snapshot, self._state(running), self._clock.now())
        self._observed = todo.observed
        await self._act(todo, snapshot, start)
        pause = EAGER_SECONDS if self._must_reclaim else todo.look_again_in
        return min(pause, self._until_heartbeat())

    def _check_destination(self, snapshot: SinkSnapshot) -> None:
        """Raise InvalidSetting when the sink was changed or removed while this relay could not see it."""
        sink, destination = self._identity.sink, snapshot.destination
        if destination is None:
            raise InvalidSetting(f"sink {sink!r} was removed while this relay served it; it ends")
        if destination != self._identity.destination:
            raise wrong_destination(sink, destination, self._identity.destination)
        if snapshot.filter != self._identity.filter:
            raise wrong_filter(sink, snapshot.filter, self._identity.filter)

    def _state(self, running: Collection[int]) -> OwnState:
        return OwnState(
            self._identity.owner,
            lock_id=self._settings.lock_id,
            may_work=self._liveness.may_work,
            until_empty=self._until_empty,
            started=self._started,
            must_reclaim=self._must_reclaim,
            running=running,
            owned=list(self._lanes),
            kept=[lane for lane, owned in self._lanes.items() if owned.kept],
            lost=[lane for lane, owned in self._lanes.items() if owned.lost],
            observed=self._observed,
        )

    # -- the snapshot ------------------------------------------------------------------------------------------------

    async def _get_snapshot(self) -> SinkSnapshot:
        snapshot, self._tick_snapshot = self._tick_snapshot, None
        if self._liveness.notice_loss():
            snapshot = None
            self._suspend_lanes()
        snapshot = snapshot or await self._heartbeat_or_inspect()
        if not snapshot.lock_held:  # the session has ended, and this side of the connection does not know yet
            self._liveness.drop()
            self._suspend_lanes()
            snapshot = await self._heartbeat_or_inspect()
        return snapshot

    def _suspend_lanes(self) -> None:
        """The session was lost: no lane begins a wave before it was reclaimed."""
        self._must_reclaim = True
        for owned in self._lanes.values():
            owned.valid_until = float("-inf")
        self._listeners.emit(events.LivenessSessionLost(self._identity.sink, lanes=len(self._lanes)))

    async def _heartbeat_or_inspect(self) -> SinkSnapshot:
        sent_at, lock = self._clock.now(), self._liveness.lock
        if not self._heartbeat_is_due():
            snapshot = await self._leases.inspect(self._identity, lock)
        else:
            snapshot = await self._leases.heartbeat(self._identity, self._lease, lock)
            self._heartbeats.answered(snapshot, sent_at)
        self._update_lanes(snapshot, sent_at)
        return snapshot

    def _update_lanes(self, snapshot: SinkSnapshot, sent_at: float) -> None:
        for number, owned in self._lanes.items():
            if snapshot.mine.get(number) != owned.latest.epoch:
                owned.lost = True
                self._stop_lane[number]()
            elif number in snapshot.renewed and not self._must_reclaim:
                owned.valid_until = self._heartbeats.lease_end(sent_at)

    def _heartbeat_is_due(self) -> bool:
        return self._must_reclaim or self._heartbeats.is_due(self._clock.now())

    def _until_heartbeat(self) -> float:
        return self._heartbeats.wait_seconds(self._clock.now())

    def _back_off(self, error: Exception) -> float:
        now, limit = self._clock.now(), self._settings.seconds("until_empty_timeout")
        self._unavailable_since = now if self._unavailable_since is None else self._unavailable_since
        if self._until_empty and now - self._unavailable_since >= limit:
            raise StoreUnavailable(f"gave up after waiting {limit:g} s (until_empty_timeout) for the database: {error}")
        self._failures += 1
        pause = self._backoff.after(self._failures)
        self._outages.failed("leases", error, pause)
        return pause

    # -- acting ------------------------------------------------------------------------------------------------------

    async def _act(self, todo: Plan, snapshot: SinkSnapshot, start: StartLane) -> None:
        self._report_acting_without_lock(todo)
        for number in todo.release:
            self._lanes[number].releasing = True
            self._stop_lane[number]()
        await self._take(todo, start)
        if todo.started and not self._started and self._until_empty:
            self._report_left_to_others(snapshot)
        self._started = todo.started
        if not self._until_empty:
            self._report_standby(snapshot)
        if todo.evict:
            await self._evict(todo.evict)

    async def _take(self, todo: Plan, start: StartLane) -> None:
        if todo.take or todo.reclaim:
            sent_at, wanted = self._clock.now(), todo.take + len(todo.reclaim)
            taken = await self._leases.take(
                self._identity, wanted, self._lease, reclaim=todo.reclaim, exclude=todo.exclude
            )
            self._run_lanes(taken, self._heartbeats.lease_end(sent_at), start)
            if not {lease.lane for lease in taken} >= set(todo.reclaim):
                return  # another transaction has locked one of them: the next round tries again
        self._must_reclaim = False

    def _run_lanes(self, taken: Sequence[Lease], valid_until: float, start: StartLane) -> None:
        if not taken:
            return
        self._listeners.emit(
            events.LanesTaken(
                self._identity.sink,
                owner=self._identity.owner,
                lanes=len(taken),
                numbers=[lease.lane for lease in taken],
                epochs=[lease.epoch for lease in taken],
            )
        )
        for lease in taken:
            if owned := self._lanes.get(lease.lane):
                owned.reclaim(lease, valid_until)
            else:
                owned = self._lanes[lease.lane] = OwnedLane(lease, valid_until, self._clock)
                self._stop_lane[lease.lane] = start(owned)

    async def _evict(self, suspects: Sequence[Suspect]) -> None:
        for owner in await self._leases.evict(self._identity, suspects):
            self._listeners.emit(events.RelayEvicted(self._identity.sink, owner=owner))
            self._on_change()

    def _report_acting_without_lock(self, todo: Plan) -> None:
        if todo.acting_without_lock and not self._acting_without_lock and self._settings.lock_id is not None:
            self._listeners.emit(events.ActingWithoutLock(self._identity.sink, lock_id=self._settings.lock_id))
        self._acting_without_lock = todo.acting_without_lock

    def _report_left_to_others(self, snapshot: SinkSnapshot) -> None:
        if numbers := sorted(set(range(snapshot.lanes)) - set(self._lanes)):
            self._listeners.emit(events.LanesLeftToOthers(self._identity.sink, lanes=len(numbers), numbers=numbers))

    def _report_standby(self, snapshot: SinkSnapshot) -> None:
        standby = not self._lanes
        if standby and not self._standby:
            self._listeners.emit(events.RelayStandby(self._identity.sink, relays=len(snapshot.peers)))
        self._standby = standby
