"""Every relative link in the documentation leads to a file that exists, and its anchor to a heading of that file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
NOT_IN_GIT = ("benchmarks/results", "benchmarks/.venv")
WITH_PLACEHOLDERS = {"CONTRIBUTING.md"}  # NAME.md, NAME.py
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for file, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(r"`((?:benchmarks|deploy|docs|examples|src|tests)/[\w./-]+)`", text):
        assert (ROOT / path).exists() or path.startswith(NOT_IN_GIT) or page.name in WITH_PLACEHOLDERS, path
