"""The plan for a relay's lanes: which to take, release and reclaim, which relays to evict, and when to plan again.

Pure: no I/O, no clock, no event loop. `LaneOwnership` gets a snapshot, calls `plan`, and executes the plan.

- A relay owns its fair share of the lanes. All relays that see the same snapshot share all lanes exactly.
- A lane that stays free for a second is shared among the relays that take lanes, until the others send a heartbeat.
- With `lock_id`, the relay that holds the lock owns all lanes. While no live relay holds it, one acts without the lock.
- A relay is evicted only after two probes, 750 ms apart, found its liveness lock free, without a heartbeat in between.
- Until empty, a relay takes every lane that is free, releases none, and leaves the other lanes to relays that have
  shown, by another heartbeat, that they are alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from postroad.stores.leases import Peer, SinkSnapshot, Suspect

__all__ = ["EAGER_SECONDS", "Observations", "OwnState", "Plan", "acts_without_lock", "fair_share", "plan"]

EAGER_SECONDS: Final = 0.25
"""How soon to look again while the relay owns less than its share, or suspects another relay."""
WATCH_SECONDS: Final = 0.5
"""How soon to look again while other relays own lanes (one of them may die), lanes are free, or the lock is wanted."""
EVICT_SECONDS: Final = 0.75
"""How far apart the two probes are. A live relay whose session was cut unnoticed has sent a heartbeat by then."""
LEFT_SECONDS: Final = 1.0
"""How long a free lane is left to the relay whose share it is."""
AT_HEARTBEAT: Final = float("inf")


class Observations(msgspec.Struct, frozen=True):
    """What plans have seen so far, and when: each plan returns it for the next."""

    suspected: Mapping[Suspect, float] = {}
    """Suspects, and when each was first seen."""
    free: Mapping[int, float] = {}
    """Free lanes, and since when each was free in every snapshot."""
    absent: Mapping[UUID, int] = {}
    """Relays that left a lane of their share free, and how many heartbeats each had sent by then."""
    seen: Mapping[UUID, int] = {}
    """Other relays with lanes, and how many heartbeats each had sent when it was first seen with lanes."""


class OwnState(msgspec.Struct, frozen=True):
    """What the relay knows of itself when it plans."""

    owner: UUID
    lock_id: int | None = None
    may_work: bool = True
    """It holds the lock, or there is no `lock_id`."""
    until_empty: bool = False
    started: bool = False
    """An earlier plan was executed (until empty: one that took every lane it could get)."""
    must_reclaim: bool = False
    """Its session was lost, so other relays may have evicted it: it takes its lanes again, with new epochs."""
    running: Collection[int] = ()
    """Lanes that ran before the snapshot was taken. A lane released since then is in the snapshot, and not its own."""
    owned: Collection[int] = ()
    """Lanes that run now."""
    kept: Collection[int] = ()
    """Of those, the lanes that are neither lost nor being released."""
    lost: Collection[int] = ()
    """Lanes that still run and have another owner. They are not taken back before they have ended."""
    observed: Observations = Observations()


class Plan(msgspec.Struct, frozen=True):
    """The actions, and what was observed, for the next plan."""

    observed: Observations
    take: int
    """How many free lanes to take."""
    reclaim: Sequence[int]
    """Lanes of its own to take again."""
    exclude: Sequence[int]
    """Lanes not to take."""
    release: Sequence[int]
    evict: Sequence[Suspect]
    acting_without_lock: bool
    started: bool
    look_again_in: float
    """Seconds, or AT_HEARTBEAT: when the next heartbeat is due, and not earlier."""


def plan(snapshot: SinkSnapshot, state: OwnState, now: float) -> Plan:
    """What to do about the lanes of this snapshot. `now` is any clock that only grows."""
    observed = _observe(snapshot, state, now)
    acting = not state.may_work and _acts_without_lock(snapshot, state, observed, now)
    may_work = state.may_work or acting
    reclaim = _reclaim(snapshot, state)
    if state.until_empty:
        started = state.started or _others_are_alive(snapshot, state, observed, may_work=may_work)
        wanted = snapshot.lanes if may_work and not state.started else 0
        release: Sequence[int] = ()
        look_again_in = AT_HEARTBEAT if started else EAGER_SECONDS
    else:
        started = True
        share = _share(snapshot, state, observed, may_work=may_work)
        wanted, release = share - len(state.kept), sorted(state.kept)[share:]
        look_again_in = _look_again_in(snapshot, state, observed, wanted)
    return Plan(
        observed,
        take=max(0, wanted) if set(snapshot.free).difference(state.lost) else 0,
        reclaim=reclaim,
        exclude=sorted(state.lost),
        release=release,
        evict=[suspect for suspect, since in observed.suspected.items() if now - since >= EVICT_SECONDS],
        acting_without_lock=acting,
        started=started,
        look_again_in=look_again_in,
    )


def fair_share(lanes: int, peers: Sequence[Peer], owner: UUID) -> int:
    """How many of the lanes this relay should own. The shares of all relays add up to all lanes.

    The remainder goes to relays with more lanes first, then to those started earlier, so that few lanes move.
    """
    places = [peer.owner for peer in sorted(peers, key=lambda peer: -peer.lanes)]
    if owner not in places:
        places.append(owner)
    share, rest = divmod(lanes, len(places))
    return share + (places.index(owner) < rest)


def acts_without_lock(peers: Sequence[Peer], owner: UUID, lock_id: int) -> bool:
    """Whether this relay is the one to work although it does not hold the lock: no other live relay says that it holds
    it, and this relay is the earliest started of those with lanes, or if none has lanes, of all.
    """
    if any(peer.lock == lock_id and peer.owner != owner for peer in peers):
        return False
    first = next(iter([peer for peer in peers if peer.lanes] or peers), None)
    return first is not None and first.owner == owner


def _observe(snapshot: SinkSnapshot, state: OwnState, now: float) -> Observations:
    before = state.observed
    free = {lane: before.free.get(lane, now) for lane in snapshot.free}
    absent = before.absent
    if _lane_is_left(free, now):
        absent = {**absent, **_below_their_share(snapshot, state.owner)}
    return Observations(
        suspected={suspect: before.suspected.get(suspect, now) for suspect in snapshot.suspects},
        free=free,
        absent=absent,
        seen={owner: before.seen.get(owner, count) for owner, count in _others(snapshot, state).items()},
    )


def _lane_is_left(free: Mapping[int, float], now: float) -> bool:
    return any(now - since >= LEFT_SECONDS for since in free.values())


def _below_their_share(snapshot: SinkSnapshot, owner: UUID) -> Mapping[UUID, int]:
    """The other relays that could take a free lane and did not, and how many heartbeats each has sent."""
    return {
        peer.owner: peer.heartbeats
        for peer in snapshot.peers
        if peer.owner != owner and peer.lanes < fair_share(snapshot.lanes, snapshot.peers, peer.owner)
    }


def _others(snapshot: SinkSnapshot, state: OwnState) -> Mapping[UUID, int]:
    """The other relays that own lanes, or hold the lock, and how many heartbeats each has sent."""
    return {
        peer.owner: peer.heartbeats
        for peer in snapshot.peers
        if peer.owner != state.owner and (peer.lanes or (state.lock_id is not None and peer.lock == state.lock_id))
    }


def _others_are_alive(snapshot: SinkSnapshot, state: OwnState, observed: Observations, *, may_work: bool) -> bool:
    """Whether a relay that runs until empty may leave the remaining lanes to others.

    A dead relay's lanes may become free a moment after the relay is no peer any more: they are not left to it.
    """
    others = _others(snapshot, state)
    owned = sum(peer.lanes for peer in snapshot.peers if peer.owner != state.owner)
    known = len({*snapshot.mine, *snapshot.free}) + owned >= snapshot.lanes
    return known and bool(may_work or others) and all(count > observed.seen[owner] for owner, count in others.items())


def _share(snapshot: SinkSnapshot, state: OwnState, observed: Observations, *, may_work: bool) -> int:
    if state.lock_id is not None:
        return snapshot.lanes if may_work else 0
    peers = [peer for peer in snapshot.peers if observed.absent.get(peer.owner) != peer.heartbeats]
    return fair_share(snapshot.lanes, peers, state.owner)


def _acts_without_lock(snapshot: SinkSnapshot, state: OwnState, observed: Observations, now: float) -> bool:
    """A lock that is just changing hands is left to the relay that gets it: lanes must have been free for a while."""
    return (
        state.lock_id is not None
        and (_lane_is_left(observed.free, now) or bool(state.owned))
        and acts_without_lock(snapshot.peers, state.owner, state.lock_id)
    )


def _reclaim(snapshot: SinkSnapshot, state: OwnState) -> Sequence[int]:
    """Its own lanes that do not run, because they could not be released; and with `must_reclaim`, all that it keeps."""
    return [lane for lane in snapshot.mine if lane not in state.running or (state.must_reclaim and lane in state.kept)]


def _look_again_in(snapshot: SinkSnapshot, state: OwnState, observed: Observations, wanted: int) -> float:
    if wanted > 0 or observed.suspected:
        return EAGER_SECONDS
    others_own_lanes = any(peer.lanes for peer in snapshot.peers if peer.owner != state.owner)
    return WATCH_SECONDS if others_own_lanes or snapshot.free or not state.may_work else AT_HEARTBEAT
