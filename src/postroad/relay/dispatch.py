"""Sends a lane's messages wave by wave, and decides about those that are refused.

- A key's next message goes only after the one before it was confirmed; one that is refused or waits holds it.
- Each refusal becomes a decision before the next wave goes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.lifecycle import State
from postroad.listeners import tell
from postroad.relay.deferred import split
from postroad.relay.derived import dead_letter
from postroad.relay.sending import Interrupted, Outcome
from postroad.relay.waves import in_waves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage
    from postroad.relay.deferred import DeferredMessages, Heads
    from postroad.relay.sending import Sending
    from postroad.stores.base import Claimed, Deferred

__all__ = ["FEW_ROUTES", "Dispatch"]

FEW_ROUTES: Final = 5
"""Of more routes than this that are out, or work again, at once, the log has one line for all."""


class Dispatch:
    """Sends for one lane."""

    def __init__(
        self,
        where: tuple[str, int],
        sending: Sending,
        deferred_messages: DeferredMessages,
        *,
        ordered: bool,
        dead_letter_topic: str | None,
        max_attempts: int | str,
    ) -> None:
        self._where = where
        self._sending = sending
        self._deferred_messages = deferred_messages
        self._ordered = ordered
        self._dead_letter_topic = dead_letter_topic
        self._max_attempts = max_attempts
        self.refused = 0
        self.died = 0
        self.dropped = 0

    async def send(
        self,
        messages: Sequence[StoredMessage],
        outcome: Outcome,
        heads: Heads,
        claimed: Mapping[int, Claimed],
    ) -> None:
        """Send wave after wave; what must wait for an earlier message of its key is held.

        A page that was begun is finished also when the relay is being stopped: the first wave has messages from all
        over the page, so a page that is left after it would almost all go again.
        """
        free = self._free(messages, outcome, heads)
        sent: list[Sequence[StoredMessage]] = []
        try:
            for each in in_waves(free, self._deferred_messages.line) if self._ordered else [free]:
                wave = self._free(each, outcome, heads) if outcome.refused else each
                refused = len(outcome.refused)
                sent.append(wave)
                await self._sending.send(wave, outcome)
                if len(outcome.refused) > refused:
                    self._decide(wave, outcome, heads, claimed)
                    if self._dead_letter_topic is not None:
                        await self._send_dead_letters(wave, outcome, self._dead_letter_topic)
        except (Interrupted, asyncio.CancelledError):
            for wave in sent[:-1]:
                outcome.confirmed.update(each.position for each in wave if each.position not in outcome.refused)
            raise

    def _free(self, messages: Sequence[StoredMessage], outcome: Outcome, heads: Heads) -> Sequence[StoredMessage]:
        """Those that may go; the others are held."""
        free, held = split(messages, heads, self._deferred_messages.line)
        outcome.held.update(message.position for message in held)
        return free

    def _decide(
        self, wave: Sequence[StoredMessage], outcome: Outcome, heads: Heads, claimed: Mapping[int, Claimed]
    ) -> None:
        """Each refusal becomes a decision, before the next wave: its followers must know whether to wait."""
        out: dict[str, str] = {}
        dropped: list[Refusal] = []
        for message in wave:
            refusal = outcome.refused.get(message.position)
            if refusal is None:
                continue
            route, before = refusal.route, claimed.get(message.position)
            new = route is not None and not self._deferred_messages.is_out(route)
            attempts, waited = (before.attempts, before.waited) if before else (0, 0.0)
            unsure = outcome.is_unsure(message)
            deferral = self._deferred_messages.refused(message, refusal, attempts, waited, unsure=unsure)
            outcome.deferred[message.position] = deferral
            self._deferred_messages.blocked(deferral, heads)
            if deferral.counted:
                self._tell_refused(message, deferral, permanent=refusal.permanent)
            elif deferral.state is State.DROPPED:
                dropped.append(refusal)
            elif route is not None and new:
                out[route] = refusal.reason
        self._tell_routes(out)
        self._tell_dropped(dropped)

    def _tell_routes(self, out: Mapping[str, str]) -> None:
        """A line for each, unless that would be very many."""
        if len(out) <= FEW_ROUTES:
            for route, reason in out.items():
                tell(events.RouteBlocked(*self._where, route=route, reason=reason))
            return
        routes = list(out)
        tell(events.RoutesBlocked(*self._where, routes=len(routes), some=routes[:FEW_ROUTES], reason=out[routes[0]]))

    def _tell_dropped(self, dropped: Sequence[Refusal]) -> None:
        if dropped:
            self.dropped += len(dropped)
            routes = list(dict.fromkeys(each.route or "" for each in dropped))
            number, reason = len(dropped), dropped[0].reason
            tell(events.MessagesDropped(*self._where, messages=number, some=routes[:FEW_ROUTES], reason=reason))

    async def _send_dead_letters(self, wave: Sequence[StoredMessage], outcome: Outcome, topic: str) -> None:
        """Copies of what has died in this wave, before that is recorded: after a crash in between they go twice.

        Who refuses a copy is not asked again, for the message itself is in the log. But a death whose copy was
        interrupted is forgotten: the message goes again, dies again, and then there is another copy.
        """
        died = [
            message
            for message in wave
            if (deferral := outcome.deferred.get(message.position)) and deferral.state is State.DEAD
        ]
        letters = [dead_letter(each, outcome.deferred[each.position], self._where[0], topic) for each in died]
        copies = Outcome()
        try:
            await self._sending.send(letters, copies)
        except (Interrupted, asyncio.CancelledError):
            outcome.confirmed.update(each.position for each in wave if each.position not in outcome.refused)
            for message in died:
                if not copies.is_answered(message):
                    del outcome.deferred[message.position], outcome.refused[message.position]
            raise
        for message in died:
            if refusal := copies.refused.get(message.position):
                tell(events.DeadLetterRefused(*self._where, id=message.id, topic=topic, reason=refusal.reason))

    def _tell_refused(self, message: StoredMessage, deferral: Deferred, *, permanent: bool) -> None:
        self.refused += 1
        if deferral.state is State.DEAD:
            self.died += 1
            tell(
                events.MessageDead(
                    *self._where,
                    id=message.id,
                    position=message.position,
                    attempts=deferral.attempts,
                    reason=deferral.error or "",
                    permanent=permanent,
                )
            )
            return
        tell(
            events.MessageRefused(
                *self._where,
                id=message.id,
                position=message.position,
                attempts=deferral.attempts,
                max_attempts=self._max_attempts,
                reason=deferral.error or "",
                retry_ms=(deferral.due_in or 0) * 1000,
            )
        )
