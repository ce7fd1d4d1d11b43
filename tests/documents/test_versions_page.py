"""docs/versions.md: its table of schema versions is that of the migrations, and what it runs on is what is declared."""

from __future__ import annotations

import re
import tomllib
from itertools import accumulate
from pathlib import Path

import pytest

from postroad import __version__
from postroad.stores.dialects import DIALECTS
from postroad.stores.dialects.base import SQLDialect
from postroad.stores.migrations import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| (\d+) and newer \| .+ \|$", re.MULTILINE)
MIN_CLIENT = re.compile(r"min_client = (\d+)|\(min_client\b[^)]*\)\s*(?:values \(|select )(\d+)")
ROWS = [(int(schema), version, int(oldest)) for schema, version, oldest in ROW.findall(PAGE)]


def test_every_schema_version_has_a_row() -> None:
    assert [schema for schema, *_ in ROWS] == list(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_the_oldest_code_is_the_min_client_of_the_migrations(dialect: SQLDialect) -> None:
    """A migration that names none leaves it as it is."""
    folder = ROOT / "src" / "postroad" / "stores" / "sql" / dialect.name
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("[0-9]*.sql"))]
    assert len(texts) == len(ROWS)
    named = [max([int(a or b) for a, b in MIN_CLIENT.findall(text)], default=0) for text in texts]
    assert list(accumulate(named, max)) == [oldest for *_, oldest in ROWS]


def test_no_row_is_of_a_version_that_is_yet_to_come() -> None:
    parts = [tuple(map(int, version.split("."))) for _, version, _ in ROWS]
    assert parts == sorted(parts)
    assert parts[-1] <= tuple(int(part) for part in re.findall(r"\d+", __version__)[:3])


@pytest.mark.parametrize(
    ("line", "classifier"),
    [
        (r"^\| Python \| 3.11 to 3.14 ", "Programming Language :: Python :: 3."),
        (r"^\| Django \| ", "Framework :: Django :: "),
    ],
)
def test_what_it_runs_on_is_declared(line: str, classifier: str) -> None:
    (row,) = [each for each in PAGE.splitlines() if re.match(line, each)]
    declared = [each.removeprefix(classifier) for each in PROJECT["classifiers"] if each.startswith(classifier)]
    if "Python ::" in classifier:
        assert declared == [str(minor) for minor in range(11, 15)]
        assert PROJECT["requires-python"] == ">=3.11"
    else:
        assert declared == re.findall(r"\d\.\d", row.split("|")[2].partition("(")[0])
        assert PROJECT["optional-dependencies"]["django"] == [f"django>={declared[0]}"]
