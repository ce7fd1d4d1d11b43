"""The table of transitions, looked at as a whole."""

from __future__ import annotations

import pytest

from postroad.lifecycle import BLOCKING, FINAL, STORED, TRANSITIONS, Mover, State, diagram, may_move


def reachable(begin: State, movers: set[Mover]) -> set[State]:
    found, new = {begin}, {begin}
    while new:
        new = {arrow.after for arrow in TRANSITIONS if arrow.before in new and arrow.mover in movers} - found
        found |= new
    return found


def test_every_state_can_be_reached() -> None:
    assert reachable(State.WAITING, set(Mover)) == set(State)


def test_no_arrow_is_drawn_twice_or_leads_nowhere() -> None:
    arrows = [(arrow.before, arrow.after, arrow.mover) for arrow in TRANSITIONS]
    assert len(arrows) == len(set(arrows))
    assert all(before is not after for before, after, _ in arrows)


def test_what_is_final_stays_unless_an_operator_restores_it_and_nothing_else_is_stuck() -> None:
    assert {arrow.before for arrow in TRANSITIONS} == (set(State) - FINAL) | {State.DROPPED}
    assert [(arrow.after, arrow.mover) for arrow in TRANSITIONS if arrow.before in FINAL] == [
        (State.DEAD, Mover.OPERATOR)
    ]


def test_a_lane_alone_brings_everything_to_an_end_or_to_a_person() -> None:
    for state in BLOCKING | {State.WAITING}:
        assert State.PUBLISHED in reachable(state, {Mover.LANE}), f"{state} can't be published by its lane"
    assert reachable(State.DEAD, {Mover.LANE}) == {State.DEAD}


def test_what_blocks_and_what_is_final_is_apart() -> None:
    assert BLOCKING.isdisjoint(FINAL)
    assert set(STORED) == set(State) - {State.WAITING, State.PUBLISHED}
    assert set(State) - BLOCKING - FINAL == {State.WAITING, State.DEAD}


def test_only_its_lane_moves_a_message_that_is_being_sent() -> None:
    assert {arrow.mover for arrow in TRANSITIONS if State.SENDING in {arrow.before, arrow.after}} == {Mover.LANE}


@pytest.mark.parametrize(
    ("before", "after", "mover", "answer"),
    [
        (State.RETRYING, State.SENDING, Mover.LANE, True),
        (State.RETRYING, State.SENDING, Mover.OPERATOR, False),
        (State.SENDING, State.CANCELED, Mover.APPLICATION, False),
        (State.DEAD, State.RETRYING, Mover.OPERATOR, True),
        (State.PUBLISHED, State.RETRYING, Mover.OPERATOR, False),
        (State.DROPPED, State.DEAD, Mover.OPERATOR, True),
        (State.DROPPED, State.RETRYING, Mover.OPERATOR, False),
        (State.SKIPPED, State.DEAD, Mover.OPERATOR, False),
    ],
)
def test_an_arrow_is_there_or_not(before: State, after: State, mover: Mover, answer: bool) -> None:
    assert may_move(before, after, mover) is answer


def test_the_diagram_has_every_arrow_and_every_end() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == 2 + len(TRANSITIONS) + len(FINAL)
    assert len(lines) == len(set(lines))
