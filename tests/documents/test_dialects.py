"""Only `stores/` knows which databases there are: everywhere else, a dialect object is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad
from postroad.stores.dialects import DIALECTS

SOURCE = Path(postroad.__file__).parent
NAMES = {name.lower() for dialect in DIALECTS.values() for name in (dialect.name, *dialect.schemes)}
OBJECTS = {name.upper() for name in DIALECTS}

# The files outside stores/ that name a database, and why.
EXCEPTIONS = {
    "doctor/postgresql.py": "the checks of a server judge what only that server has",
    "doctor/postgresql_roles.py": "the same",
    "doctor/postgresql_vacuum.py": "the same",
    "django/databases.py": "DATABASES has other settings for each vendor, and they become a URL there",
    "ops/settings.py": "a password file and sslmode belong to URLs of PostgreSQL, before anything is connected",
}


def named_in(source: str) -> Iterator[str]:
    """The databases that a module names in its code: as a string of their name alone, or as a dialect object."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() in NAMES:
            yield repr(node.value)
        elif isinstance(node, ast.Name) and node.id in OBJECTS:
            yield node.id


MODULES = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "stores" not in path.parts]


@pytest.mark.parametrize("module", MODULES)
def test_no_module_outside_stores_names_a_database(module: str) -> None:
    found = sorted(set(named_in((SOURCE / module).read_text(encoding="utf-8"))))
    assert bool(found) == (module in EXCEPTIONS), f"{module} names {found}"


@pytest.mark.parametrize(
    "code",
    [
        'if style.dialect == "postgresql": pass',
        'if dialect.name in {"sqlite", "x"}: pass',
        'match vendor:\n    case "postgresql": pass',
        "if dialect is SQLITE: pass",
        'settings["sqlite"]',
    ],
)
def test_it_would_be_found(code: str) -> None:
    assert list(named_in(code))


def test_every_exception_is_there() -> None:
    assert set(MODULES) >= set(EXCEPTIONS)
