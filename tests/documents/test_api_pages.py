"""docs/api has every public name once: those in `__all__` of the modules that the documentation imports from."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter

import pytest

from tests.documents.reader import ROOT, blocks

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (postroad[\w.]*)\.(\w+)$", re.MULTILINE)
DOCUMENTED = [found for page in PAGES for found in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]
OBJECTS = {id(getattr(importlib.import_module(place), name)) for _, place, name in DOCUMENTED}
WHOLE = [
    "postroad", "postroad.admin", "postroad.console", "postroad.testing", "postroad.metrics", "postroad.codecs",
    "postroad.sqlalchemy", "postroad.alembic", "postroad.asgi", "postroad.otel", "postroad.verify", "postroad.brokers",
    "postroad.brokers.base",
]  # fmt: skip
INTERNAL = {"postroad.ops.settings"}
"""Modules that the documentation imports from, although they are no interface: docs/settings.md says so."""


@pytest.mark.parametrize("name", WHOLE)
def test_every_public_name_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    missing = {each for each in module.__all__ if id(getattr(module, each)) not in OBJECTS}
    assert missing - {"__version__"} == set()


def test_no_name_is_documented_twice() -> None:
    assert [each for each, times in Counter((place, name) for _, place, name in DOCUMENTED).items() if times > 1] == []


@pytest.mark.parametrize(("kind", "place", "name"), DOCUMENTED)
def test_what_is_documented_has_a_docstring(kind: str, place: str, name: str) -> None:
    documented = getattr(importlib.import_module(place), name)
    assert inspect.getdoc(documented) or kind == "data"


def test_everything_that_the_documentation_imports_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(text for page in pages for kind, text in blocks(page) if kind == "python")
    for place, names in re.findall(r"^from (postroad[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            assert id(getattr(importlib.import_module(place), name)) in OBJECTS or place in INTERNAL, f"{place}.{name}"
