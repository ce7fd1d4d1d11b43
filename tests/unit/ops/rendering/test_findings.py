"""How findings look: the worst first, fixes in one line, nothing that harms a terminal."""

from __future__ import annotations

from typing import Any

from postroad.admin import Finding, Level
from postroad.ops.rendering.findings import findings_text


def finding(check: str, level: Level, **changed: Any) -> Finding:
    values: dict[str, Any] = {"text": f"{check} was found", "fix": None, "evidence": {}}
    return Finding(check=check, family="f", level=level, link=f"docs/doctor.md#{check}", **values | changed)


def test_the_worst_first_and_what_is_well_as_a_number() -> None:
    text = findings_text(
        [
            finding("fine", Level.OK, evidence={"x": 1}),
            finding("late", Level.WARNING, fix="hurry"),
            finding("a", Level.SKIPPED, text="no right"),
            finding("b", Level.SKIPPED, text="no right"),
            finding("bad", Level.ERROR, fix="mend " * 30),
        ],
        width=80,
        show_all=False,
    )
    assert text.splitlines() == [
        "ERROR    bad: bad was found",
        "         fix: " + "mend " * 30,
        "         see: docs/doctor.md#bad",
        "WARNING  late: late was found",
        "         fix: hurry",
        "         see: docs/doctor.md#late",
        "skipped  a, b: no right",
        "",
        "1 error, 1 warning, 1 ok, 2 skipped",
    ]


def test_all_of_it_with_the_evidence() -> None:
    lines = findings_text([finding("fine", Level.OK, evidence={"x": 0.12345})], width=80, show_all=True).splitlines()
    assert lines == [
        "ok       fine: fine was found",
        "           x = 0.123",
        "",
        "0 errors, 0 warnings, 1 ok, 0 skipped",
    ]


def test_hostile_text_and_passwords() -> None:
    hostile = "\x1b[2J\u202e amqp://me:geheim@host \r\n" + "x" * 200
    text = findings_text(
        [finding("bad", Level.ERROR, text=hostile, fix=hostile, evidence={"v": hostile})], width=40, show_all=True
    )
    assert "geheim" not in text
    assert all(line.isprintable() for line in text.splitlines())
