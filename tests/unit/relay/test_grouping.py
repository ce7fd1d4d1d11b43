"""Which lanes are read for together: lanes near most others that have few pages waiting."""

from __future__ import annotations

from collections.abc import Sequence

from postroad.relay.grouping import FEWEST, QUEUED, LanePosition, gather, rows_of_sweep

BATCH = 100


def lanes_at(*positions: int, asks: bool = True, queued: int = 0) -> list[LanePosition]:
    return [LanePosition(lane, position, asks, queued) for lane, position in enumerate(positions)]


def gathered(positions: Sequence[LanePosition], fewest: int = 2) -> list[int]:
    return sorted(gather(positions, batch_size=BATCH, fewest=fewest))


def test_lanes_at_one_place_are_read_for_together() -> None:
    assert gathered(lanes_at(7, 7, 7)) == [0, 1, 2]


def test_few_lanes_read_alone() -> None:
    assert gathered(lanes_at(*[7] * (FEWEST - 1)), fewest=FEWEST) == []
    assert gathered(lanes_at(*[7] * FEWEST), fewest=FEWEST) == list(range(FEWEST))


def test_lanes_that_publish_are_read_for_too_until_enough_waits_for_them() -> None:
    asks, *others = lanes_at(7, 7, 7, 7)
    busy = [LanePosition(each.lane, 7, False, queued) for queued, each in enumerate(others)]
    assert [each.queued for each in busy] == [0, 1, QUEUED]
    assert gathered([asks, *busy]) == [0, 1, 2]


def test_a_lane_that_asks_reads_alone_when_the_others_have_enough() -> None:
    asks, other = lanes_at(7, 7)
    assert gathered([asks, LanePosition(other.lane, 7, False, QUEUED)]) == []


def test_nothing_is_read_that_nobody_has_asked_for() -> None:
    assert gathered(lanes_at(7, 7, 7, asks=False)) == []
    far, *others = lanes_at(100_000, 7, 7, 7)
    assert gathered([far, *[LanePosition(each.lane, 7, False) for each in others]]) == [], "the others have not asked"


def test_a_lane_far_behind_reads_alone_until_it_is_near() -> None:
    near = 4 * 3 * BATCH
    assert gathered(lanes_at(10_000, 10_000, 10_000 - near)) == [0, 1, 2]
    assert gathered(lanes_at(10_000, 10_000, 10_000 - near - 1)) == [0, 1]


def test_a_lane_far_ahead_reads_alone_until_the_others_are_near() -> None:
    near = 2 * 3 * BATCH
    assert gathered(lanes_at(10_000, 10_000, 10_000 + near)) == [0, 1, 2]
    assert gathered(lanes_at(10_000, 10_000, 10_000 + near + 1)) == [0, 1]


def test_of_two_lanes_far_apart_the_one_ahead_does_not_wait() -> None:
    assert gathered(lanes_at(0, 100_000), fewest=1) == [1]


def test_a_sweep_is_as_large_as_its_lanes_pages_up_to_a_limit() -> None:
    assert rows_of_sweep(10, 3) == 30
    assert rows_of_sweep(1000, 3) == 3000
    assert rows_of_sweep(1000, 64) == 8000
