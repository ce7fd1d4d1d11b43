"""The statements that run in the user's own transaction, as plain values. Running them is `connections`' business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.stores.queries import named_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import NewRow
    from postroad.stores.queries import Dialect

__all__ = ["Statement", "add_rows"]


class Statement(NamedTuple):
    """SQL and its values. With `repeated`, the values are rows, and the driver runs the SQL for each of them."""

    sql: str
    values: Sequence[Any]
    repeated: bool = False


def add_rows(dialect: Dialect, schema: str, rows: Sequence[NewRow]) -> Statement:
    """Write these rows to the log, in this order, in one round trip."""
    queries = named_queries(dialect, schema)
    if dialect == "sqlite":
        return Statement(queries["add"], [(str(row.id), *row[1:]) for row in rows], repeated=True)
    if len(rows) == 1:
        return Statement(queries["add"], rows[0])
    return Statement(queries["add_many"], [list(column) for column in zip(*rows, strict=True)])
