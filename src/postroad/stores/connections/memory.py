"""A transaction of the memory store, used like any other connection.

Its statements are no SQL: each names a method of the transaction and its arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.errors import NoTransaction, UnsupportedConnection
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.dialects import Dialect
from postroad.stores.statements import Query, Statement, Statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Cancellation, Later
    from postroad.stores.memory import MemoryTransaction
    from postroad.stores.statements import Arrival, Placeholders, Rows

__all__ = ["MEMORY"]


class _MemoryStatements(Statements):
    """What an application does in its transaction. A consumer's transactions need a database."""

    def add(self, rows: Sequence[NewRow]) -> Statement:
        return Statement("add", (rows, ()))

    def add_later(self, rows: Sequence[NewRow], later: Sequence[Later]) -> Sequence[Statement]:
        return [Statement("add", (rows, later))]

    def cancel(self, id: UUID) -> Query[Cancellation]:
        return Query([Statement("cancel", (id,))], lambda found: found[0][0][0])

    def first_times(self, consumer: str, messages: Sequence[Arrival], *, timeout: str) -> Query[Rows]:
        noted = [Statement("first_time", (consumer, message.identity)) for message in messages]
        return Query(
            noted,
            lambda found: [(message.identity, None) for message, [(new,)] in zip(messages, found, strict=True) if new],
        )

    def mark_transaction(self) -> Sequence[Statement]:
        return []

    def same_transaction(self, transaction: Any) -> Query[bool]:
        raise _no_database()

    def undo_first_times(self, transaction: Any, *, consumer: str, ids: Sequence[str]) -> Query[bool]:
        raise _no_database()

    def write_probe(self, *, consumer: str, id: str) -> Query[tuple[Any, Any]]:
        raise _no_database()

    def read_probe(self, *, transaction: Any, consumer: str, id: str) -> Query[bool]:
        raise _no_database()

    def attempt_values(
        self, timeout: str, values: Sequence[Any], *, processed: Sequence[Any] = (), rest: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        raise _no_database()

    def interval(self, seconds: float) -> Any:
        raise _no_database()


class _MemoryDialect(Dialect):
    """The statements of the memory store."""

    name = "memory"

    def statements(self, schema: str, placeholders: Placeholders) -> Statements:
        return _STATEMENTS


_STATEMENTS: Final = _MemoryStatements({}, "?")
_STYLE: Final = SQLStyle(_MemoryDialect(), "?")


def _no_database() -> UnsupportedConnection:
    return UnsupportedConnection("a transaction of the memory store is no transaction of a database, which this needs")


def _check(transaction: MemoryTransaction) -> MemoryTransaction:
    if not transaction.open:
        raise NoTransaction("this transaction of the memory store has ended; begin another")
    return transaction


def _run(transaction: MemoryTransaction, statement: Statement) -> Any:
    return getattr(transaction, statement.sql)(*statement.values)


def _fetch(transaction: MemoryTransaction, statements: Sequence[Statement]) -> list[Rows]:
    return [[(_run(transaction, statement),)] for statement in statements]


def _execute(transaction: MemoryTransaction, sql: str) -> None:
    if sql.startswith("savepoint"):
        transaction.savepoint()
    elif sql.startswith("rollback"):
        transaction.rollback_to_savepoint()


MEMORY = ConnectionAdapter(
    _check,
    lambda _: _STYLE,
    _run,
    _fetch,
    _execute,
    lambda transaction: State.KEPT if transaction.open else State.ENDED,
    "begin=store.begin",
)
