"""docs/errors.md lists every error of errors.py, with who must act and the error's own words."""

from __future__ import annotations

import inspect
import re

import postroad
from postroad import errors
from tests.documents.reader import ROOT

PAGE = ROOT / "docs" / "errors.md"
ENTRY = re.compile(r"(?:├──|└──) (\w+) +(.+?): (.+)$", re.MULTILINE)


def table() -> str:
    """The tree of the module, as a table."""
    rows = []
    for name, who, meaning in ENTRY.findall(errors.__doc__ or ""):
        error = getattr(errors, name)
        parent = error.__base__.__name__
        above = "" if parent == "PostroadError" else f" ({parent})"
        inside = "" if name in postroad.__all__ else "; internal, an application does not see it"
        words = inspect.cleandoc(error.__doc__).split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{name}`{above} | {who} | {meaning}{inside}. {words} |")
    return "\n".join(["| error | who acts | what it means |", "|---|---|---|", *rows]) + "\n"


def test_the_page_has_the_table_that_the_code_makes() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"the table should be:\n\n{table()}"


def test_every_error_is_in_it() -> None:
    real = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert {name for name, *_ in ENTRY.findall(errors.__doc__ or "")} == real - {"PostroadError"}
