"""The life of a message at one sink: its states, the transitions between them, and what makes each transition.

Most messages know two states, `waiting` and `published`, and neither is written anywhere: a lane's cursor tells them
apart. Only a deferred message gets a row, in the table `deferred`, and that row's state is one of STORED. The table
here, the CHECK constraint in the migrations and the diagram in docs/lifecycle.md say the same; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["BLOCKING", "FINAL", "STORED", "TRANSITIONS", "Mover", "State", "Transition", "diagram", "may_move"]


class State(StrEnum):
    """What is true of a message at one sink."""

    WAITING = "waiting"
    """In the log; no lane has dealt with it yet."""
    PUBLISHED = "published"
    """The broker has confirmed it."""
    RETRYING = "retrying"
    """It was refused, and is due again at a time."""
    SENDING = "sending"
    """Claimed by its lane, and being published."""
    HELD = "held"
    """It waits for something else: an earlier message of its key, its route, or an operator who holds its key."""
    DEAD = "dead"
    """Refused permanently, or too often; an operator decides about it."""
    CANCELED = "canceled"
    """The application took it back before it was published."""
    DROPPED = "dropped"
    """An operator gave it up; or no consumer had subscribed to it, and unroutable = "drop"."""
    SKIPPED = "skipped"
    """An operator recorded that it was published by other means."""


class Mover(StrEnum):
    """What makes a transition."""

    LANE = "the lane"
    APPLICATION = "the application"
    OPERATOR = "an operator"


class Transition(NamedTuple):
    """One arrow of the diagram."""

    before: State
    after: State
    when: str
    mover: Mover = Mover.LANE


_S = State
TRANSITIONS: Final = (
    Transition(_S.WAITING, _S.PUBLISHED, "confirmed"),
    Transition(_S.WAITING, _S.RETRYING, "refused"),
    Transition(_S.WAITING, _S.DEAD, "refused permanently"),
    Transition(_S.WAITING, _S.HELD, "its key is blocked, or its route is blocked"),
    Transition(_S.WAITING, _S.DROPPED, "unroutable, and unroutable = drop"),
    Transition(_S.WAITING, _S.SKIPPED, "skip", Mover.OPERATOR),
    Transition(_S.WAITING, _S.DEAD, "poison", Mover.OPERATOR),
    Transition(_S.RETRYING, _S.SENDING, "due"),
    Transition(_S.HELD, _S.SENDING, "nothing holds it any more"),
    Transition(_S.SENDING, _S.PUBLISHED, "confirmed"),
    Transition(_S.SENDING, _S.RETRYING, "refused, or its lane was lost"),
    Transition(_S.SENDING, _S.HELD, "held again, or its lane was lost"),
    Transition(_S.SENDING, _S.DEAD, "refused permanently, or for the last time"),
    Transition(_S.SENDING, _S.DROPPED, "unroutable, and unroutable = drop"),
    Transition(_S.RETRYING, _S.DEAD, "poison", Mover.OPERATOR),
    Transition(_S.HELD, _S.DEAD, "poison", Mover.OPERATOR),
    Transition(_S.RETRYING, _S.HELD, "hold its key", Mover.OPERATOR),
    Transition(_S.DEAD, _S.RETRYING, "retry", Mover.OPERATOR),
    Transition(_S.DEAD, _S.HELD, "retry, and its key is blocked", Mover.OPERATOR),
    Transition(_S.RETRYING, _S.CANCELED, "cancel", Mover.APPLICATION),
    Transition(_S.HELD, _S.CANCELED, "cancel", Mover.APPLICATION),
    Transition(_S.DEAD, _S.CANCELED, "cancel", Mover.APPLICATION),
    Transition(_S.DEAD, _S.DROPPED, "drop", Mover.OPERATOR),
    Transition(_S.DROPPED, _S.DEAD, "restore", Mover.OPERATOR),
    Transition(_S.RETRYING, _S.SKIPPED, "skip", Mover.OPERATOR),
    Transition(_S.HELD, _S.SKIPPED, "skip", Mover.OPERATOR),
    Transition(_S.DEAD, _S.SKIPPED, "skip", Mover.OPERATOR),
)

BLOCKING: Final = frozenset({State.RETRYING, State.SENDING, State.HELD})
"""While a message is in one of these, later messages of its key wait. A dead one blocks too, with on_dead = "hold"."""

FINAL: Final = frozenset({State.PUBLISHED, State.CANCELED, State.DROPPED, State.SKIPPED})
"""A message needs nothing more in these states, and retention deletes it in time. Until then, a rewind makes a
published message held again, and an operator can restore a dropped one.
"""

STORED: Final = tuple(state for state in State if state not in {State.WAITING, State.PUBLISHED})
"""What a row in `deferred` may say, in the order of the CHECK constraint."""


def may_move(before: State, after: State, mover: Mover) -> bool:
    """Whether there is such an arrow."""
    return any((arrow.before, arrow.after, arrow.mover) == (before, after, mover) for arrow in TRANSITIONS)


def diagram() -> str:
    """The table as a Mermaid state diagram, for docs/lifecycle.md."""
    arrows = [f"    {arrow.before} --> {arrow.after}: {arrow.mover}, {arrow.when}" for arrow in TRANSITIONS]
    ends = [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.WAITING}: added", *arrows, *ends])
