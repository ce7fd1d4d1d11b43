"""The plan for a relay's lanes, without a loop and without a database."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.relay.plan import (
    AT_HEARTBEAT,
    EAGER_SECONDS,
    EVICT_SECONDS,
    LEFT_SECONDS,
    WATCH_SECONDS,
    Observations,
    OwnState,
    Plan,
    acts_without_lock,
    fair_share,
    plan,
)
from postroad.stores.leases import Peer, SinkSnapshot, Suspect
from tests.lanes import HERE

LOCK = 42


def owner(number: int) -> UUID:
    return UUID(int=number)


def peers(*lanes: int) -> list[Peer]:
    return [Peer(owner(number), count, 1) for number, count in enumerate(lanes)]


def snapshot(*held: int, lanes: int = 4, heartbeats: int = 1, me: int = 0, **fields: Any) -> SinkSnapshot:
    """Relay 0 owns the first lanes, relay 1 the next ones, and so on; what they leave is free."""
    first = sum(held[:me])
    values: dict[str, Any] = {
        "lanes": lanes,
        "destination": HERE,
        "mine": dict.fromkeys(range(first, first + held[me]), 1),
        "renewed": (),
        "free": list(range(sum(held), lanes)),
        "peers": [msgspec.structs.replace(peer, heartbeats=heartbeats) for peer in peers(*held)],
        "suspects": (),
    }
    return SinkSnapshot(**(values | fields))


def state(found: SinkSnapshot, me: int = 0, **fields: Any) -> OwnState:
    """Of a relay that runs all lanes that it owns."""
    mine = list(found.mine)
    values: dict[str, Any] = {"started": True, "running": mine, "owned": mine, "kept": mine}
    return OwnState(owner(me), **(values | fields))


def planned(found: SinkSnapshot, now: float = 0.0, **fields: Any) -> Plan:
    return plan(found, state(found, **fields), now)


# -- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lanes", "held", "shares"),
    [
        (4, [0], [4]),
        (4, [4, 0], [2, 2]),
        (4, [2, 2, 0], [2, 1, 1]),
        (1, [0, 1], [0, 1]),  # its owner keeps it, also from a relay that was started earlier
        (1, [0, 0], [1, 0]),
        (3, [0, 1, 2, 0], [1, 1, 1, 0]),
        (5, [1, 2, 2], [1, 2, 2]),
    ],
)
def test_a_fair_share(lanes: int, held: list[int], shares: list[int]) -> None:
    assert [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))] == shares


@given(st.integers(1, 64), st.lists(st.integers(0, 64), min_size=1, max_size=20))
def test_all_lanes_are_shared_and_no_share_is_two_more_than_another(lanes: int, held: list[int]) -> None:
    shares = [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))]
    assert sum(shares) == lanes
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 64), st.lists(st.integers(0, 64), min_size=1, max_size=20))
def test_once_every_relay_has_its_share_nothing_moves(lanes: int, held: list[int]) -> None:
    shares = [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))]
    assert [fair_share(lanes, peers(*shares), owner(number)) for number in range(len(held))] == shares


def test_a_relay_that_is_not_among_the_peers_yet_comes_last() -> None:
    assert fair_share(3, peers(1, 1), owner(7)) == 1
    assert fair_share(2, peers(1, 1), owner(7)) == 0


@st.composite
def sharing(draw: st.DrawFn) -> tuple[int, list[int]]:
    """How many lanes there are, and how many of them each relay owns."""
    lanes = draw(st.integers(1, 32))
    held, left = [], lanes
    for _ in range(draw(st.integers(1, 8))):
        held.append(draw(st.integers(0, left)))
        left -= held[-1]
    return lanes, held


@given(sharing())
def test_all_relays_that_see_the_same_snapshot_share_all_lanes_exactly(given_: tuple[int, list[int]]) -> None:
    """First they release what exceeds their shares, then each takes what it lacks: all of it, and no lane twice."""
    lanes, held = given_
    released = []
    for me in range(len(held)):
        found = snapshot(*held, lanes=lanes, me=me)
        released.append(held[me] - len(planned(found, me=me).release))
    taken = [planned(snapshot(*released, lanes=lanes, me=me), me=me) for me in range(len(held))]
    assert not any(each.release for each in taken), "nothing more than what exceeded the share"
    assert sum(each.take for each in taken) == lanes - sum(released)
    after = [number + each.take for number, each in zip(released, taken, strict=True)]
    assert max(after) - min(after) <= 1


@given(sharing())
def test_no_plan_takes_more_than_is_missing_or_releases_what_is_not_its_own(given_: tuple[int, list[int]]) -> None:
    lanes, held = given_
    for me in range(len(held)):
        found = snapshot(*held, lanes=lanes, me=me)
        todo = planned(found, me=me)
        assert set(todo.release) <= set(found.mine)
        assert not (todo.take and todo.release)
        assert todo.take == 0 or found.free


# -- taking ----------------------------------------------------------------------------------------------------------


def test_a_lost_lane_that_still_runs_is_not_taken_back() -> None:
    found = snapshot(2, mine={0: 1, 1: 1}, free=[2, 3])
    todo = planned(found, owned=[0, 1, 2], lost=[2])
    assert (todo.take, todo.exclude) == (2, [2])
    assert planned(snapshot(3, free=[3]), owned=[0, 1, 2, 3], lost=[3]).take == 0, "there is no other"


def test_its_own_lanes_that_do_not_run_are_reclaimed() -> None:
    assert planned(snapshot(4), running=[0, 1, 3], owned=[0, 1, 3], kept=[0, 1, 3]).reclaim == [2]


def test_a_lane_that_was_released_after_the_snapshot_is_not_reclaimed() -> None:
    assert planned(snapshot(4), running=[0, 1, 2, 3], owned=[0, 1, 2], kept=[0, 1, 2]).reclaim == []


def test_after_a_lost_session_all_lanes_that_it_keeps_are_reclaimed() -> None:
    assert planned(snapshot(4), kept=[0, 1, 3], must_reclaim=True).reclaim == [0, 1, 3]


# -- free lanes that stay free ---------------------------------------------------------------------------------------


def test_a_relay_that_leaves_a_lane_of_its_share_is_not_counted_until_it_is_heard_again() -> None:
    """The second of three relays owns two lanes of four: with the third one counted, its share is one."""
    observed = planned(snapshot(1, 2, 0, me=1), 10.0, me=1).observed
    observed = planned(snapshot(1, 2, 0, me=1), 10.0 + LEFT_SECONDS - 0.1, me=1, observed=observed).observed
    assert observed.absent == {}
    observed = planned(snapshot(1, 2, 0, me=1), 10.0 + LEFT_SECONDS, me=1, observed=observed).observed
    assert observed.absent == {owner(2): 1}
    silent = planned(snapshot(2, 2, 0, me=1), 12.0, me=1, observed=observed)
    assert silent.release == [], "it has sent no heartbeat since"
    alive = planned(snapshot(2, 2, 0, me=1, heartbeats=2), 13.0, me=1, observed=observed)
    assert alive.release == [3]


def test_a_lane_that_was_taken_in_between_was_not_left() -> None:
    observed = planned(snapshot(2, 1), 10.0).observed
    observed = planned(snapshot(2, 2), 10.5, observed=observed).observed
    todo = planned(snapshot(2, 1), 11.0, observed=observed)
    assert todo.observed.absent == {}
    assert todo.observed.free == {3: 11.0}


# -- eviction --------------------------------------------------------------------------------------------------------

SUSPECT = Suspect(owner(1), 7)


def test_a_suspect_must_miss_two_probes() -> None:
    found = snapshot(2, 2, suspects=[SUSPECT])
    first = planned(found, 10.0)
    assert (first.evict, first.look_again_in) == ([], EAGER_SECONDS)
    assert planned(found, 10.0, observed=first.observed).evict == [], "at the same time is not twice"
    assert planned(found, 10.0 + EVICT_SECONDS, observed=first.observed).evict == [SUSPECT]


def test_a_suspect_that_has_sent_a_heartbeat_begins_anew() -> None:
    observed = planned(snapshot(2, 2, suspects=[SUSPECT]), 10.0).observed
    again = snapshot(2, 2, suspects=[Suspect(SUSPECT.owner, 8)])
    assert planned(again, 10.0 + EVICT_SECONDS, observed=observed).evict == []


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.booleans(), st.booleans()), max_size=30))
def test_a_live_owner_is_never_evicted_before_two_probes_750_ms_apart(probes: list[tuple[float, bool, bool]]) -> None:
    """Whatever comes in between: it seemed dead in all probes of at least that time, without a heartbeat."""
    observed, now, heartbeats, since = Observations(), 100.0, 1, None
    for seconds, seems_dead, sends in probes:
        now += seconds
        heartbeats += sends
        since = (now if sends or since is None else since) if seems_dead else None
        suspects = [Suspect(owner(1), heartbeats)] if seems_dead else []
        todo = planned(snapshot(2, 2, suspects=suspects), now, observed=observed)
        observed = todo.observed
        assert bool(todo.evict) == (since is not None and now - since >= 0.75)
        assert list(todo.evict) in ([], suspects)


# -- the lock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lanes", "locks", "acting"),
    [
        ([0, 0], [None, None], 0),  # the first one
        ([0, 4], [None, None], 1),  # nothing moves that need not
        ([2, 2], [None, None], 0),
        ([0, 4], [LOCK, None], None),  # the one that holds the lock works
        ([0, 0], [None, LOCK], None),
        ([0, 0], [41, None], 0),  # that is another lock
    ],
)
def test_which_relay_acts_without_the_lock(lanes: list[int], locks: list[int | None], acting: int | None) -> None:
    there = [msgspec.structs.replace(each, lock=lock) for each, lock in zip(peers(*lanes), locks, strict=True)]
    without = [each.owner.int for each in there if each.lock != LOCK and acts_without_lock(there, each.owner, LOCK)]
    assert without == ([] if acting is None else [acting])


def test_what_its_own_row_says_of_a_lock_that_it_lost_does_not_count() -> None:
    assert acts_without_lock([Peer(owner(0), 4, 1, lock=LOCK)], owner(0), LOCK)


def test_the_relay_that_holds_the_lock_takes_all_lanes() -> None:
    todo = planned(snapshot(1, 0, 0), lock_id=LOCK, may_work=True)
    assert (todo.take, todo.acting_without_lock) == (3, False)


def test_a_relay_without_the_lock_releases_all_lanes_to_the_relay_that_holds_it() -> None:
    holder = [Peer(owner(0), 4, 1), Peer(owner(1), 0, 1, lock=LOCK)]
    todo = planned(snapshot(4, 0, peers=holder), lock_id=LOCK, may_work=False)
    assert todo.release == [0, 1, 2, 3]


def test_a_lock_that_changes_hands_is_left_to_the_relay_that_gets_it() -> None:
    found = snapshot(0)
    first = planned(found, 10.0, lock_id=LOCK, may_work=False)
    assert (first.take, first.acting_without_lock, first.look_again_in) == (0, False, WATCH_SECONDS)
    left = planned(found, 10.0 + LEFT_SECONDS, lock_id=LOCK, may_work=False, observed=first.observed)
    assert (left.take, left.acting_without_lock) == (4, True)


# -- until empty -----------------------------------------------------------------------------------------------------


def test_until_empty_takes_what_is_free_until_the_others_have_shown_that_they_are_alive() -> None:
    found = snapshot(0, 1)
    first = planned(found, until_empty=True, started=False)
    assert (first.take, first.started, first.look_again_in) == (4, False, EAGER_SECONDS)
    still = planned(found, until_empty=True, started=False, observed=first.observed)
    assert not still.started
    alive = planned(snapshot(3, 1, heartbeats=2), until_empty=True, started=False, observed=still.observed)
    assert (alive.take, alive.started, alive.look_again_in) == (0, True, AT_HEARTBEAT)


@pytest.mark.parametrize("free", [[], [0, 1, 2]])
def test_until_empty_waits_for_the_lanes_of_a_relay_that_is_no_peer_any_more(free: list[int]) -> None:
    waiting = planned(snapshot(0, free=free), until_empty=True, started=False)
    assert (waiting.started, waiting.look_again_in) == (False, EAGER_SECONDS)
    assert planned(snapshot(0), until_empty=True, started=False).started


def test_until_empty_releases_nothing_and_once_started_takes_nothing() -> None:
    todo = planned(snapshot(3, 0, 0, 0), until_empty=True)
    assert (todo.release, todo.take) == ((), 0)


def test_until_empty_waits_for_the_lock_or_a_relay_that_holds_it() -> None:
    alone = planned(snapshot(0), until_empty=True, started=False, lock_id=LOCK, may_work=False)
    assert (alone.take, alone.started) == (0, False)
    there = [Peer(owner(0), 0, 1), Peer(owner(1), 0, 1, lock=LOCK)]
    first = planned(snapshot(0, 0, peers=there), until_empty=True, started=False, lock_id=LOCK, may_work=False)
    assert not first.started
    there = [Peer(owner(0), 0, 1), Peer(owner(1), 0, 2, lock=LOCK)]
    alive = snapshot(0, 0, peers=there)
    todo = planned(alive, until_empty=True, started=False, lock_id=LOCK, may_work=False, observed=first.observed)
    assert todo.started


# -- when to look again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "seconds"),
    [((4,), AT_HEARTBEAT), ((2, 2), WATCH_SECONDS), ((0, 4), EAGER_SECONDS), ((2, 0), WATCH_SECONDS)],
)
def test_when_to_look_again(held: tuple[int, ...], seconds: float) -> None:
    """Alone: with the heartbeat. Others own lanes, or some are free: soon. It has less than its share: sooner."""
    assert planned(snapshot(*held)).look_again_in == seconds
