"""The pictures in the documents are what their scripts draw now."""

from __future__ import annotations

import re
import runpy
from html import unescape
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def words(svg: str) -> list[str]:
    """What is to be read in it; the drawing around that is up to the version of rich."""
    return [unescape(text).replace("\xa0", " ").strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_top() -> None:
    made = runpy.run_path(str(PICTURES / "make_top.py"))["picture"]()
    kept = (PICTURES / "top.svg").read_text(encoding="utf-8")
    assert words(made) == words(kept), "run docs/pictures/make_top.py"
    assert any(text.startswith("postroad top") for text in words(kept))


def test_diagrams() -> None:
    made = runpy.run_path(str(PICTURES / "make_diagrams.py"))["pictures"]()
    kept = {name: (PICTURES / name).read_text(encoding="utf-8") for name in made}
    assert made == kept, "run docs/pictures/make_diagrams.py"
