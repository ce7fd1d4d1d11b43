"""A check judges facts; one that is not known makes it skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.findings import Checks, Facts, Level, Limits, NotKnown, Verdict, error, ok, warning


def test_a_check_is_skipped_with_the_reason_if_a_fact_is_not_known() -> None:
    checks = Checks("family")

    @checks.check("name", "there", "missing")
    def judge(facts: Facts, limits: Limits) -> Verdict:
        """What it makes sure of.

        Details.
        """
        raise AssertionError("it must not be asked")

    (check,) = checks.all
    assert (check.name, check.family, check.title) == ("name", "family", "What it makes sure of.")
    (finding,) = check.findings(Facts({"there": 1}, {"missing": "no right"}), Limits())
    assert (finding.level, finding.text, finding.fix) == (Level.SKIPPED, "no right", None)
    assert finding.link == "docs/doctor.md#name"
    assert judge is check.judge


def test_a_check_may_find_several_things() -> None:
    checks = Checks("family")

    @checks.check("name", "rows")
    def judge(facts: Facts, limits: Limits) -> Iterator[Verdict]:
        """Title."""
        for row in facts["rows"]:
            yield error(f"{row} is bad", f"mend {row}", row=row)
        yield warning("late", "hurry")
        yield ok("fine", text="a column of this name", fix="another")

    findings = checks.all[0].findings(Facts({"rows": [1, 2]}), Limits())
    assert [each.level for each in findings] == [Level.ERROR, Level.ERROR, Level.WARNING, Level.OK]
    assert findings[0].evidence == {"row": 1}
    assert (findings[1].fix, findings[3].fix) == ("mend 2", None)


def test_a_fact_that_was_never_asked_for_is_named() -> None:
    with pytest.raises(NotKnown, match="x is not known"):
        Facts()["x"]
    both = Facts({"a": 1}, {"b": "gone"}) | Facts({"c": None})
    assert (both["a"], both["c"], both.why_not("b"), both.why_not("a")) == (1, None, "gone", None)
    assert "c" in both
    assert "b" not in both
