"""What the console serves besides pages: htmx is the published one, and no file asks for anything elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from postroad.console.context import STATIC

HTMX_VERSION = "2.0.11"
HTMX_SHA384 = "2OatzQy1H+Zd/IIrjr1TcuDGqLXeHhbooAyJY1KdQMKnr4LZ22k31GBLdYKHmVjg"
"""Of dist/htmx.min.js in the package htmx.org of this version, from npm."""
TEMPLATES = STATIC.parent / "templates"


def test_htmx_is_the_published_one() -> None:
    source = (STATIC / "htmx.min.js").read_bytes()
    assert base64.b64encode(hashlib.sha384(source).digest()).decode() == HTMX_SHA384
    assert f'version:"{HTMX_VERSION}"'.encode() in source
    note = (STATIC / "htmx.LICENSE.txt").read_text(encoding="utf-8")
    assert HTMX_VERSION in note
    assert "Zero-Clause BSD" in note


def test_htmx_evaluates_nothing_and_stores_nothing() -> None:
    base = (TEMPLATES / "base.html").read_text(encoding="utf-8")
    (config,) = re.findall(r"name=\"htmx-config\" content='([^']+)'", base)
    assert json.loads(config) | {"responseHandling": None} == {
        "allowEval": False,
        "allowScriptTags": False,
        "includeIndicatorStyles": False,
        "historyCacheSize": 0,
        "refreshOnHistoryMiss": True,
        "selfRequestsOnly": True,
        "scrollBehavior": "auto",
        "responseHandling": None,
    }


def test_templates_have_nothing_inline_and_escape_everything() -> None:
    for path in TEMPLATES.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bstyle=|\bon[a-z]+=|hx-on|<style|\|\s*safe\b|javascript:", text), path.name
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path.name


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in [*TEMPLATES.iterdir(), STATIC / "console.css", STATIC / "console.js"]:
        assert not re.search(r"https?://", path.read_text(encoding="utf-8")), path.name
