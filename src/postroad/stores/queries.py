"""Named queries, read from the .sql files beside this module.

A query begins at `-- name: <name>`; the comment lines below it say what it is for. Values are always bound. What is put
into the text is the schema's name, which `checked_schema` has made sure is a plain identifier, and `_EXPRESSIONS`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from postroad.config import checked_schema
from postroad.message import LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_NAME

__all__ = ["Dialect", "migration_files", "named_queries", "sql_file"]

Dialect = Literal["postgresql", "sqlite"]

_FILES: Final = ("queries.sql", "leases.sql", "admin.sql")
# What a row of the log counts for in a page, which is null if it is too large to be read; and what is fetched of it.
# Characters of headers are counted, not bytes, as `StoredMessage.size` does: a relay that counted less than the server
# would take a page that was cut short for the end of the log. The stored size of headers is asked first, because it is
# known without decompressing them.
_EXPRESSIONS: Final[dict[Dialect, dict[str, str]]] = {
    "postgresql": {
        "{size}": f"case when octet_length(payload) <= {LARGEST_PAYLOAD_OF_ALL} "
        f"and octet_length(content_type) <= {LONGEST_NAME} and pg_column_size(headers) <= {LONGEST_HEADERS} "
        f"and octet_length(headers::text) <= {LONGEST_HEADERS} "
        "then octet_length(payload) + length(headers::text) end",
        "{contents}": "case when size is null then ''::bytea else payload end as payload, "
        "case when size is null then '' else content_type end as content_type, "
        "case when size is null then '' else headers::text end as headers",
    },
    "sqlite": {
        "{size}": f"case when length(payload) <= {LARGEST_PAYLOAD_OF_ALL} "
        f"and length(cast(content_type as blob)) <= {LONGEST_NAME} "
        f"and length(cast(headers as blob)) <= {LONGEST_HEADERS} then length(payload) + length(headers) end",
        "{contents}": "case when size is null then x'' else payload end as payload, "
        "case when size is null then '' else content_type end as content_type, "
        "case when size is null then '' else headers end as headers",
    },
}
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def named_queries(dialect: Dialect, schema: str) -> dict[str, str]:
    """Every query of a dialect, for one schema."""
    parts = [part for file in _FILES for part in _NAME.split(sql_file(dialect, file, schema))[1:]]
    return {name: _query(dialect, text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _query(dialect: Dialect, text: str) -> str:
    query = _COMMENT.sub("", text).strip()
    for name, expression in _EXPRESSIONS[dialect].items():
        query = query.replace(name, expression)
    return query


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
