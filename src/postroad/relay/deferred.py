"""A lane's deferred messages: which messages must wait for them, what is decided about a refused one, and when the
next is due. Pure: no I/O, no clock.

- A message may be published when no earlier message of its key is deferred. That is decided when it is about to be
  published, not when its page is read.
- A decision takes effect once it is recorded in the database, and not before.
- A refusal counts an attempt, and the retry policy says when the next one is, or that the message is dead.
- A refusal that names a route counts no attempt: the route is blocked, and the message is held until it works. One
  message of the route is published from time to time as a probe, and when it is confirmed the others follow. A message
  that has waited longer than `route_timeout` is dead.
- A refusal may say how long to wait: neither the next attempt nor the next probe is before that.
- A refusal because no consumer has subscribed may drop the message instead: that is recorded, and it is not retried.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.backoff import ExponentialBackoff
from postroad.lifecycle import State
from postroad.message import StoredMessage
from postroad.stores.base import PROBES_PER_SECOND, Deferred, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Claim, Claimed, Loaded, Recorded

__all__ = ["BlockedKeys", "DeferredMessages", "split", "unblocked_by", "waits_of_routes"]

LONGEST_WAIT: Final = 7 * 24 * 3600.0
"""Seconds. A destination that asks for more is asked again after this."""
LOCKED_SECONDS: Final = 1.0
"""How soon a lane reloads when an application, canceling messages, had locked rows that would have been due."""
_NEVER: Final = float("inf")

BlockedKeys = dict[str, int]
"""For each ordering key with deferred messages, the position of the one that later messages wait for."""

OrderingKey = Callable[[StoredMessage], str | None]
"""Messages with the same ordering key are published in order: it is the key, or with ordering = "source-key" the key
and the source.
"""


def split(
    messages: Sequence[StoredMessage], blocked_keys: Mapping[str, int], ordering_key: OrderingKey = attrgetter("key")
) -> tuple[Sequence[StoredMessage], Sequence[StoredMessage]]:
    """The messages that may be published, and those that must wait for an earlier message of their key."""
    if not blocked_keys:
        return messages, ()
    free: list[StoredMessage] = []
    held: list[StoredMessage] = []
    for message in messages:
        position, key = message.position, ordering_key(message)
        waits = key is not None and (
            position > blocked_keys.get(key, position) or position > blocked_keys.get(key_of(key), position)
        )
        (held if waits else free).append(message)
    return free, held


def unblocked_by(deferred: Iterable[Deferred]) -> set[str]:
    """The keys whose messages need not wait any more once these decisions are recorded."""
    return {each.key for each in deferred if each.key is not None and not each.blocks}


def waits_of_routes(refusals: Iterable[Refusal]) -> dict[str | None, float]:
    """For each route, the longest that a refusal asks to wait: one message of the route is the probe for all."""
    waits: dict[str | None, float] = {}
    for each in refusals:
        if each.retry_in is not None and each.route is not None:
            waits[each.route] = max(_asked_for(each), waits.get(each.route, 0.0))
    return waits


def _asked_for(refusal: Refusal) -> float:
    """The seconds that the destination asks to wait, whatever it said: none, if that is no number or negative."""
    asked = refusal.retry_in
    return min(asked, LONGEST_WAIT) if asked is not None and asked > 0 else 0.0


class DeferredMessages:
    """What a lane knows of its deferred messages, from what it loaded and what it recorded since."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        on_dead: Literal["release", "hold"] = "release",
        ordering_key: OrderingKey = attrgetter("key"),
        ordered: bool = True,
        longest_pause: float = 5.0,
        drops_unroutable: bool = False,
        route_timeout: float | None = None,
        dead_letter_sink: str | None = None,
    ) -> None:
        """`longest_pause` is how many seconds are between two probes of a blocked route at most."""
        self._dead_letter_sink = dead_letter_sink
        self._policy = policy
        self._on_dead = on_dead
        self.ordering_key = ordering_key
        self.ordered = ordered
        self._probe_backoff = ExponentialBackoff(longest_pause)
        self._drops_unroutable = drops_unroutable
        self._route_timeout = float("inf") if route_timeout is None else route_timeout
        self.blocked_keys: BlockedKeys = {}
        self.unblocked_routes: set[str] = set()
        """Routes that work again, and whose messages have not all been published yet."""
        self.due_at = _NEVER
        """When a message may be claimed, or the lane must reload; with `unblocked_routes`, that is now."""
        self._probed_routes: set[str] = set()
        """Blocked routes that have a message with a time to be published as a probe."""
        self._failed_probes: dict[str, int] = {}
        self._reload_at = _NEVER
        """When to load again what is locked now."""

    def loaded(self, loaded: Loaded, now: float) -> None:
        """Begin with what the database has, and nothing else."""
        self.blocked_keys = loaded.blocked_keys  # not a copy: there may be very many
        self.unblocked_routes = set()
        self._probed_routes = set(loaded.routes)
        self._failed_probes = {}
        self.due_at = self._reload_at = _NEVER
        self._set_due(loaded.due_in, now)
        self._set_locked(loaded.locked, now)

    # -- when --------------------------------------------------------------------------------------------------------

    def must_reload(self, now: float) -> bool:
        """Whether messages were locked when they would have been due, and it is time to load them again."""
        return self._reload_at <= now

    def due_in(self, now: float) -> float | None:
        """Seconds until a message may be claimed, or the lane must reload; None when neither will be."""
        if self.unblocked_routes:
            return 0.0
        return None if self.due_at == _NEVER else max(0.0, self.due_at - now)

    @property
    def any_left(self) -> bool:
        """Whether a message waits: for its next attempt, its route, an earlier message of its key, or an operator."""
        return bool(self.unblocked_routes or self.blocked_keys) or self.due_at < _NEVER

    @property
    def blocked_routes(self) -> frozenset[str]:
        """The routes that messages wait for."""
        return frozenset(self._probed_routes)

    def is_blocked(self, route: str) -> bool:
        """Whether messages are known to wait for this route."""
        return route in self._probed_routes or route in self._failed_probes

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide(
        self, message: StoredMessage, refusal: Refusal, attempts: int, waited: float = 0.0, *, unsure: bool = False
    ) -> Deferred:
        """Decide about a refused message, which has failed `attempts` times before this and was first deferred
        `waited` seconds ago. `unsure`: the broker may have the message although it refuses it now.
        """
        return msgspec.structs.replace(self._decision(message, refusal, attempts, waited), unsure=unsure)

    def _decision(self, message: StoredMessage, refusal: Refusal, attempts: int, waited: float) -> Deferred:
        key = self.ordering_key(message) if self.ordered else None
        if key is not None and self.blocked_keys.get(key, message.position) > message.position:
            self._probe_all()
        if refusal.unroutable and self._drops_unroutable:
            return Deferred(
                message.position, key, State.DROPPED, attempts, None, refusal.route, refusal.reason, blocks=False
            )
        error = refusal.reason
        if refusal.route is not None and not refusal.permanent and waited >= self._route_timeout:
            error += f"; it has waited {waited:,.0f} s, and route_timeout is {self._route_timeout:,g} s"
            return self._dead(message.position, key, attempts + 1, error)
        if refusal.route is not None and not refusal.permanent:
            return self._held(message.position, key, refusal.route, refusal, attempts)
        attempts += 1
        retry_in = self._policy.retry_in(attempts, refusal)
        if retry_in is None:
            return self._dead(message.position, key, attempts, error)
        due_in = max(retry_in.total_seconds(), _asked_for(refusal))
        return Deferred(message.position, key, State.RETRYING, attempts, due_in, None, error, counted=True)

    def _dead(self, position: int, key: str | None, attempts: int, error: str) -> Deferred:
        return Deferred(
            position, key, State.DEAD, attempts, None, None, error, self._on_dead == "hold", counted=True,
            copy_to=self._dead_letter_sink,
        )  # fmt: skip

    def _held(self, position: int, key: str | None, route: str, refusal: Refusal, attempts: int) -> Deferred:
        """The message waits for its route; it is the next probe if the route has none."""
        due_in = None
        self.unblocked_routes.discard(route)
        if route not in self._probed_routes:
            self._probed_routes.add(route)
            self._failed_probes[route] = self._failed_probes.get(route, 0) + 1
            pause = self._probe_backoff.after(self._failed_probes[route])
            # Whole seconds, so that those that are due in one second are published in one page.
            due_in = max(pause, float(len(self._probed_routes) // PROBES_PER_SECOND), _asked_for(refusal))
        return Deferred(position, key, State.HELD, attempts, due_in, route, refusal.reason)

    def _probe_all(self) -> None:
        """A late message took the place of its key's first deferred one, which may have been a route's probe."""
        self.unblocked_routes |= self._probed_routes
        self._probed_routes.clear()

    def put_back(self, claimed: Claimed, *, due: bool) -> Deferred:
        """A claimed message that was not published, because an earlier one of its key was refused; or, with `due`,
        that got no answer because the relay is stopping.
        """
        message, attempts = claimed.message, claimed.attempts
        key = self.ordering_key(message) if self.ordered else None
        if attempts:
            return Deferred(message.position, key, State.RETRYING, attempts, 0.0, claimed.route, unsure=due)
        return Deferred(message.position, key, State.HELD, 0, 0.0 if due else None, claimed.route, unsure=due)

    # -- keeping up with the database --------------------------------------------------------------------------------

    def block(self, deferred: Deferred, blocked_keys: BlockedKeys) -> None:
        """Let later messages of its key wait from now on.

        Also when it is dead and they need not wait for it: they may go only after its death is recorded. Otherwise,
        after a crash, it would be retried, and might arrive behind them.
        """
        if deferred.key is not None:
            blocked_keys[deferred.key] = min(deferred.position, blocked_keys.get(deferred.key, deferred.position))

    def claimed(self, claim: Claim, now: float) -> None:
        """These messages are being retried, and no other is due before `claim.due_in`."""
        for each in claim.claimed:
            if each.route is not None and each.route not in self.unblocked_routes:
                self._probed_routes.discard(each.route)
        if claim.due_in != 0 and not any(each.route in self.unblocked_routes for each in claim.claimed):
            for route in self.unblocked_routes - self._probed_routes:
                self._failed_probes.pop(route, None)  # no message waits for it any more
            self.unblocked_routes.clear()  # else messages of a route may be left for the next claim
        self.due_at = self._reload_at
        self._set_due(claim.due_in, now)
        self._set_locked(claim.locked, now)

    def confirmed(self, claimed: Claimed) -> str | None:
        """The route that this message shows to work again, if that was not known before."""
        route = claimed.route
        if route is None or route in self.unblocked_routes:
            return None
        self.unblocked_routes.add(route)
        self._probed_routes.discard(route)
        self._failed_probes.pop(route, None)
        return route

    def answered(self, claimed: Iterable[Claimed]) -> None:
        """A probe may have been refused for a reason of its own: then the route's next message is the probe."""
        for each in claimed:
            if each.route is not None and each.route not in self._probed_routes:
                self.unblocked_routes.add(each.route)

    def recorded(self, deferred: Iterable[Deferred], freed: Iterable[str], recorded: Recorded, now: float) -> None:
        """These decisions are in the database now."""
        for each in deferred:
            self._set_due(each.due_in, now)
        for key in freed:
            self.blocked_keys.pop(key, None)
        if recorded.blocked_keys:
            self.blocked_keys.update(recorded.blocked_keys)
            self._set_due(0.0, now)
        self._set_locked(recorded.locked, now)

    def _set_due(self, seconds: float | None, now: float) -> None:
        if seconds is not None:
            self.due_at = min(self.due_at, now + seconds)

    def _set_locked(self, locked: bool, now: float) -> None:
        if locked:
            self._reload_at = min(self._reload_at, now + LOCKED_SECONDS)
            self._set_due(LOCKED_SECONDS, now)
