"""The statements that run in the user's own transaction in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import NotOwner
from postroad.schedule import Cancellation
from postroad.stores.statements import Query, Statement, Statements, columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Later
    from postroad.stores.statements import Arrival, Rows

__all__ = ["PostgreSQLStatements"]


class PostgreSQLStatements(Statements):
    """Many rows go as arrays, one per column, in one statement."""

    def add(self, rows: Sequence[NewRow]) -> Statement:
        return self.named("add", *rows[0]) if len(rows) == 1 else self.named("add_many", *columns(rows))

    def add_later(self, rows: Sequence[NewRow], later: Sequence[Later]) -> Sequence[Statement]:
        at_once = [(*row, None, None) for row in rows]
        return [self.named("add_later", *columns([*at_once, *((*row, at, after) for row, at, after in later)]))]

    def cancel(self, id: UUID) -> Query[Cancellation]:
        return Query([self.named("cancel", id)], _cancellation)

    def first_times(self, consumer: str, messages: Sequence[Arrival], *, timeout: str) -> Query[Rows]:
        if len(messages) == 1:
            return self.rows("first_time", timeout, consumer, *messages[0])
        return self.rows("first_times", timeout, consumer, *(columns(messages) if messages else [[], []]))

    def mark_transaction(self) -> Sequence[Statement]:
        return []

    def same_transaction(self, transaction: Any) -> Query[bool]:
        return Query([self.named("same_transaction", transaction)], lambda found: bool(found[0]))

    def undo_first_times(self, transaction: Any, *, consumer: str, ids: Sequence[str]) -> Query[bool]:
        undo = self.named("undo_first_times", transaction, consumer, list(ids))
        return Query([undo], lambda found: found[0][0][0] != "in progress")

    def write_probe(self, *, consumer: str, id: str) -> Query[tuple[Any, Any]]:
        return Query([self.named("write_probe")] * 2, lambda found: (found[0][0][0], found[1][0][0]))

    def read_probe(self, *, transaction: Any, consumer: str, id: str) -> Query[bool]:
        return Query([self.named("read_probe", transaction)], lambda found: bool(found[0][0][0] == "committed"))

    def attempt_values(
        self, timeout: str, values: Sequence[Any], *, processed: Sequence[Any] = (), rest: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        return (timeout, *values, *rest)  # `processed` is among the values, which have numbers

    def interval(self, seconds: float) -> Any:
        return f"{seconds} seconds"


def _cancellation(found: Sequence[Rows]) -> Cancellation:
    [[(outcome,)]] = found
    if outcome == "not yours":
        raise NotOwner(
            "the message was added by another role of the database; only that role, its members and operators can "
            "cancel it"
        )
    return Cancellation(outcome)
