"""sqlite3 and aiosqlite. Python begins a transaction before an INSERT by itself, except in autocommit mode."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from postroad.errors import ConnectionClosed, NoTransaction
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.dialects import SQLITE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["AIOSQLITE", "SQLITE3", "check_in_its_thread", "check_sqlite3", "sqlite_state"]

_STYLE = SQLStyle(SQLITE, "?")


def check_sqlite3(connection: Any) -> Any:
    """Refuse a connection that is closed, or that would commit the message by itself."""
    try:
        connection.total_changes  # noqa: B018 - asking is the test: it raises on a closed connection
    except Exception as error:
        raise ConnectionClosed(f"the SQLite connection can't be used: {error}") from error
    if connection.in_transaction:
        return connection
    autocommit = getattr(connection, "autocommit", None)
    if autocommit is True or (autocommit is not False and connection.isolation_level is None):
        raise NoTransaction(
            "the SQLite connection is in autocommit mode and in no transaction, so the message would be committed by "
            "itself; execute BEGIN first, or leave isolation_level as it is by default"
        )
    return connection


def _run_sqlite3(connection: Any, statement: Statement) -> None:
    connection.executemany(statement.sql, statement.values)


def _fetch_sqlite3(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    # Closed also after an error: while a traceback keeps an open cursor, a closed connection keeps its locks.
    with closing(connection.cursor()) as cursor:
        cursor.row_factory = None  # tuples, whatever row type the user has set
        return [cursor.execute(statement.sql, statement.values).fetchall() for statement in statements]


def _execute_sqlite3(connection: Any, sql: str) -> None:
    # Python begins no transaction before a SAVEPOINT, and SQLite then commits at its RELEASE.
    if not connection.in_transaction:
        connection.execute(f"begin {connection.isolation_level or ''}")
    connection.execute(sql)


def _check_aiosqlite(connection: Any) -> Any:
    try:
        connection.in_transaction  # noqa: B018 - asking is the test, as above
    except Exception as error:
        raise ConnectionClosed(f"the aiosqlite connection can't be used: {error}") from error
    return connection


# From Python 3.12 on, `autocommit` can be read only in the connection's own thread, and aiosqlite has no call for that.
# So its queue is used directly: check and INSERT are one visit to that thread, as a plain executemany would be.


def _run_aiosqlite(connection: Any, statement: Statement) -> Awaitable[None]:
    within: Awaitable[None] = connection._execute(_check_and_run, connection._conn, statement)  # noqa: SLF001
    return within


def _check_and_run(connection: Any, statement: Statement) -> None:
    _run_sqlite3(check_sqlite3(connection), statement)


def _fetch_aiosqlite(connection: Any, statements: Sequence[Statement]) -> Awaitable[list[Rows]]:
    within: Awaitable[list[Rows]] = connection._execute(_check_and_fetch, connection._conn, statements)  # noqa: SLF001
    return within


def _execute_aiosqlite(connection: Any, sql: str) -> Awaitable[None]:
    within: Awaitable[None] = connection._execute(_check_and_execute, connection._conn, sql)  # noqa: SLF001
    return within


def _check_and_execute(connection: Any, sql: str) -> None:
    _execute_sqlite3(check_sqlite3(connection), sql)


def _check_and_fetch(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    return _fetch_sqlite3(check_sqlite3(connection), statements)


def _fetch_unchecked(connection: Any, statements: Sequence[Statement]) -> Awaitable[list[Rows]]:
    within: Awaitable[list[Rows]] = connection._execute(_fetch_sqlite3, connection._conn, statements)  # noqa: SLF001
    return within


def check_in_its_thread(connection: Any) -> Awaitable[Any]:
    """`check_sqlite3` for an aiosqlite connection, which is a visit to its thread."""
    checked: Awaitable[Any] = connection._execute(check_sqlite3, connection._conn)  # noqa: SLF001
    return checked


def sqlite_state(connection: Any) -> State:
    """Whether it is in a transaction; a savepoint shows whether that is the same one."""
    try:
        return State.OPEN if connection.in_transaction else State.ENDED
    except Exception:  # it was closed
        return State.ENDED


SQLITE3 = ConnectionAdapter(
    check_sqlite3,
    lambda _: _STYLE,
    _run_sqlite3,
    _fetch_sqlite3,
    _execute_sqlite3,
    sqlite_state,
    "@contextmanager def begin(): with closing(sqlite3.connect(path)) as connection, connection: yield connection",
)
AIOSQLITE = ConnectionAdapter(
    _check_aiosqlite,
    lambda _: _STYLE,
    _run_aiosqlite,
    _fetch_aiosqlite,
    _execute_aiosqlite,
    sqlite_state,
    "@asynccontextmanager async def begin(): async with aiosqlite.connect(path) as connection: yield connection; "
    "await connection.commit()",
    is_async=True,
    fetch_unchecked=_fetch_unchecked,
)
