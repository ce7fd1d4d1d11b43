"""docs/security.md: its links lead somewhere, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from postroad.message import LARGEST_PAYLOAD, LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_KEY, LONGEST_NAME

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "security.md", ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
    assert links
    for file, anchor in links:
        target = (page.parent / file).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, (file, anchor)


def test_the_bounds_are_those_of_the_code() -> None:
    page = PAGES[0].read_text(encoding="utf-8")
    assert f"{LARGEST_PAYLOAD_OF_ALL // 2**20} MiB in the database; {LARGEST_PAYLOAD // 2**20} MiB by default" in page
    assert f"{LONGEST_HEADERS // 2**10} KiB, 255, {LONGEST_NAME} and {LONGEST_KEY:,} bytes" in page
