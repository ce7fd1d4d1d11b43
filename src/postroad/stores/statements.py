"""The statements that run in the user's own transaction, as plain values. Running them is `connections`' business."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from postroad.stores.queries import named_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import NewRow
    from postroad.stores.queries import Dialect

__all__ = ["Placeholders", "Statement", "add_rows", "with_placeholders"]

Placeholders = Literal["$1", "?", "%s"]
"""How a driver writes its values' places: PostgreSQL's own way, SQLite's, and that of Python's older drivers."""

_PLACE = re.compile(r"\$(\d+)|\?")


class Statement(NamedTuple):
    """SQL and its values. With `repeated`, the values are rows, and the driver runs the SQL for each of them."""

    sql: str
    values: Sequence[Any]
    repeated: bool = False


def add_rows(dialect: Dialect, placeholders: Placeholders, schema: str, rows: Sequence[NewRow]) -> Statement:
    """Write these rows to the log, in this order, in one round trip."""
    if dialect == "sqlite":
        sql = _query(dialect, "add", schema, placeholders)
        return Statement(sql, [(str(row.id), *row[1:]) for row in rows], repeated=True)
    if len(rows) == 1:
        return Statement(_query(dialect, "add", schema, placeholders), rows[0])
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Statement(_query(dialect, "add_many", schema, placeholders), columns)


@cache
def _query(dialect: Dialect, name: str, schema: str, placeholders: Placeholders) -> str:
    return with_placeholders(named_queries(dialect, schema)[name], placeholders)


def with_placeholders(sql: str, wanted: Placeholders) -> str:
    """A named query with a driver's own placeholders.

    `%s` and `?` have no numbers, so the query must use each value once, in order. Strings and comments are not looked
    at: named queries that are converted have none with a placeholder in it.
    """
    if wanted != "%s":
        return sql
    numbers = [int(number) for number in _PLACE.findall(sql) if number]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"values without numbers must be used once and in order, not as {numbers}")
    return _PLACE.sub("%s", sql.replace("%", "%%"))
