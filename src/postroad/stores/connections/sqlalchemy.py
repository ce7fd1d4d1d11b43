"""SQLAlchemy 2: its sessions and connections, sync and async. Statements go to the driver unchanged.

A session is flushed before it adds, so that the message comes after the rows that it is about. An async session or
connection runs the functions of its sync counterpart, in SQLAlchemy's `run_sync`.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from postroad.errors import ConnectionClosed, NoTransaction, UnsupportedConnection
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.connections.asyncpg import asyncpg_reported, asyncpg_state
from postroad.stores.connections.errors import is_retryable
from postroad.stores.connections.psycopg import check_psycopg, psycopg_reported, psycopg_state
from postroad.stores.connections.sqlite import check_in_its_thread, check_sqlite3, sqlite_state
from postroad.stores.dialects import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["ASYNC_CONNECTION", "ASYNC_SCOPED_SESSION", "ASYNC_SESSION", "CONNECTION", "SCOPED_SESSION", "SESSION"]

T = TypeVar("T")


class Driver(NamedTuple):
    """The driver below SQLAlchemy."""

    sql_style: SQLStyle
    check: Callable[[Any, Any], object]
    """Raises NoTransaction; given SQLAlchemy's wrapper around the driver's connection, and that connection."""
    state: Callable[[Any], State]
    """See `ConnectionAdapter`; given the driver's connection."""
    reported: Callable[[Any], bool | None] = lambda _: None
    """See `ConnectionAdapter`; given the driver's connection."""


def _sql_style(connection_or_engine: Any) -> SQLStyle:
    return _driver_of(connection_or_engine.dialect).sql_style


def _check_driver(connection: Any) -> None:
    """Refuse a connection in autocommit mode. With AUTOCOMMIT, SQLAlchemy's `begin` starts no transaction."""
    driver = _driver_of(connection.dialect)
    pooled = connection.connection
    driver.check(pooled.dbapi_connection, pooled.driver_connection)


def _driver_of(dialect: Any) -> Driver:
    driver = _DRIVERS.get((dialect.name, dialect.driver))
    if driver is None:
        known = ", ".join(f"{name}+{driver}" for name, driver in _DRIVERS)
        raise UnsupportedConnection(
            f"SQLAlchemy is used with {dialect.name}+{dialect.driver} here; postroad supports {known}"
        )
    return driver


def _check_asyncpg(wrapper: Any, driver: Any) -> None:
    if wrapper.autocommit and not driver.is_in_transaction():
        raise NoTransaction(
            "the SQLAlchemy connection's isolation level is AUTOCOMMIT, so the message would be committed by itself"
        )


def _check_aiosqlite(wrapper: Any, driver: Any) -> None:
    if not driver.in_transaction:
        wrapper.run_async(check_in_its_thread)


_DRIVERS = {
    ("postgresql", "psycopg"): Driver(
        SQLStyle(POSTGRESQL, "%s"), lambda _, driver: check_psycopg(driver), psycopg_state, psycopg_reported
    ),
    ("postgresql", "asyncpg"): Driver(SQLStyle(POSTGRESQL, "$1"), _check_asyncpg, asyncpg_state, asyncpg_reported),
    ("sqlite", "pysqlite"): Driver(SQLStyle(SQLITE, "?"), lambda _, driver: check_sqlite3(driver), sqlite_state),
    ("sqlite", "aiosqlite"): Driver(SQLStyle(SQLITE, "?"), _check_aiosqlite, sqlite_state),
}


def _state(connection: Any) -> State:
    if connection.invalidated:
        return State.LOST
    if connection.closed or not connection.in_transaction():
        return State.ENDED
    return _driver_of(connection.dialect).state(connection.connection.driver_connection)


def _state_of_session(session: Any) -> State:
    if not session.in_transaction():
        return State.ENDED
    if not session.is_active:  # an error in a flush has aborted it
        cause = getattr(session.get_transaction(), "_rollback_exception", None)
        return State.LOST if cause is not None and is_retryable(cause) else State.ABORTED
    try:
        return _state(session.connection())  # without I/O: the transaction that it had has a connection
    except Exception as error:
        return State.LOST if is_retryable(error) else State.ENDED


def _reported(connection: Any) -> bool | None:
    return _driver_of(connection.dialect).reported(connection.connection.driver_connection)


def _reported_to_session(session: Any) -> bool | None:
    return _reported(session.connection())


# -- sync ------------------------------------------------------------------------------------------------------------


def _ready_connection(connection: Any) -> Any:
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy connection is closed")
    if connection.in_transaction():
        _check_driver(connection)
        return connection
    # What SQLAlchemy would do by itself before the INSERT. An application's "begin" listeners run now, and only then
    # is the driver's state right.
    begun = connection.begin()
    try:
        _check_driver(connection)
    except BaseException:
        begun.rollback()
        raise
    return connection


def _ready_session(session: Any) -> Any:
    connection = _connection_of(session)
    _check_driver(connection)
    if not getattr(session, "_flushing", False):  # its events may add, and a flush can't be nested
        session.flush()
    return connection


def _connection_of(session: Any) -> Any:
    try:
        connection = session.connection()
    except Exception as error:
        if (why := _why_not(session, error)) is error:
            raise  # `raise error from error` would hide the driver's message
        raise why from error
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy session's connection is closed")
    return connection


def _why_not(session: Any, error: Exception) -> Exception:
    """The error of postroad for an error of SQLAlchemy that means the same; any other error unchanged."""
    name, words = type(error).__name__, str(error)
    if name == "UnboundExecutionError":
        return UnsupportedConnection(
            "the SQLAlchemy session has no engine of its own, only some for its classes; add to the connection of one: "
            "outbox.add(session.connection(bind_arguments={'mapper': Order}), ...), after session.flush()"
        )
    if name == "InvalidRequestError" and "permanently closed" in words:
        return ConnectionClosed("the SQLAlchemy session is closed")
    if name == "InvalidRequestError" and "Autobegin is disabled" in words and not session.in_transaction():
        return NoTransaction(
            "the SQLAlchemy session is in no transaction and begins none by itself; add inside: with session.begin()"
        )
    if "is closed" in words:
        return ConnectionClosed(f"the SQLAlchemy session's connection can't be used: {words}")
    return error


def _run(connection: Any, statement: Statement) -> None:
    values = statement.values if statement.repeated else tuple(statement.values)
    connection.exec_driver_sql(statement.sql, values)


def _fetch(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    return [_rows(connection.exec_driver_sql(statement.sql, tuple(statement.values))) for statement in statements]


def _execute(connection: Any, sql: str) -> None:
    if _sql_style(connection).dialect.begin_before_savepoint and not _in_transaction(connection):
        connection.exec_driver_sql("begin")
    connection.exec_driver_sql(sql)


def _in_transaction(connection: Any) -> bool:
    return bool(connection.connection.driver_connection.in_transaction)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


_SESSION_BEGIN = "begin=Session.begin, of a sessionmaker Session"
_CONNECTION_BEGIN = "begin=engine.begin"
_NESTED = methodcaller("begin_nested")  # a session forgets what a rollback to its savepoint undoes
CONNECTION = ConnectionAdapter(
    _ready_connection,
    _sql_style,
    _run,
    _fetch,
    _execute,
    _state,
    _CONNECTION_BEGIN,
    reported=_reported,
    savepoint=_NESTED,
)
SESSION = ConnectionAdapter(
    _ready_session,
    _sql_style,
    _run,
    _fetch,
    _execute,
    _state_of_session,
    _SESSION_BEGIN,
    reported=_reported_to_session,
    savepoint=_NESTED,
)
# A scoped session stands for the session of the thread or task that calls it.
SCOPED_SESSION = ConnectionAdapter(
    lambda scoped: _ready_session(scoped()),
    _sql_style,
    _run,
    _fetch,
    _execute,
    lambda scoped: _state_of_session(scoped()),
    _SESSION_BEGIN,
    reported=lambda scoped: _reported_to_session(scoped()),
    savepoint=_NESTED,
)


# -- async -----------------------------------------------------------------------------------------------------------


def _started(connection: Any) -> Any:
    if connection.sync_connection is None:
        raise ConnectionClosed("the SQLAlchemy connection was not started; use: async with engine.connect()")
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy connection is closed")
    return connection


def _session_style(session: Any) -> SQLStyle:
    try:
        return _sql_style(session.get_bind())
    except UnsupportedConnection:
        raise
    except Exception as error:
        if (why := _why_not(session, error)) is error:
            raise  # `raise error from error` would hide the driver's message
        raise why from error


def _within_connection(connection: Any, do: Callable[[Any, Any], T], what: Any) -> T:
    return do(_ready_connection(connection), what)


def _within_session(session: Any, do: Callable[[Any, Any], T], what: Any) -> T:
    return do(_ready_session(session), what)


def _run_async_connection(connection: Any, statement: Statement) -> Any:
    return connection.run_sync(_within_connection, _run, statement)


def _fetch_async_connection(connection: Any, statements: Sequence[Statement]) -> Any:
    return connection.run_sync(_within_connection, _fetch, statements)


def _execute_async_connection(connection: Any, sql: str) -> Any:
    return connection.run_sync(_within_connection, _execute, sql)


def _execute_async_session(session: Any, sql: str) -> Any:
    return session.run_sync(_within_session, _execute, sql)


def _run_async_session(session: Any, statement: Statement) -> Any:
    return session.run_sync(_within_session, _run, statement)


def _fetch_async_session(session: Any, statements: Sequence[Statement]) -> Any:
    return session.run_sync(_within_session, _fetch, statements)


def _fetch_unchecked_connection(connection: Any, statements: Sequence[Statement]) -> Any:
    return connection.run_sync(_fetch, statements)


def _fetch_unchecked_session(session: Any, statements: Sequence[Statement]) -> Any:
    return session.run_sync(_flush_and_fetch, statements)


def _flush_and_fetch(session: Any, statements: Sequence[Statement]) -> list[Rows]:
    connection = _connection_of(session)
    session.flush()
    return _fetch(connection, statements)


ASYNC_CONNECTION = ConnectionAdapter(
    _started,
    _sql_style,
    _run_async_connection,
    _fetch_async_connection,
    _execute_async_connection,
    lambda connection: _state(connection.sync_connection),
    _CONNECTION_BEGIN,
    is_async=True,
    reported=lambda connection: _reported(connection.sync_connection),
    savepoint=_NESTED,
    fetch_unchecked=_fetch_unchecked_connection,
)
ASYNC_SESSION = ConnectionAdapter(
    lambda session: session,
    _session_style,
    _run_async_session,
    _fetch_async_session,
    _execute_async_session,
    lambda session: _state_of_session(session.sync_session),
    _SESSION_BEGIN,
    is_async=True,
    reported=lambda session: _reported_to_session(session.sync_session),
    connect=lambda session: session.connection(),
    savepoint=_NESTED,
    fetch_unchecked=_fetch_unchecked_session,
)
ASYNC_SCOPED_SESSION = ConnectionAdapter(
    lambda scoped: scoped(),
    _session_style,
    _run_async_session,
    _fetch_async_session,
    _execute_async_session,
    lambda scoped: _state_of_session(scoped().sync_session),
    _SESSION_BEGIN,
    is_async=True,
    reported=lambda scoped: _reported_to_session(scoped().sync_session),
    connect=lambda scoped: scoped().connection(),
    savepoint=_NESTED,
    fetch_unchecked=_fetch_unchecked_session,
)
