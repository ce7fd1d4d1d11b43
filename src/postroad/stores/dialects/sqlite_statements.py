"""The statements that run in the user's own transaction in SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from postroad.schedule import Cancellation
from postroad.stores.statements import Query, Statement, Statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Later
    from postroad.stores.statements import Arrival, Rows

__all__ = ["SQLiteStatements"]

_STEPS_OF_CANCEL = ("cancel_scheduled", "cancel_deferred", "raise_versions", "cancel")


class SQLiteStatements(Statements):
    """UUIDs go as texts, lists as JSON, and many rows as many runs of one statement."""

    def add(self, rows: Sequence[NewRow]) -> Statement:
        return Statement(self.text("add"), [_values(row) for row in rows], repeated=True)

    def add_later(self, rows: Sequence[NewRow], later: Sequence[Later]) -> Sequence[Statement]:
        scheduled = [(*_values(row), at, after) for row, at, after in later]
        statement = Statement(self.text("add_later"), scheduled, repeated=True)
        return [self.add(rows), statement] if rows else [statement]

    def cancel(self, id: UUID) -> Query[Cancellation]:
        return Query([self.named(name, str(id)) for name in _STEPS_OF_CANCEL], _cancellation)

    def first_times(self, consumer: str, messages: Sequence[Arrival], *, timeout: str) -> Query[Rows]:
        if len(messages) == 1:
            return self.rows("first_time", consumer, *messages[0])
        return self.rows("first_times", consumer, json.dumps(messages))

    def mark_transaction(self) -> Sequence[Statement]:
        return [self.named("mark_transaction")]

    def same_transaction(self, transaction: Any) -> Query[bool]:
        return Query([self.named("same_transaction"), *self.mark_transaction()], lambda _: True)

    def undo_first_times(self, transaction: Any, *, consumer: str, ids: Sequence[str]) -> Query[bool]:
        return Query([self.named("undo_first_times", transaction, consumer, json.dumps(ids))], lambda _: True)

    def write_probe(self, *, consumer: str, id: str) -> Query[tuple[Any, Any]]:
        return Query([self.named("write_probe", consumer, id), *self.mark_transaction()], lambda _: (id, id))

    def read_probe(self, *, transaction: Any, consumer: str, id: str) -> Query[bool]:
        return Query([self.named("read_probe", consumer, id)], lambda found: bool(found[0]))

    def attempt_values(
        self, timeout: str, values: Sequence[Any], *, processed: Sequence[Any] = (), rest: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        return (*values, *processed, *rest)  # placeholders have no numbers, so a value that is used twice goes twice

    def interval(self, seconds: float) -> Any:
        return seconds * 1e6


def _values(row: NewRow) -> tuple[Any, ...]:
    return (str(row.id), *row[1:])


def _cancellation(found: Sequence[Rows]) -> Cancellation:
    scheduled, _, _, [(in_log, canceled)] = found
    if canceled or (scheduled and not in_log):
        return Cancellation.CANCELED
    return Cancellation.TOO_LATE if in_log else Cancellation.UNKNOWN
