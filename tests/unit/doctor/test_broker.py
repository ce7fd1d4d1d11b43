"""Judgements about any broker."""

from __future__ import annotations

from postroad.admin import Level
from tests.judging import judged

DAY = 86_400.0


def test_a_certificate_that_ends_soon() -> None:
    for days, level in ((22, Level.OK), (20, Level.WARNING), (-1, Level.WARNING)):
        facts = {"verified": True, "until": "Jan 1 2027", "seconds_left": days * DAY}
        (finding,) = judged("broker-certificate", broker_certificate=facts)
        assert finding.level is level


def test_each_route_is_named() -> None:
    rows = [{"sink": "s", "route": route, "messages": 2, "seconds": 5.0, "error": None} for route in ("a", "b")]
    findings = judged("unbound-topics", blocked_routes=rows)
    assert [each.evidence["route"] for each in findings] == ["a", "b"]
    assert all(each.level is Level.ERROR for each in findings)
