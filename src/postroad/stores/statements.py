"""The statements that run in the user's own transaction, as plain values. Running them is `connections`' business."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from postroad.schedule import Cancellation
from postroad.stores.queries import named_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Later
    from postroad.stores.queries import Dialect

__all__ = [
    "Placeholders",
    "Question",
    "Rows",
    "Statement",
    "add_rows",
    "add_rows_and_later",
    "cancel_message",
    "first_times",
    "look_at_probe",
    "mark_transaction",
    "named",
    "same_transaction",
    "undo_first_times",
    "with_placeholders",
    "write_probe",
]

Placeholders = Literal["$1", "?", "%s"]
"""How a driver writes its values' places: PostgreSQL's own way, SQLite's, and that of Python's older drivers."""

Rows = list[tuple[Any, ...]]
"""What one statement gives."""

_PLACE = re.compile(r"\$(\d+)|\?")

T = TypeVar("T")


class Statement(NamedTuple):
    """SQL and its values. With `repeated`, the values are rows, and the driver runs the SQL for each of them."""

    sql: str
    values: Sequence[Any]
    repeated: bool = False


class Question(NamedTuple, Generic[T]):
    """Statements that all give rows, and what their rows mean."""

    statements: Sequence[Statement]
    answer: Callable[[Sequence[Rows]], T]
    """Given the rows of each statement."""


# -- writing ---------------------------------------------------------------------------------------------------------


def add_rows(dialect: Dialect, placeholders: Placeholders, schema: str, rows: Sequence[NewRow]) -> Statement:
    """Write these rows to the log, in this order, in one round trip."""
    if dialect == "sqlite":
        sql = _query(dialect, "add", schema, placeholders)
        return Statement(sql, [_in_sqlite(row) for row in rows], repeated=True)
    if len(rows) == 1:
        return Statement(_query(dialect, "add", schema, placeholders), rows[0])
    return Statement(_query(dialect, "add_many", schema, placeholders), _columns(rows))


def add_rows_and_later(
    dialect: Dialect, placeholders: Placeholders, schema: str, rows: Sequence[NewRow], later: Sequence[Later]
) -> Sequence[Statement]:
    """Write these rows to the log, and those for later to `scheduled`: on PostgreSQL in one round trip."""
    sql = _query(dialect, "add_later", schema, placeholders)
    if dialect == "postgresql":
        at_once = [(*row, None, None) for row in rows]
        return [Statement(sql, _columns([*at_once, *((*row, at, after) for row, at, after in later)]))]
    scheduled = Statement(sql, [(*_in_sqlite(row), at, after) for row, at, after in later], repeated=True)
    return [add_rows(dialect, placeholders, schema, rows), scheduled] if rows else [scheduled]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _in_sqlite(row: NewRow) -> tuple[Any, ...]:
    return (str(row.id), *row[1:])


# -- canceling -------------------------------------------------------------------------------------------------------


def cancel_message(dialect: Dialect, placeholders: Placeholders, schema: str, id: UUID) -> Question[Cancellation]:
    """Take a message back, and say whether that was possible."""
    if dialect == "postgresql":
        return Question([Statement(_query(dialect, "cancel", schema, placeholders), (id,))], _told_by_function)
    names = ("cancel_scheduled", "cancel_deferred", "raise_versions", "cancel")
    return Question(
        [Statement(_query(dialect, name, schema, placeholders), (str(id),)) for name in names], _told_by_steps
    )


def _told_by_function(answered: Sequence[Rows]) -> Cancellation:
    [[(word,)]] = answered
    return Cancellation(word)


def _told_by_steps(answered: Sequence[Rows]) -> Cancellation:
    scheduled, _, _, [(in_log, canceled)] = answered
    if canceled or (scheduled and not in_log):
        return Cancellation.CANCELED
    return Cancellation.TOO_LATE if in_log else Cancellation.UNKNOWN


# -- receiving -------------------------------------------------------------------------------------------------------


def first_times(
    dialect: Dialect,
    placeholders: Placeholders,
    schema: str,
    consumer: str,
    messages: Sequence[tuple[str, str]],
    *,
    patience: str,
) -> Statement:
    """Note these ids and types as processed by a consumer, in one round trip; it gives the ids that are new, each
    with what `undo_first_times` knows the transaction by.

    `patience` is how long PostgreSQL waits for another who is about to process one of them; SQLite has one writer.
    """
    on_postgresql = dialect == "postgresql"
    ahead = (patience, consumer) if on_postgresql else (consumer,)
    if len(messages) == 1:
        return named(dialect, placeholders, schema, "first_time", *ahead, *messages[0])
    ids, types = [id for id, _ in messages], [type for _, type in messages]
    rest = (ids, types) if on_postgresql else (json.dumps(messages),)
    return named(dialect, placeholders, schema, "first_times", *ahead, *rest)


def mark_transaction(dialect: Dialect, placeholders: Placeholders, schema: str) -> Sequence[Statement]:
    """What has to be run after `first_times` so that `same_transaction` can be asked: PostgreSQL needs nothing."""
    return [] if dialect == "postgresql" else [named(dialect, placeholders, schema, "mark_transaction")]


def same_transaction(dialect: Dialect, placeholders: Placeholders, schema: str, transaction: Any) -> Question[bool]:
    """Whether this is still the transaction of `first_times`. SQLite raises an error if it is not."""
    if dialect == "postgresql":
        asked = named(dialect, placeholders, schema, "same_transaction", transaction)
        return Question([asked], lambda answered: bool(answered[0]))
    return Question([named(dialect, placeholders, schema, "same_transaction")], lambda _: True)


def undo_first_times(
    dialect: Dialect, placeholders: Placeholders, schema: str, transaction: Any, *, consumer: str, ids: Sequence[str]
) -> Question[bool]:
    """Delete what `first_times` has written in this transaction, if it was committed; False while it is open."""
    given = list(ids) if dialect == "postgresql" else json.dumps(ids)
    asked = named(dialect, placeholders, schema, "undo_first_times", transaction, consumer, given)
    return Question([asked], lambda answered: dialect == "sqlite" or answered[0][0][0] != "in progress")


def write_probe(
    dialect: Dialect, placeholders: Placeholders, schema: str, *, consumer: str, id: str
) -> Question[tuple[Any, Any]]:
    """Write something by which it can be seen whether a transaction is committed. Gives what two statements know the
    transaction by.
    """
    if dialect == "postgresql":
        asked = [named(dialect, placeholders, schema, "write_probe")] * 2
        return Question(asked, lambda answered: (answered[0][0][0], answered[1][0][0]))
    written = named(dialect, placeholders, schema, "write_probe", consumer, id)
    return Question([written, *mark_transaction(dialect, placeholders, schema)], lambda _: (id, id))


def look_at_probe(
    dialect: Dialect, placeholders: Placeholders, schema: str, *, transaction: Any, consumer: str, id: str
) -> Question[bool]:
    """Whether the probe was committed; it is gone afterwards."""
    if dialect == "postgresql":
        asked = named(dialect, placeholders, schema, "look_at_probe", transaction)
        return Question([asked], lambda answered: bool(answered[0][0][0] == "committed"))
    asked = named(dialect, placeholders, schema, "look_at_probe", consumer, id)
    return Question([asked], lambda answered: bool(answered[0]))


# -- the text --------------------------------------------------------------------------------------------------------


def named(dialect: Dialect, placeholders: Placeholders, schema: str, name: str, *values: Any) -> Statement:
    """A named query with its values, for any driver."""
    return Statement(_query(dialect, name, schema, placeholders), values)


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
