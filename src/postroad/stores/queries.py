"""Named queries, read from the .sql files beside this module.

A query begins at `-- name: <name>`; the comment lines below it say what it is for. Values are always bound; the
schema's name is the only thing put into the text, and `checked_schema` has made sure that it is a plain identifier.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from postroad.config import checked_schema

__all__ = ["Dialect", "migration_files", "named_queries", "sql_file"]

Dialect = Literal["postgresql", "sqlite"]

_FILES: Final = ("queries.sql", "leases.sql", "operating.sql")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def named_queries(dialect: Dialect, schema: str) -> dict[str, str]:
    """Every query of a dialect, for one schema."""
    parts = [part for file in _FILES for part in _NAME.split(sql_file(dialect, file, schema))[1:]]
    return {name: _COMMENT.sub("", text).strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def sql_file(dialect: Dialect, name: str, schema: str) -> str:
    """One file's text, for one schema."""
    text = (files("postroad.stores") / "sql" / dialect / name).read_text(encoding="utf-8")
    return text.replace("{schema}", checked_schema(schema))


def migration_files(dialect: Dialect) -> dict[int, str]:
    """The numbered migrations of a dialect, in order: number to file name."""
    names = sorted(
        each.name for each in (files("postroad.stores") / "sql" / dialect).iterdir() if each.name[0].isdigit()
    )
    return {int(name.split("_")[0]): name for name in names}
