"""psycopg 3, sync and async: they differ only in that one of them is awaited."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.errors import ConnectionClosed, NoTransaction
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.dialects import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["PSYCOPG", "PSYCOPG_ASYNC", "check_psycopg", "psycopg_reported", "psycopg_state"]

_ACTIVE, _IN_GOOD_ORDER, _IN_ERROR = 1, 2, 3  # libpq's PQTRANS_ACTIVE, PQTRANS_INTRANS and PQTRANS_INERROR
_IN_TRANSACTION = {_IN_GOOD_ORDER, _IN_ERROR}
_MAYBE_IN_GOOD_ORDER = {_IN_GOOD_ORDER, _ACTIVE}
_BROKEN = 2  # what psycopg 2 calls a connection that was lost


def check_psycopg(connection: Any) -> Any:
    """Refuse a connection that is closed, or that would commit the message by itself."""
    if connection.closed:
        raise ConnectionClosed("the psycopg connection is closed")
    if connection.autocommit and not _in_transaction(connection):
        raise NoTransaction(
            "the psycopg connection is in autocommit mode and in no transaction, so the message would be committed by "
            "itself; add it inside: with connection.transaction()"
        )
    return connection


def _in_transaction(connection: Any) -> bool:
    # In a pipeline libpq reports only that a statement is under way, a BEGIN or another. psycopg itself knows how many
    # `connection.transaction()` it is in.
    return connection.pgconn.transaction_status in _IN_TRANSACTION or getattr(connection, "_num_transactions", 0) > 0


def _sql_style(connection: Any) -> SQLStyle:
    return _style_of_cursors(connection.cursor_factory)


@cache
def _style_of_cursors(cursor: type) -> SQLStyle:
    """Users choose the cursors that `execute` makes: raw ones take PostgreSQL's own placeholders."""
    raw = any(base.__name__.endswith("RawCursorMixin") for base in cursor.__mro__)
    return SQLStyle(POSTGRESQL, "$1" if raw else "%s")


def _run(connection: Any, statement: Statement) -> Any:
    return connection.execute(statement.sql, statement.values)


def _fetch(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        return [cursor.execute(statement.sql, statement.values).fetchall() for statement in statements]


async def _fetch_async(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        return [await (await cursor.execute(statement.sql, statement.values)).fetchall() for statement in statements]


def _execute(connection: Any, sql: str) -> Any:
    return connection.execute(sql)


def psycopg_state(connection: Any) -> State:
    """As the server has reported it to libpq; in a pipeline it has not yet. Also for psycopg 2, below Django."""
    if getattr(connection, "broken", connection.closed == _BROKEN):
        return State.LOST
    if connection.closed:
        return State.ENDED
    match connection.info.transaction_status:
        case status if status == _IN_ERROR:
            return State.ABORTED
        case status if status in _MAYBE_IN_GOOD_ORDER:
            return State.OPEN
    return State.ENDED


def psycopg_reported(connection: Any) -> bool | None:
    """See `ConnectionAdapter.reported`. Servers before PostgreSQL 14 don't report it."""
    value = connection.info.parameter_status("default_transaction_read_only")
    return None if value is None else bool(value == "on")


_BEGIN = "begin=pool.connection, or lambda: psycopg.connect(...), without autocommit"
PSYCOPG = ConnectionAdapter(
    check_psycopg, _sql_style, _run, _fetch, _execute, psycopg_state, _BEGIN, reported=psycopg_reported
)
PSYCOPG_ASYNC = ConnectionAdapter(
    check_psycopg,
    _sql_style,
    _run,
    _fetch_async,
    _execute,
    psycopg_state,
    "begin=pool.connection, of an AsyncConnectionPool without autocommit",
    is_async=True,
    reported=psycopg_reported,
)
