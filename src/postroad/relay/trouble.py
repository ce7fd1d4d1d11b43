"""What a lane knows of its messages in trouble, and what it decides about them. Pure: no I/O, no clock.

- A message may go when no earlier message of its key is in trouble. That is asked when it is about to be published,
  not when its page is read.
- What was decided holds once it is recorded, and not before.
- A refusal counts an attempt, and the policy says when the next one is, or that the message is dead.
- A refusal that names a route counts none: the message waits for the route. One message of the route is tried from
  time to time, and when it is confirmed the others follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from postroad.lifecycle import State
from postroad.relay.breaker import FIRST_PAUSE
from postroad.stores.base import Deferral

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Claim, Claimed, Loaded, Recorded

__all__ = ["Heads", "Trouble", "freed_by", "split"]

Heads = dict[str, int]
"""For each key in trouble, the position of the message that later ones wait for."""


def split(
    messages: Sequence[StoredMessage], heads: Mapping[str, int]
) -> tuple[Sequence[StoredMessage], Sequence[StoredMessage]]:
    """Which of the messages may go, and which must wait for an earlier one of their key."""
    if not heads:
        return messages, ()
    free: list[StoredMessage] = []
    held: list[StoredMessage] = []
    for message in messages:
        position = message.position
        (held if position > heads.get(message.key or "", position) else free).append(message)
    return free, held


def freed_by(deferred: Iterable[Deferral]) -> set[str]:
    """The keys whose messages need not wait any more once this is recorded."""
    return {each.key for each in deferred if each.key is not None and not each.blocks}


class Trouble:
    """Kept for one lane, from what it loaded and what it recorded since."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        on_dead: Literal["release", "hold"] = "release",
        ordered: bool = True,
        longest_pause: float = 5.0,
    ) -> None:
        self._policy = policy
        self._on_dead = on_dead
        self._ordered = ordered
        self._longest_pause = longest_pause
        self.heads: Heads = {}
        self.released: set[str] = set()
        """Routes that work again, and whose messages have not all gone yet."""
        self.due_at: float | None = None
        """When something is due; None when nothing will be."""
        self._probes: set[str] = set()
        """Routes of which a message will be tried in time."""
        self._pauses: dict[str, float] = {}

    def loaded(self, loaded: Loaded, now: float) -> None:
        """Begin with what the database says, and nothing else."""
        self.heads = dict(loaded.heads)
        self.released = set()
        self._probes = set(loaded.routes)
        self._pauses = {}
        self.due_at = None
        self._due_in(loaded.due_in, now)

    def due_in(self, now: float) -> float | None:
        """Seconds until something may be claimed; 0 when it may be now, None when nothing will be."""
        if self.released:
            return 0.0
        return None if self.due_at is None else max(0.0, self.due_at - now)

    @property
    def waits(self) -> bool:
        """Something waits: for its time, for its route, for an earlier message of its key, or for a person."""
        return bool(self.released or self.heads) or self.due_at is not None

    def is_out(self, route: str) -> bool:
        """Messages are known to wait for this route."""
        return route in self._probes or route in self._pauses

    # -- what became of messages -------------------------------------------------------------------------------------

    def refused(self, message: StoredMessage, refusal: Refusal, attempts: int, *, unsure: bool = False) -> Deferral:
        """Decide about a message that was refused, after so many attempts before this one. Unsure: the broker may have
        it all the same.
        """
        return msgspec.structs.replace(self._decided(message, refusal, attempts), unsure=unsure)

    def _decided(self, message: StoredMessage, refusal: Refusal, attempts: int) -> Deferral:
        key = message.key if self._ordered else None
        if key is not None and self.heads.get(key, message.position) > message.position:
            self._ask_anew()
        if refusal.route is not None and not refusal.permanent:
            return self._waits_for_route(message.position, key, refusal.route, refusal.reason, attempts)
        attempts += 1
        again = self._policy.again_in(attempts, refusal)
        error = refusal.reason
        if again is None:
            return Deferral(
                message.position, key, State.DEAD, attempts, None, None, error, self._on_dead == "hold", counted=True
            )
        due_in = again.total_seconds()
        return Deferral(message.position, key, State.RETRYING, attempts, due_in, None, error, counted=True)

    def _waits_for_route(self, position: int, key: str | None, route: str, reason: str, attempts: int) -> Deferral:
        due_in = None
        self.released.discard(route)
        if route not in self._probes:
            self._probes.add(route)
            due_in = self._pauses.get(route, min(FIRST_PAUSE, self._longest_pause))
            self._pauses[route] = min(2 * due_in, self._longest_pause)
        return Deferral(position, key, State.HELD, attempts, due_in, route, reason)

    def _ask_anew(self) -> None:
        """A late message went in front of its key's head, and that may have been the one to ask for a route."""
        self.released |= self._probes
        self._probes.clear()

    def given_back(self, claimed: Claimed, *, due: bool) -> Deferral:
        """Claimed, and not sent, because an earlier one of its key was refused; or, with `due`, left without an answer
        because the relay is stopping.
        """
        message, attempts = claimed.message, claimed.attempts
        key = message.key if self._ordered else None
        if attempts:
            return Deferral(message.position, key, State.RETRYING, attempts, 0.0, claimed.route, unsure=due)
        return Deferral(message.position, key, State.HELD, 0, 0.0 if due else None, claimed.route, unsure=due)

    # -- keeping up with the database --------------------------------------------------------------------------------

    def blocked(self, deferral: Deferral, heads: Heads) -> None:
        """Later messages of its key wait from now on.

        Also when it is dead and they need not wait for it: only after its death is on disk they may go. Otherwise,
        after a crash, it would be tried again, and might arrive behind them.
        """
        if deferral.key is not None:
            heads[deferral.key] = min(deferral.position, heads.get(deferral.key, deferral.position))

    def claimed(self, claim: Claim, now: float) -> None:
        """These are being tried, and nothing else is due before that time."""
        for each in claim.claimed:
            if each.route is not None and each.route not in self.released:
                self._probes.discard(each.route)
        if claim.due_in != 0 and not any(each.route in self.released for each in claim.claimed):
            self.released.clear()  # else those of a route may be among what was left for the next claim
        self.due_at = None
        self._due_in(claim.due_in, now)

    def confirmed(self, claimed: Claimed) -> str | None:
        """The route that is known to work again by this, if it was not known before."""
        route = claimed.route
        if route is None or route in self.released:
            return None
        self.released.add(route)
        self._probes.discard(route)
        self._pauses.pop(route, None)
        return route

    def answered(self, claimed: Iterable[Claimed]) -> None:
        """Who asked for a route may have got an answer about itself: then the next of that route asks."""
        for each in claimed:
            if each.route is not None and each.route not in self._probes:
                self.released.add(each.route)

    def recorded(self, deferred: Iterable[Deferral], freed: Iterable[str], recorded: Recorded, now: float) -> None:
        """What was decided is in the database now."""
        for deferral in deferred:
            self._due_in(deferral.due_in, now)
        for key in freed:
            self.heads.pop(key, None)
        if recorded.heads:
            self.heads.update(recorded.heads)
            self._due_in(0.0, now)

    def _due_in(self, seconds: float | None, now: float) -> None:
        if seconds is not None:
            self.due_at = min(now + seconds, self.due_at if self.due_at is not None else now + seconds)
