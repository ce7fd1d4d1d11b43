"""Decides about a wave's refused messages, counts them, and emits their events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.lifecycle import State
from postroad.relay.deferred import waits_of_routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.relay.deferred import BlockedKeys, DeferredMessages
    from postroad.relay.outcome import Outcome
    from postroad.relay.progress import Counts
    from postroad.stores.base import Claimed, Deferred

__all__ = ["FEW_ROUTES", "Refusals"]

FEW_ROUTES: Final = 5
"""When more routes than this are blocked, or unblocked, at once, one event is emitted for all of them."""


class Refusals:
    """The refusals of one lane."""

    def __init__(
        self,
        lane: tuple[str, int],
        deferred: DeferredMessages,
        counts: Counts,
        listeners: Listeners,
        *,
        max_attempts: int | str,
    ) -> None:
        """`lane` is its sink and number."""
        self._lane = lane
        self._deferred = deferred
        self._counts = counts
        self._listeners = listeners
        self._max_attempts = max_attempts
        self.causes: Counter[str] = Counter()
        """How many messages were refused, by cause: refused, permanent, or route."""

    def decide(
        self,
        wave: Sequence[StoredMessage],
        outcome: Outcome,
        blocked_keys: BlockedKeys,
        claimed: Mapping[int, Claimed],
    ) -> None:
        """Turn each refusal into a decision, before the next wave: later messages of its key may have to wait."""
        blocked: dict[str, str] = {}
        dropped: list[Refusal] = []
        waits = waits_of_routes(outcome.refused.values())
        for message in wave:
            refusal = outcome.refused.get(message.position)
            if refusal is None:
                continue
            if refusal.route in waits:
                refusal = refusal._replace(retry_in=waits[refusal.route])
            route, before = refusal.route, claimed.get(message.position)
            self.causes["route" if route is not None else "permanent" if refusal.permanent else "refused"] += 1
            new = route is not None and not self._deferred.is_blocked(route)
            attempts, waited = (before.attempts, before.waited) if before else (0, 0.0)
            unsure = outcome.is_unsure(message)
            deferred = self._deferred.decide(message, refusal, attempts, waited, unsure=unsure)
            outcome.deferred[message.position] = deferred
            self._deferred.block(deferred, blocked_keys)
            if deferred.counted:
                self._count(message, deferred, refusal)
            elif deferred.state is State.DROPPED:
                dropped.append(refusal)
            elif route is not None and new:
                blocked[route] = refusal.reason
        self._emit_blocked(blocked)
        self._emit_dropped(dropped)

    def unblocked(self, routes: Sequence[str]) -> None:
        """Emit that these routes work again: an event for each, unless there are very many."""
        if len(routes) > FEW_ROUTES:
            self._listeners.emit(events.RoutesUnblocked(*self._lane, routes=len(routes), some=routes[:FEW_ROUTES]))
            return
        for route in routes:
            self._listeners.emit(events.RouteUnblocked(*self._lane, route=route))

    def _emit_blocked(self, blocked: Mapping[str, str]) -> None:
        if len(blocked) <= FEW_ROUTES:
            for route, reason in blocked.items():
                self._listeners.emit(events.RouteBlocked(*self._lane, route=route, reason=reason))
            return
        routes = list(blocked)
        reason = blocked[routes[0]]
        self._listeners.emit(
            events.RoutesBlocked(*self._lane, routes=len(routes), some=routes[:FEW_ROUTES], reason=reason)
        )

    def _emit_dropped(self, dropped: Sequence[Refusal]) -> None:
        if dropped:
            self._counts.dropped += len(dropped)
            routes = list(dict.fromkeys(each.route or "" for each in dropped))
            number, reason = len(dropped), dropped[0].reason
            self._listeners.emit(
                events.MessagesDropped(*self._lane, messages=number, some=routes[:FEW_ROUTES], reason=reason)
            )

    def _count(self, message: StoredMessage, deferred: Deferred, refusal: Refusal) -> None:
        """An attempt has failed, and perhaps it was the last."""
        self._counts.refused += 1
        if deferred.state is State.DEAD:
            self._counts.died += 1
            self._listeners.emit(
                events.MessageDead(
                    *self._lane,
                    id=message.id,
                    position=message.position,
                    attempts=deferred.attempts,
                    reason=deferred.error or "",
                    permanent=refusal.permanent,
                ).caused_by(refusal.error)
            )
            return
        self._listeners.emit(
            events.MessageRefused(
                *self._lane,
                id=message.id,
                position=message.position,
                attempts=deferred.attempts,
                max_attempts=self._max_attempts,
                reason=deferred.error or "",
                retry_ms=(deferred.due_in or 0) * 1000,
            ).caused_by(refusal.error)
        )
