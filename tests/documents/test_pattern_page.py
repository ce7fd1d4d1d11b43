"""docs/pattern.md has a row for every requirement, and all that a row names exists: commands, settings, names, tests.

The tests that it names run with all others. The examples that it names have tests of their own, which run them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad.ops.settings import all_settings
from tests.documents.test_cli_reference import commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pattern.md"
REQUIREMENTS = {"A": 10, "B": 8, "C": 5, "D": 12, "E": 9}
NAME = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    number: str
    requirement: str
    uses: str
    shown_by: str


def rows() -> Iterator[Row]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [A-Z]\d", line):
            yield Row(*(cell.strip() for cell in line.strip("|").split("|")))


ROWS = list(rows())
COMMANDS = commands()


def test_every_requirement_has_a_row() -> None:
    expected = [f"{letter}{number}" for letter, last in REQUIREMENTS.items() for number in range(1, last + 1)]
    assert [row.number for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_what_a_row_uses_exists(row: Row) -> None:
    assert row.requirement.endswith(".")
    names = NAME.findall(row.uses)
    assert ", ".join(f"`{name}`" for name in names) == row.uses
    for name in names:
        check_use(name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_what_shows_a_row_exists_and_is_run(row: Row) -> None:
    names = NAME.findall(row.shown_by)
    assert ", ".join(f"`{name}`" for name in names) == row.shown_by
    assert any(name.startswith("tests/") for name in names)
    for name in names:
        if name.startswith("make "):
            check_use(name)
        else:
            file, _, test = name.partition("::")
            assert test in names_of_tests(ROOT / file), name


@pytest.mark.parametrize("example", ["teamcart", "cloudevents", "parcels", "orderflow", "ticketflow"])
def test_an_example_is_run_by_its_test(example: str) -> None:
    assert f"`make {example}`" in PAGE.read_text(encoding="utf-8")
    assert "test_the_one_command" in names_of_tests(ROOT / f"tests/examples/test_{example}.py")


@pytest.mark.parametrize(
    "name", ["postroad fly", "postroad relay --fast", "make coffee", "postroad.Outbox.subtract", "no_setting"]
)
def test_what_does_not_exist_is_noticed(name: str) -> None:
    with pytest.raises((AssertionError, ImportError)):
        check_use(name)


def check_use(name: str) -> None:
    """Fail unless this is a target of make, a command with its options, a name of Python, or a setting."""
    if name.startswith("make "):
        targets = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{name.removeprefix('make ')}:.*## ", targets, re.MULTILINE), name
    elif name.startswith("postroad "):
        command, *options = re.split(r" (?=--)", name)
        assert command in COMMANDS, name
        assert set(options) <= {option for each in COMMANDS[command].params for option in each.opts}, name
    elif name.partition(".")[0] == "postroad":
        assert python_name(name) is not None
    else:
        assert name in all_settings(), name


def python_name(dotted: str) -> Any:
    """What a dotted name stands for. Raises ImportError."""
    module, *names = dotted.split(".")
    found: Any = import_module(module)
    for name in names:
        module = f"{module}.{name}"
        found = getattr(found, name) if hasattr(found, name) else import_module(module)
    return found


@cache
def names_of_tests(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(each.name for each in tree.body if isinstance(each, functions) and each.name.startswith("test_"))
