"""ARCHITECTURE.md names every module of src/postroad once. Its layers and pure modules are those of import-linter."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import postroad

ROOT = Path(__file__).parents[2]
SOURCE = Path(postroad.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### `([\w/]+)/`\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (`[^|]+`) \| (.+) \|$", re.MULTILINE)
NAME_SAYS_IT_ALL = ("ops/commands/", "django/management/", "django/migrations/")
"""Folders whose files are named by a rule, which the table of the folder above gives."""


def rows(page: str) -> list[tuple[str, str]]:
    """Each file that the tables of modules name, from src/postroad on, and what they say about it."""
    found = []
    for folder, table in SECTION.findall(page.split("\n## Modules\n")[1]):
        prefix = "" if folder == "src/postroad" else f"{folder}/"
        for names, text in ROW.findall(table):
            found += [(prefix + name, text) for name in re.findall(r"`([^`]+)`", names)]
    return found


def modules() -> list[str]:
    """Every module but those that only describe or export a package, the folders above, and the SQL of a database."""
    python = (str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    sql = {
        f"stores/sql/{path.relative_to(database)}"
        for database in (SOURCE / "stores" / "sql").iterdir()
        for path in database.rglob("*.sql")
    }
    return sorted([*(name for name in python if not name.startswith(NAME_SAYS_IT_ALL)), *NAME_SAYS_IT_ALL, *sql])


def contracts(kind: str) -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == kind]


def test_every_module_has_a_row_and_every_row_a_module() -> None:
    named = [name for name, _ in rows(PAGE)]
    assert sorted(named) == modules(), f"missing or named twice: {set(modules()) ^ set(named)}"


def test_a_row_is_short() -> None:
    assert [(name, len(text)) for name, text in rows(PAGE) if len(text) > 120] == []


def test_what_is_called_pure_is_checked_by_import_linter() -> None:
    """And what import-linter checks is called pure: the list in pyproject.toml and the page have the same modules."""
    pure = next(each for each in contracts("forbidden") if each["name"].startswith("Pure modules"))
    checked = {name.removeprefix("postroad.").replace(".", "/") + ".py" for name in pure["source_modules"]}
    assert {name for name, text in rows(PAGE) if text.endswith(". Pure")} == checked
    claimed = {name for name in modules() if name.endswith(".py") and says_pure((SOURCE / name).read_text())}
    assert claimed - checked == set(), "the header of the module says so"


def says_pure(source: str) -> bool:
    """Whether the header of a module says that it is pure, and not only in part."""
    return re.search(r"\bPure[.:]", ast.get_docstring(ast.parse(source)) or "") is not None


def test_headers_are_read() -> None:
    assert says_pure('"""Does this. Pure: no clock."""')
    assert says_pure('"""Does this. Pure."""\n')
    assert not says_pure('"""Does this. Pure but for the clock."""')
    assert not says_pure('import os\n\n\nclass Rules:\n    """Pure."""\n')


def test_the_layers_are_those_of_import_linter() -> None:
    (contract,) = contracts("layers")
    drawn = PAGE.split("\n## Folders\n")[1].split("```\n")[1].splitlines()
    assert ["__main__", *drawn] == [layer.replace("(", "").replace(")", "") for layer in contract["layers"]]


def test_rows_are_read() -> None:
    relay = "### `relay/`\n\n| module | what |\n| `lane.py` | the loop |\n| `waves.py` `plan.py` | rules. Pure |\n"
    top = "### `src/postroad/`\n\n| `outbox.py` | `add` |\n"
    assert rows(f"# A\n\n## Modules\n\n{relay}\n{top}") == [
        ("relay/lane.py", "the loop"),
        ("relay/waves.py", "rules. Pure"),
        ("relay/plan.py", "rules. Pure"),
        ("outbox.py", "`add`"),
    ]
