"""Which lanes a relay holds, and until when. Only this module takes lanes and gives them up.

The rules:

- A lease counts from when the renewal was sent, not from when it was answered, and a little less than it is long.
- A relay has its fair share. What it has more it gives up after the page under way; what it has less it takes when it
  is free. What is left free by one whose share it is, the others share.
- With `lock_id` the one that holds the lock has all; if nobody who lives holds it, one stands in.
- Nobody is robbed who lives: who seems dead must seem so twice, some time apart.
- Who loses the session that holds its lock begins no wave, and takes its lanes anew.
- An idle relay's beat is carried by its tick; what was asked here since counts more than what a tick has found.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import InvalidSetting, LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import tell
from postroad.relay.clock import Monotonic
from postroad.relay.liveness import LivenessSession
from postroad.relay.owned_lane import FreeLanes, OwnedLane, acting_without_lock, fair_share
from postroad.stores.leases import Beat, elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from postroad.config import RelaySettings
    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease
    from postroad.stores.leases import Leases, Peer, RelayIdentity, SinkSnapshot, Suspect

__all__ = ["LaneOwnership"]

BEATS_PER_LEASE: Final = 3
MARGIN: Final = 0.2
"""The part of a lease that is left to a wave that has begun."""
LOOK_SECONDS: Final = 0.5
"""How often a relay looks for one that died, if there are others that have lanes; for the lock; and at what is free."""
EAGER_SECONDS: Final = 0.25
"""How often it looks while it has less than its share, or somebody seems dead."""
DEAD_SECONDS: Final = 0.75
"""How long somebody must seem dead. If he lives, and his session was cut without a word, he has looked meanwhile."""
A_LITTLE_LATER: Final = 1.2
"""A tick that beats may take its time."""
FIRST_PAUSE: Final = 0.05
LEAVING_SECONDS: Final = 2.0
NO_ANSWER: Final = "the database did not answer in time"
_STORE_ERRORS: Final = (StoreUnavailable, LogNotReadable, NotMigrated)


class LaneOwnership:
    """The lanes that one relay holds."""

    def __init__(
        self, leases: Leases, identity: RelayIdentity, settings: RelaySettings, *, clock: Clock | None = None
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._settings = settings
        self._clock = clock or Monotonic()
        self._lease = settings.seconds("lease")
        self._beat_every = self._lease / BEATS_PER_LEASE
        carried = settings.wakeup != "off" and settings.seconds("tick") <= self._beat_every
        self._beat_at_latest = self._beat_every * (A_LITTLE_LATER if carried else 1)
        """When this relay beats by itself, unless a tick has done so."""
        self._liveness = LivenessSession(
            leases, identity, settings.lock_id, clock=self._clock, retry_seconds=self._beat_every
        )
        self._owned_lanes: dict[int, OwnedLane] = {}
        self._free = FreeLanes(identity.owner)
        self._stirred = asyncio.Event()
        self._stopping = False
        self._began = False
        """It was seen how things stand, and what is free was taken."""
        self._beat_at = float("-inf")
        """When the last heartbeat that was answered was sent."""
        self._anew = False
        """The session was lost: the lanes must be taken anew."""
        self._suspected: dict[Suspect, float] = {}
        self._asking = False
        self._carried: Beat | None = None
        """What a tick carries, unless this relay has asked by itself since."""
        self._carried_at = float("-inf")
        self._news: SinkSnapshot | None = None
        """What a tick has found, and nobody has looked at."""
        self._until_empty = False
        self._seen: dict[UUID, int] = {}
        """How often others had been heard of when they were seen with lanes for the first time."""
        self._stands_by = False
        self._stands_in = False
        self._pause = FIRST_PAUSE
        self._out_since: float | None = None
        """Since when the database could not be asked."""

    async def run(
        self, start: Callable[[OwnedLane], None], *, began: Callable[[], None], until_empty: bool = False
    ) -> None:
        """Hold this relay's share until stopped and all its lanes have ended. `start` runs a lane that was taken;
        `began` is called when it was seen for the first time how things stand.

        Until empty: take what is free or becomes so, give nothing up before the end, and return when all those lanes
        have ended. Lanes of others are left to them as soon as they have shown that they live.
        """
        self._until_empty = until_empty
        while True:
            self._asking, self._carried = True, None
            pause = await self._once(start)
            self._asking = False
            if self._began:
                began()
            if all(owned.over for owned in self._owned_lanes.values()) and (
                self._stopping or (until_empty and self._began)
            ):
                return
            await self._clock.wait(self._stirred, pause)
            self._stirred.clear()

    def stop(self) -> None:
        """Take no more lanes. Those it has are given up as they end."""
        self._stopping = True
        self._stir()

    async def ended(self, owned: OwnedLane) -> None:
        """A lane does not run any more: give it up, unless it is lost."""
        owned.over = True
        self._stir()
        if self._until_empty and not owned.lost:
            return  # it is kept until all of them have ended, lest it be taken again
        try:
            if not owned.lost:
                async with asyncio.timeout(LEAVING_SECONDS):
                    await self._leases.give_up(owned.lease)
                tell(events.LaneReleased(owned.lease.sink, owned.lease.lane))
        except (*_STORE_ERRORS, TimeoutError) as error:
            reason = str(error) or NO_ANSWER
            tell(events.LeasesUnavailable(self._identity.sink, reason=reason, retry_ms=FIRST_PAUSE * 1000))
        finally:
            del self._owned_lanes[owned.lease.lane]
            self._stir()

    async def leave(self) -> None:
        """Be gone, as far as the database can be asked: all that is this relay's is free. The lock first, so that
        whoever hears that the lanes are free finds it free, too.
        """
        self._liveness.close()
        with suppress(*_STORE_ERRORS, TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._leases.leave(self._identity)

    # -- with a tick -------------------------------------------------------------------------------------------------

    def due(self) -> Beat | None:
        """What a tick is to carry along, unless this relay is at it by itself."""
        liveness_lock = self._liveness.liveness_lock
        if self._asking or self._anew or not self._began or (liveness_lock is not None and liveness_lock.lost):
            return None
        self._carried, self._carried_at = Beat(self._identity, self._lease, liveness_lock), self._clock.now()
        return self._carried

    def beaten(self, beat: Beat, snapshot: SinkSnapshot) -> None:
        """What a tick has found. If this relay has asked by itself since, that answer counts."""
        if beat is self._carried:
            self._note_beat(snapshot, self._carried_at)
            self._note(snapshot, self._carried_at)
            self._news = snapshot
            self._stirred.set()

    def _stir(self) -> None:
        """Things may stand differently than what is known."""
        self._news = self._carried = None
        self._stirred.set()

    # -- one round ---------------------------------------------------------------------------------------------------

    async def _once(self, start: Callable[[OwnedLane], None]) -> float:
        """Beat or look, note what is lost, and come closer to the fair share. Says how long to wait."""
        try:
            async with asyncio.timeout(self._beat_every):
                pause = await self._come_closer(start)
        except _STORE_ERRORS as error:
            return self._out(str(error))
        except TimeoutError:
            return self._out(NO_ANSWER)
        self._pause = FIRST_PAUSE
        self._out_since = None
        return pause

    async def _come_closer(self, start: Callable[[OwnedLane], None]) -> float:
        if self._stopping and not self._must_beat():
            return self._until_next_beat()  # whoever is to take over should not have to wait for what nobody needs
        running = set(self._owned_lanes)
        snapshot = await self._ask()
        if snapshot.destination != self._identity.destination:
            raise self._moved(snapshot.destination)
        if self._stopping:
            return self._until_next_beat()
        if not self._began and snapshot.lanes != self._settings.lanes:
            tell(events.LanesDiffer(self._identity.sink, wanted=self._settings.lanes, lanes=snapshot.lanes))
        await self._liveness.keep(self._stir)
        await self._bury(snapshot)
        peers = self._free.look(snapshot, self._clock.now())
        again = self._again(snapshot, running)
        if self._until_empty:
            return await self._take_all(snapshot, again, start)
        wanted = self._balance(snapshot, peers)
        await self._take(snapshot, wanted, again, start)
        self._began = True
        self._tell_standby(snapshot)
        return self._until_next_look(snapshot, wanted)

    def _moved(self, destination: str | None) -> InvalidSetting:
        """The sink was retargeted or removed while this relay was not heard of."""
        if destination is None:
            return InvalidSetting(f"sink {self._identity.sink!r} was removed while this relay served it; it ends")
        return elsewhere(self._identity.sink, destination, self._identity.destination)

    async def _ask(self) -> SinkSnapshot:
        snapshot, self._news = self._news, None
        if self._liveness.notice_loss():
            snapshot = None
            self._doubt()
        snapshot = snapshot or await self._beat_or_look()
        if not snapshot.present:  # the server knows nothing of the session, which was cut without a word
            self._liveness.drop()
            self._doubt()
            snapshot = await self._beat_or_look()
        return snapshot

    def _doubt(self) -> None:
        """Who has lost its session takes its lanes anew."""
        self._anew = True
        for owned in self._owned_lanes.values():
            owned.until = float("-inf")
        tell(events.LockLost(self._identity.sink, lanes=len(self._owned_lanes)))

    async def _beat_or_look(self) -> SinkSnapshot:
        sent, liveness_lock = self._clock.now(), self._liveness.liveness_lock
        if not self._must_beat():
            snapshot = await self._leases.look(self._identity, liveness_lock)
        else:
            snapshot = await self._leases.beat(self._identity, self._lease, liveness_lock)
            self._note_beat(snapshot, sent)
        self._note(snapshot, sent)
        return snapshot

    def _note_beat(self, snapshot: SinkSnapshot, sent: float) -> None:
        # A lane that somebody has locked is renewed the next time, which is soon.
        self._beat_at = sent if len(snapshot.renewed) == len(snapshot.mine) else float("-inf")

    def _note(self, snapshot: SinkSnapshot, sent: float) -> None:
        for number, owned in self._owned_lanes.items():
            if snapshot.mine.get(number) != owned.lease.epoch:
                owned.lose()
            elif number in snapshot.renewed and not self._anew:
                owned.until = self._end_of_lease(sent)

    def _must_beat(self) -> bool:
        return self._anew or self._clock.now() >= self._beat_at + self._beat_every

    def _end_of_lease(self, sent: float) -> float:
        return sent + self._lease * (1 - MARGIN)

    def _out(self, reason: str) -> float:
        now, limit = self._clock.now(), self._settings.seconds("until_empty_timeout")
        self._out_since = now if self._out_since is None else self._out_since
        if self._until_empty and now - self._out_since >= limit:
            raise StoreUnavailable(
                f"gave up after waiting {limit:g} s (until_empty_timeout) for the database: {reason}"
            )
        tell(events.LeasesUnavailable(self._identity.sink, reason=reason, retry_ms=self._pause * 1000))
        longest = min(self._settings.seconds("outage_backoff"), self._beat_every)
        pause, self._pause = self._pause, min(2 * self._pause, longest)
        return pause

    def _until_next_beat(self) -> float:
        return max(EAGER_SECONDS, self._beat_at + self._beat_at_latest - self._clock.now())

    def _until_next_look(self, snapshot: SinkSnapshot, wanted: int) -> float:
        if wanted > 0 or self._suspected or self._anew:
            return EAGER_SECONDS
        others_have_lanes = any(peer.lanes for peer in snapshot.peers if peer.owner != self._identity.owner)
        watchful = others_have_lanes or snapshot.free or not self._liveness.may_work
        return min(LOOK_SECONDS, self._until_next_beat()) if watchful else self._until_next_beat()

    # -- giving and taking -------------------------------------------------------------------------------------------

    async def _bury(self, snapshot: SinkSnapshot) -> None:
        """Who has seemed dead for a while is taken for dead, if he is."""
        now = self._clock.now()
        self._suspected = {each: self._suspected.get(each, now) for each in snapshot.suspects}
        long_enough = [each for each, since in self._suspected.items() if now - since >= DEAD_SECONDS]
        if long_enough:
            for owner in await self._leases.bury(self._identity, long_enough, self._liveness.liveness_lock):
                tell(events.RelayEvicted(self._identity.sink, owner=owner))
                self._suspected = {each: since for each, since in self._suspected.items() if each.owner != owner}
                self._stir()

    def _balance(self, snapshot: SinkSnapshot, peers: Sequence[Peer]) -> int:
        """Give up what is too much; say how many are wanted."""
        if self._settings.lock_id is None:
            share = fair_share(snapshot.lanes, peers, self._identity.owner)
        else:
            share = snapshot.lanes if self._is_the_one(snapshot, self._settings.lock_id) else 0
        kept = sorted(number for number, owned in self._owned_lanes.items() if not (owned.leaving or owned.lost))
        for number in kept[share:]:
            self._owned_lanes[number].leave()
        return share - len(kept)

    def _is_the_one(self, snapshot: SinkSnapshot, lock_id: int) -> bool:
        """Whether this relay is the one that works: it has the lock, or stands in for who has it and does not live. A
        lock that is just changing hands is left to who gets it.
        """
        stands_in_now = (
            not self._liveness.may_work
            and (self._free.left or bool(self._owned_lanes))
            and acting_without_lock(snapshot.peers, self._identity.owner, lock_id)
        )
        if stands_in_now and not self._stands_in:
            tell(events.ActingWithoutLock(self._identity.sink, lock_id=lock_id))
        self._stands_in = stands_in_now
        return self._liveness.may_work or stands_in_now

    async def _take_all(
        self, snapshot: SinkSnapshot, again: Sequence[int], start: Callable[[OwnedLane], None]
    ) -> float:
        lock_id = self._settings.lock_id
        may = lock_id is None or self._is_the_one(snapshot, lock_id)
        await self._take(snapshot, snapshot.lanes if may and not self._began else 0, again, start)
        others = {
            peer.owner: peer.beats
            for peer in snapshot.peers
            if peer.owner != self._identity.owner and (peer.lanes or (lock_id is not None and peer.lock == lock_id))
        }
        self._seen = {owner: self._seen.get(owner, beats) for owner, beats in others.items()}
        live = all(beats > self._seen[owner] for owner, beats in others.items())
        if not self._began and live and (may or others):
            self._began = True
            if elsewhere := sorted(set(range(snapshot.lanes)) - set(self._owned_lanes)):
                tell(events.LanesLeftToOthers(self._identity.sink, lanes=len(elsewhere), numbers=elsewhere))
        return self._until_next_beat() if self._began and not self._anew else EAGER_SECONDS

    def _again(self, snapshot: SinkSnapshot, running: Collection[int]) -> Sequence[int]:
        """Its own that do not run, because it could not give them up; and those it keeps, when it must take them anew.

        `running` are those that ran before it was asked how things stand: one that was given up since is not its own.
        """
        kept = {lane for lane, owned in self._owned_lanes.items() if not (owned.leaving or owned.lost)}
        return [lane for lane in snapshot.mine if lane not in running or (self._anew and lane in kept)]

    async def _take(
        self, snapshot: SinkSnapshot, wanted: int, again: Sequence[int], start: Callable[[OwnedLane], None]
    ) -> None:
        # One that was lost and has not ended yet is not taken back beneath its feet.
        lost = [lane for lane, owned in self._owned_lanes.items() if owned.lost]
        wanted = max(0, wanted) if set(snapshot.free).difference(lost) else 0
        if wanted or again:
            sent = self._clock.now()
            taken = await self._leases.take(self._identity, wanted + len(again), self._lease, again=again, but=lost)
            self._hold(taken, self._end_of_lease(sent), start)
            if not {lease.lane for lease in taken} >= set(again):
                return  # one was locked by somebody: the next time
        self._anew = False

    def _hold(self, taken: Sequence[Lease], until: float, start: Callable[[OwnedLane], None]) -> None:
        if not taken:
            return
        tell(
            events.LanesTaken(
                self._identity.sink,
                owner=self._identity.owner,
                lanes=len(taken),
                numbers=[lease.lane for lease in taken],
                epochs=[lease.epoch for lease in taken],
            )
        )
        for lease in taken:
            if owned := self._owned_lanes.get(lease.lane):
                owned.lease, owned.until = lease, until
            else:
                owned = self._owned_lanes[lease.lane] = OwnedLane(lease, until, self._clock)
                start(owned)

    def _tell_standby(self, snapshot: SinkSnapshot) -> None:
        stands_by = not self._owned_lanes
        if stands_by and not self._stands_by:
            tell(events.RelayStandby(self._identity.sink, relays=len(snapshot.peers)))
        self._stands_by = stands_by
