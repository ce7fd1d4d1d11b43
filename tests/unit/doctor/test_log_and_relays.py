"""Judgements about the log and relays; tests/contracts/test_doctor.py has the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.admin import Level
from postroad.config import RelaySettings
from tests.judging import judged

DAY = 86_400.0
SINK: dict[str, Any] = {
    "sink": "s", "destination": "null://", "unserved_seconds": 1.0, "relays": 1, "lanes": 4, "paused_seconds": None,
    "paused_by": None,
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "level"), [(DAY - 1, Level.OK), (DAY, Level.ERROR)])
def test_a_sink_is_forgotten_after_a_day(seconds: float, level: Level) -> None:
    (finding,) = judged("forgotten-sink", sinks=[SINK | {"unserved_seconds": seconds}])
    assert finding.level is level


def test_each_forgotten_sink_is_named() -> None:
    sinks = [SINK | {"sink": name, "unserved_seconds": 2 * DAY} for name in ("a", "$(b)")]
    findings = judged("forgotten-sink", sinks=[*sinks, SINK])
    assert [each.evidence["sink"] for each in findings] == ["a", "$(b)"]
    assert "postroad sink remove '$(b)'" in str(findings[1].fix)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"deferred": True}, "a deferred message keeps it"),
        ({"slowest": None}, "no sink exists yet"),
        ({"slowest_position": 1}, "sink 's' is behind"),
        ({"slowest_position": 10}, "nothing deletes it"),
    ],
)
def test_why_the_log_is_old(row: dict[str, Any], says: str) -> None:
    facts = {"seconds": 11 * DAY, "position": 7, "slowest": "s", "slowest_position": 7, "deferred": False}
    (finding,) = judged("log-age", log_age=[facts | row])
    assert finding.level is Level.WARNING
    assert says in finding.text


def test_a_log_is_old_by_its_retention() -> None:
    row = {"seconds": 10 * DAY, "position": 7, "slowest": "s", "slowest_position": 9, "deferred": False}
    (finding,) = judged("log-age", log_age=[row])
    assert finding.level is Level.OK, "1.5 times 7 days is 10.5"
    (finding,) = judged("log-age", log_age=[row], relay_settings=RelaySettings(retain="1d"))
    assert finding.level is Level.WARNING
    (finding,) = judged("log-age", log_age=[row | {"seconds": 600}], relay_settings=RelaySettings(retain="0s"))
    assert finding.level is Level.OK, "a relay cleans up once a minute"
    (finding,) = judged("log-age", log_age=[])
    assert finding.text == "the log is empty"


@pytest.mark.parametrize(
    ("relays", "lanes", "level"), [(4, 4, Level.OK), (5, 4, Level.WARNING), (3, 1, Level.OK), (0, 4, Level.OK)]
)
def test_relays_that_only_stand_by(relays: int, lanes: int, level: Level) -> None:
    """With one lane that is what is wanted: one works, the others stand by."""
    (finding,) = judged("spare-relays", sinks=[SINK | {"relays": relays, "lanes": lanes}])
    assert finding.level is level


def test_a_lane_that_appears_or_goes_while_doctor_looks_is_not_flapping() -> None:
    samples = ({("s", 0): 5, ("gone", 0): 1}, {("s", 0): 6, ("new", 0): 9})
    (finding,) = judged("flapping-leases", relays=[], epoch_samples=samples)
    assert finding.level is Level.OK
    samples[1]["s", 0] = 7
    (finding,) = judged("flapping-leases", relays=[], epoch_samples=samples)
    assert finding.evidence["taken"] == {"s/0": 2}
