"""docs/doctor.md has a section for each check that there is, in the same order, with what the check makes sure of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from postroad.brokers.registry import broker_for
from postroad.doctor import all_checks
from postroad.findings import PAGE as LINKED
from postroad.findings import Check, Facts, Level, Limits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / LINKED).read_text(encoding="utf-8")
SECTION = re.compile(r"^### (\S+)\n\n(.+?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
CHECKS = all_checks(brokers=[broker_for("amqp://host"), broker_for("kafka://host")])


def test_every_check_has_its_section() -> None:
    families: dict[str, list[str]] = {}
    for check in CHECKS:
        families.setdefault(check.family, []).append(check.name)
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    documented = {
        family: [name for name, _ in SECTION.findall(text)]
        for family, text in zip(parts[::2], parts[1::2], strict=True)
    }
    assert documented == families


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_section_begins_with_what_the_check_makes_sure_of(check: Check) -> None:
    text = " ".join(dict(SECTION.findall(PAGE))[check.name].split())
    assert text.startswith(check.title.rstrip("."))
    assert len(text) > len(check.title) + 20, "and says more than that"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_without_facts_is_skipped(check: Check) -> None:
    facts = Facts({"schema_name": "postroad"}, dict.fromkeys(check.needs, "not now"))
    (finding,) = check.findings(facts, Limits())
    assert finding.level is Level.SKIPPED


def test_no_two_checks_have_one_name() -> None:
    names = [check.name for check in all_checks()]
    assert len(names) == len(set(names))
