"""The limits that docs/security.md names are those of the code."""

from __future__ import annotations

from pathlib import Path

from postroad.message import LARGEST_PAYLOAD, LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_KEY, LONGEST_NAME

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_bounds_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"{LARGEST_PAYLOAD_OF_ALL // 2**20} MiB in the database; {LARGEST_PAYLOAD // 2**20} MiB by default" in page
    assert f"{LONGEST_HEADERS // 2**10} KiB, 255, {LONGEST_NAME} and {LONGEST_KEY:,} bytes" in page
