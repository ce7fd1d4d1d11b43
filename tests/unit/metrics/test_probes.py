"""Which process is live, and which is ready."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.consumer.model import ConsumerStats
from postroad.metrics.probes import live, ready
from postroad.relay.stats import Phase, RelayStats


def relay(phase: Phase, **more: Any) -> RelayStats:
    known: dict[str, Any] = {
        "by_lane": {}, "refusal_causes": {}, "lanes_lost": 0, "lanes": 4, "broker_up": True, "listening": True,
        "routes_blocked": 0, "lease_remaining": 10.0,
    }  # fmt: skip
    return RelayStats(sink="default", phase=phase, **known | more)


def consumer(phase: Phase) -> ConsumerStats:
    return ConsumerStats(consumer="stock", phase=phase, handled=0, duplicates=0, failed=0, dead=0, in_flight=0)


@pytest.mark.parametrize(
    ("phase", "is_live", "is_ready"),
    [
        ("starting", True, False),
        ("running", True, True),
        ("draining", True, False),
        ("ended", True, False),
        ("failed", False, False),
    ],
)
def test_by_phase(phase: Phase, *, is_live: bool, is_ready: bool) -> None:
    assert (live([relay(phase)], []).ok, ready([relay(phase)], []).ok) == (is_live, is_ready)
    assert (live([], [consumer(phase)]).ok, ready([], [consumer(phase)]).ok) == (is_live, is_ready)


def test_other_systems_do_not_matter() -> None:
    cut_off = relay("running", broker_up=False, listening=False, lease_remaining=0.0, routes_blocked=7)
    assert live([cut_off], []).ok
    assert ready([cut_off], []).ok


def test_a_standby_is_ready() -> None:
    health = ready([relay("running", lanes=0)], [])
    assert (health.ok, str(health)) == (True, "relay default: standing by")


def test_one_that_is_not_ready_is_named() -> None:
    health = ready([relay("running", lanes=1)], [consumer("starting")])
    assert (health.ok, str(health)) == (False, "consumer stock: waiting for its database")
    assert str(ready([relay("running", lanes=1)], [])) == "relay default: owns 1 lane"


def test_a_process_without_a_relay_is_live_but_not_ready() -> None:
    assert (live([], []).ok, ready([], []).ok) == (True, False)
    assert str(ready([], [])) == "no relay and no consumer runs"
