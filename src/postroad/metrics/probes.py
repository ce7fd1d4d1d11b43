"""Liveness and readiness of this process, from the stats of its relays and consumers. Pure.

- Live: the event loop answers, and no relay or consumer has ended with an error. It depends on no other system: an
  orchestrator that restarts a relay because the broker is unavailable makes an outage worse.
- Ready: each relay and consumer has reached its database once, and is not being stopped. A standby is ready.
- One that has ended or failed counts until another of its sink or name is made, or the consumer is run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroad.consumer.model import ConsumerStats
    from postroad.relay.stats import RelayStats

__all__ = ["Check", "Health", "live", "ready"]

_SAYS = {
    "starting": "waiting for its database",
    "running": "running",
    "draining": "being stopped",
    "ended": "ended",
    "failed": "ended with an error",
}


class Check(msgspec.Struct, frozen=True):
    """One relay or consumer."""

    subject: str
    ok: bool
    state: str


class Health(msgspec.Struct, frozen=True):
    """The answer of a probe."""

    ok: bool
    checks: tuple[Check, ...]

    def __str__(self) -> str:
        shown = [check for check in self.checks if check.ok == self.ok]
        return "; ".join(f"{check.subject}: {check.state}" for check in shown) or "no relay and no consumer runs"


def live(relays: Iterable[RelayStats], consumers: Iterable[ConsumerStats]) -> Health:
    """Whether the process should be left running."""
    return _health(relays, consumers, ("starting", "running", "draining", "ended"))


def ready(relays: Iterable[RelayStats], consumers: Iterable[ConsumerStats]) -> Health:
    """Whether the process does its work, or stands by."""
    health = _health(relays, consumers, ("running",))
    return health if health.checks else Health(ok=False, checks=())


def _health(relays: Iterable[RelayStats], consumers: Iterable[ConsumerStats], fine: Sequence[str]) -> Health:
    checks = (
        *(Check(f"relay {each.sink}", each.phase in fine, _state(each)) for each in relays),
        *(Check(f"consumer {each.consumer}", each.phase in fine, _SAYS[each.phase]) for each in consumers),
    )
    return Health(all(check.ok for check in checks), checks)


def _state(relay: RelayStats) -> str:
    if relay.phase != "running":
        return _SAYS[relay.phase]
    return f"owns {relay.lanes} {'lane' if relay.lanes == 1 else 'lanes'}" if relay.lanes else "standing by"
