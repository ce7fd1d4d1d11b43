"""The documentation site is built without a warning and without the network, and every link in it leads somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ["Start", "How to", "Explained", "Reference"]
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
LOADS = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
"""What a browser loads by itself, and the attribute that says from where."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("sphinx") is None:
        if os.environ.get("CI"):
            pytest.fail("sphinx is not installed: pip install --group docs")
        pytest.skip("sphinx is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "cache", "docs", folder / "html"],
        cwd=ROOT, env=os.environ | {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert built.returncode == 0, (
        f"a page that is missing from docs/index.md, or a link that leads nowhere:\n{built.stdout}"
    )
    return folder / "html"


class Page(HTMLParser):
    """The links, the anchors and what is loaded of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := given.get(name)))
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        if (target := given.get(LOADS.get(tag, ""))) is not None:
            self.loaded.append(target)


@cache
def page(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))


def pages(site: Path) -> Iterator[Path]:
    yield from (file for file in site.rglob("*.html") if "_static" not in file.parts)


def test_every_link_leads_to_a_page_and_its_anchor(site: Path) -> None:
    lost = []
    for file in pages(site):
        for link in page(file).links:
            parts = urlsplit(unescape(link))
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            found = target.is_file() and (
                not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in page(target).anchors
            )
            if not found:
                lost.append(f"{file.relative_to(site)}: {link}")
    assert not lost


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert [(file.name, each) for file in pages(site) for each in page(file).loaded if urlsplit(each).netloc] == []


def test_the_pages_are_of_four_kinds() -> None:
    assert re.findall(r"^:caption: (.+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE) == KINDS


def test_the_list_for_language_models_has_every_page(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == KINDS
    listed = re.findall(r"^- \[.+\]\(_sources/(.+)\.txt\): \S.*\.$", text, re.MULTILINE)
    assert sorted(listed) == [name for name in PAGES if name != "index.md"]
    assert all((site / "_sources" / f"{name}.txt").is_file() for name in listed)


def test_the_search_finds_pages(site: Path) -> None:
    assert "glossary" in (site / "searchindex.js").read_text(encoding="utf-8")
