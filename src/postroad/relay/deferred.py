"""What a lane knows of its messages in trouble, and what it decides about them. Pure: no I/O, no clock.

- A message may go when no earlier message of its key is in trouble. That is asked when it is about to be published,
  not when its page is read.
- What was decided holds once it is recorded, and not before.
- A refusal counts an attempt, and the policy says when the next one is, or that the message is dead.
- A refusal that names a route counts none: the message waits for the route. One message of the route is tried from
  time to time, and when it is confirmed the others follow. One that has waited too long is dead.
- A refusal because no consumer has subscribed may drop the message instead: that is recorded, and it is
  never tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.lifecycle import State
from postroad.message import StoredMessage
from postroad.relay.breaker import FIRST_PAUSE
from postroad.stores.base import PROBES_PER_SECOND, Deferred, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Claim, Claimed, Loaded, Recorded

__all__ = ["DeferredMessages", "Heads", "freed_by", "split"]

LOCKED_SECONDS: Final = 1.0
"""How soon a lane loads again when an application was canceling what would have been due."""

Heads = dict[str, int]
"""For each key (or line) in trouble, the position of the message that later ones wait for."""

Line = Callable[[StoredMessage], str | None]
"""What a message is kept in order with: its key, or its key and source."""


def split(
    messages: Sequence[StoredMessage], heads: Mapping[str, int], line: Line = attrgetter("key")
) -> tuple[Sequence[StoredMessage], Sequence[StoredMessage]]:
    """Which of the messages may go, and which must wait for an earlier one of their key."""
    if not heads:
        return messages, ()
    free: list[StoredMessage] = []
    held: list[StoredMessage] = []
    for message in messages:
        position, key = message.position, line(message)
        waits = key is not None and (position > heads.get(key, position) or position > heads.get(key_of(key), position))
        (held if waits else free).append(message)
    return free, held


def freed_by(deferred: Iterable[Deferred]) -> set[str]:
    """The keys whose messages need not wait any more once this is recorded."""
    return {each.key for each in deferred if each.key is not None and not each.blocks}


class DeferredMessages:
    """Kept for one lane, from what it loaded and what it recorded since."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        on_dead: Literal["release", "hold"] = "release",
        line: Line = attrgetter("key"),
        ordered: bool = True,
        longest_pause: float = 5.0,
        drops_unroutable: bool = False,
        route_timeout: float | None = None,
    ) -> None:
        self._policy = policy
        self._on_dead = on_dead
        self.line = line
        self._ordered = ordered
        self._longest_pause = longest_pause
        self._drops_unroutable = drops_unroutable
        self._route_timeout = float("inf") if route_timeout is None else route_timeout
        self.heads: Heads = {}
        self.released: set[str] = set()
        """Routes that work again, and whose messages have not all gone yet."""
        self.due_at: float | None = None
        """When something is due; None when nothing will be."""
        self._probes: set[str] = set()
        """Routes of which a message will be tried in time."""
        self._pauses: dict[str, float] = {}
        self._load_at: float | None = None
        """When to load again what is locked now."""

    def loaded(self, loaded: Loaded, now: float) -> None:
        """Begin with what the database says, and nothing else."""
        self.heads = dict(loaded.heads)
        self.released = set()
        self._probes = set(loaded.routes)
        self._pauses = {}
        self.due_at = None
        self._load_at = None
        self._due_in(loaded.due_in, now)
        self._is_locked(loaded.locked, now)

    def due_in(self, now: float) -> float | None:
        """Seconds until something may be claimed; 0 when it may be now, None when nothing will be."""
        if self.released:
            return 0.0
        return None if self.due_at is None else max(0.0, self.due_at - now)

    def looks_in(self, now: float) -> float | None:
        """Seconds until something may be claimed, or is to be loaded again; None when neither will be."""
        times = [max(0.0, at - now) for at in (self.due_at, self._load_at) if at is not None]
        return 0.0 if self.released else min(times, default=None)

    def load_again(self, now: float) -> bool:
        """Some messages were locked when they would have been due, and it is time to see what became of them."""
        return self._load_at is not None and self._load_at <= now

    def _is_locked(self, locked: bool, now: float) -> None:
        if locked and self._load_at is None:
            self._load_at = now + LOCKED_SECONDS

    @property
    def waits(self) -> bool:
        """Something waits: for its time, for its route, for an earlier message of its key, or for a person."""
        return bool(self.released or self.heads) or self.due_at is not None

    @property
    def routes(self) -> frozenset[str]:
        """The routes that messages wait for."""
        return frozenset(self._probes)

    def is_out(self, route: str) -> bool:
        """Messages are known to wait for this route."""
        return route in self._probes or route in self._pauses

    # -- what became of messages -------------------------------------------------------------------------------------

    def refused(
        self, message: StoredMessage, refusal: Refusal, attempts: int, waited: float = 0.0, *, unsure: bool = False
    ) -> Deferred:
        """Decide about a message that was refused, after so many attempts before this one, and after it has waited so
        many seconds since it was first deferred. Unsure: the broker may have it all the same.
        """
        return msgspec.structs.replace(self._decided(message, refusal, attempts, waited), unsure=unsure)

    def _decided(self, message: StoredMessage, refusal: Refusal, attempts: int, waited: float) -> Deferred:
        key = self.line(message) if self._ordered else None
        if key is not None and self.heads.get(key, message.position) > message.position:
            self._ask_anew()
        if refusal.unroutable and self._drops_unroutable:
            return Deferred(
                message.position, key, State.DROPPED, attempts, None, refusal.route, refusal.reason, blocks=False
            )
        error = refusal.reason
        if refusal.route is not None and not refusal.permanent and waited >= self._route_timeout:
            error += f"; it has waited {waited:,.0f} s, and route_timeout is {self._route_timeout:,g} s"
            return self._dead(message.position, key, attempts + 1, error)
        if refusal.route is not None and not refusal.permanent:
            return self._waits_for_route(message.position, key, refusal.route, refusal.reason, attempts)
        attempts += 1
        again = self._policy.again_in(attempts, refusal)
        if again is None:
            return self._dead(message.position, key, attempts, error)
        due_in = again.total_seconds()
        return Deferred(message.position, key, State.RETRYING, attempts, due_in, None, error, counted=True)

    def _dead(self, position: int, key: str | None, attempts: int, error: str) -> Deferred:
        return Deferred(position, key, State.DEAD, attempts, None, None, error, self._on_dead == "hold", counted=True)

    def _waits_for_route(self, position: int, key: str | None, route: str, reason: str, attempts: int) -> Deferred:
        due_in = None
        self.released.discard(route)
        if route not in self._probes:
            self._probes.add(route)
            pause = self._pauses.get(route, min(FIRST_PAUSE, self._longest_pause))
            self._pauses[route] = min(2 * pause, self._longest_pause)
            # Whole seconds, so that those that are due in one second go in one round.
            due_in = max(pause, float(len(self._probes) // PROBES_PER_SECOND))
        return Deferred(position, key, State.HELD, attempts, due_in, route, reason)

    def _ask_anew(self) -> None:
        """A late message went in front of its key's head, and that may have been the one to ask for a route."""
        self.released |= self._probes
        self._probes.clear()

    def given_back(self, claimed: Claimed, *, due: bool) -> Deferred:
        """Claimed, and not sent, because an earlier one of its key was refused; or, with `due`, left without an answer
        because the relay is stopping.
        """
        message, attempts = claimed.message, claimed.attempts
        key = self.line(message) if self._ordered else None
        if attempts:
            return Deferred(message.position, key, State.RETRYING, attempts, 0.0, claimed.route, unsure=due)
        return Deferred(message.position, key, State.HELD, 0, 0.0 if due else None, claimed.route, unsure=due)

    # -- keeping up with the database --------------------------------------------------------------------------------

    def blocked(self, deferral: Deferred, heads: Heads) -> None:
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
            for route in self.released - self._probes:
                self._pauses.pop(route, None)  # no message waits for it any more
            self.released.clear()  # else those of a route may be among what was left for the next claim
        self.due_at = None
        self._due_in(claim.due_in, now)
        self._is_locked(claim.locked, now)

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

    def recorded(self, deferred: Iterable[Deferred], freed: Iterable[str], recorded: Recorded, now: float) -> None:
        """What was decided is in the database now."""
        for deferral in deferred:
            self._due_in(deferral.due_in, now)
        for key in freed:
            self.heads.pop(key, None)
        if recorded.heads:
            self.heads.update(recorded.heads)
            self._due_in(0.0, now)
        self._is_locked(recorded.locked, now)

    def _due_in(self, seconds: float | None, now: float) -> None:
        if seconds is not None:
            self.due_at = min(now + seconds, self.due_at if self.due_at is not None else now + seconds)
