"""Publishes copies of messages that died in other sinks, and that this sink is to get: due → publish → settle.

The lane 0 of the sink does this, so that one relay does. A relay that is killed between publishing and settling leaves
the copy, and the next owner publishes it again, with the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad import events
from postroad.relay.derived import Death, dead_letter
from postroad.relay.outcome import Outcome
from postroad.stores.copies import Postponed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.errors import Refusal
    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.relay.clock import Clock
    from postroad.relay.publishing import LanePublisher
    from postroad.retry import RetryPolicy
    from postroad.stores.copies import Copies, Copy

__all__ = ["LaneCopies"]

LOOK_SECONDS: Final = 1.0
"""The shortest time between two looks while nothing is found."""
MOST: Final = 100
"""Copies that are read at a time: each may be as large as a message can be."""


class LaneCopies:
    """The copies that one lane publishes."""

    def __init__(
        self,
        copies: Copies,
        publisher: LanePublisher,
        lane: tuple[str, int],
        *,
        retry: RetryPolicy,
        route_pause: float,
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        """`lane` is its sink and number; `route_pause`: after how many seconds a blocked route is tried again."""
        self._copies = copies
        self._publisher = publisher
        self._lane = lane
        self._retry = retry
        self._route_pause = route_pause
        self._listeners = listeners
        self._clock = clock
        self.due_at = self.due_at_when_idle = float("-inf")
        """When to look while the lane is busy, and while it has nothing else to do."""
        self.more = False
        """There may be more than were published."""

    def loaded(self, now: float) -> None:
        """The lane was loaded: its own messages come first, but not for long."""
        self.due_at, self.due_at_when_idle = now + LOOK_SECONDS, now

    async def run(self) -> None:
        """Publish some of what may be published now; the lane's own messages are not kept waiting for the rest.

        Raises Interrupted when the relay is being stopped and copies were left without an answer: they stay.
        """
        found = await self._copies.due(self._lane[0], MOST)
        if found:
            await self._publish(found)
        self.more = len(found) == MOST
        self.due_at = self.due_at_when_idle = self._clock.now() + (0.0 if self.more else LOOK_SECONDS)

    async def _publish(self, found: Sequence[Copy]) -> None:
        letters = [_letter(place, each) for place, each in enumerate(found)]
        outcome = Outcome()
        await self._publisher.publish_copies(letters, outcome)
        done: list[UUID] = []
        postponed: list[Postponed] = []
        for letter, copy in zip(letters, found, strict=True):
            refusal = outcome.refused.get(letter.position)
            if refusal is None:
                if letter.position in outcome.confirmed:
                    done.append(copy.id)
            elif (again := self._postponed(copy, refusal)) is not None:
                postponed.append(again)
            else:
                done.append(copy.id)
                self._emit_given_up(copy, refusal)
        if done or postponed:
            await self._copies.settle(self._lane[0], done=done, postponed=postponed)
        if outcome.interrupted is not None:
            raise outcome.interrupted

    def _postponed(self, copy: Copy, refusal: Refusal) -> Postponed | None:
        """When a refused copy is published again; None: it had its last attempt."""
        asked = max(refusal.retry_in or 0.0, 0.0)
        if refusal.route is not None and not refusal.permanent:
            return Postponed(copy.id, max(self._route_pause, asked), counted=False)
        pause = self._retry.retry_in(copy.tries + 1, refusal)
        return None if pause is None else Postponed(copy.id, max(pause.total_seconds(), asked), counted=True)

    def _emit_given_up(self, copy: Copy, refusal: Refusal) -> None:
        self._listeners.emit(
            events.DeadLetterRefused(
                *self._lane, id=copy.message.id, topic=copy.message.topic, reason=refusal.reason
            ).caused_by(refusal.error)
        )


def _letter(place: int, copy: Copy) -> StoredMessage:
    """The copy as it is published. Answers name positions, and one message may have died in two sinks: so each has a
    position of its own here.
    """
    death = Death(copy.dead_in, copy.error, copy.attempts, copy.died_at)
    letter = dead_letter(copy.message, death, id=copy.id, topic=copy.message.topic)
    return msgspec.structs.replace(letter, position=place)
