"""SQLAlchemy 2: its sessions and connections, sync and async. The statement goes to the driver as it is.

A session is flushed before it adds, so that the message's position comes after the rows that it tells of; what an async
object does happens in its sync one, inside SQLAlchemy's own `run_sync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from postroad.errors import ConnectionClosed, NoTransaction, UnknownConnection
from postroad.stores.connections.asyncpg import can_asyncpg_commit
from postroad.stores.connections.hand import Hand, Tongue
from postroad.stores.connections.psycopg import can_psycopg_commit, check_psycopg
from postroad.stores.connections.sqlite import check_in_its_thread, check_sqlite3, is_in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["ASYNC_CONNECTION", "ASYNC_SCOPED_SESSION", "ASYNC_SESSION", "CONNECTION", "SCOPED_SESSION", "SESSION"]

T = TypeVar("T")


class Driver(NamedTuple):
    """What is below SQLAlchemy."""

    tongue: Tongue
    check: Callable[[Any, Any], object]
    """Raises NoTransaction; given SQLAlchemy's wrapper around the driver's connection, and that connection."""
    can_commit: Callable[[Any], bool | None]
    """See `Hand`; given the driver's connection."""


def _tongue(of_a_dialect: Any) -> Tongue:
    return _driver_of(of_a_dialect.dialect).tongue


def _check_driver(connection: Any) -> None:
    """Refuse what commits by itself. SQLAlchemy's own `begin` changes nothing about that in AUTOCOMMIT."""
    driver = _driver_of(connection.dialect)
    pooled = connection.connection
    driver.check(pooled.dbapi_connection, pooled.driver_connection)


def _driver_of(dialect: Any) -> Driver:
    driver = _DRIVERS.get((dialect.name, dialect.driver))
    if driver is None:
        known = ", ".join(f"{name}+{driver}" for name, driver in _DRIVERS)
        raise UnknownConnection(
            f"SQLAlchemy is used with {dialect.name}+{dialect.driver} here, and postroad knows it with {known}"
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
        Tongue("postgresql", "%s"), lambda _, driver: check_psycopg(driver), can_psycopg_commit
    ),
    ("postgresql", "asyncpg"): Driver(Tongue("postgresql", "$1"), _check_asyncpg, can_asyncpg_commit),
    ("sqlite", "pysqlite"): Driver(Tongue("sqlite", "?"), lambda _, driver: check_sqlite3(driver), is_in_transaction),
    ("sqlite", "aiosqlite"): Driver(Tongue("sqlite", "?"), _check_aiosqlite, is_in_transaction),
}


def _can_commit(connection: Any) -> bool | None:
    if connection.closed or connection.invalidated or not connection.in_transaction():
        return False
    return _driver_of(connection.dialect).can_commit(connection.connection.driver_connection)


def _can_session_commit(session: Any) -> bool | None:
    return _can_commit(session.connection()) if session.in_transaction() else False


# -- sync ------------------------------------------------------------------------------------------------------------


def _ready_connection(connection: Any) -> Any:
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy connection is closed")
    if connection.in_transaction():
        _check_driver(connection)
        return connection
    # What SQLAlchemy would do by itself before the INSERT. An application's "begin" listeners run now, and only then
    # does the driver's state tell the truth.
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
    if not getattr(session, "_flushing", False):  # inside a flush, as in its events, what is to come first came first
        session.flush()
    return connection


def _connection_of(session: Any) -> Any:
    try:
        connection = session.connection()
    except Exception as error:
        raise _why_not(session, error) from error
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy session's connection is closed")
    return connection


def _why_not(session: Any, error: Exception) -> Exception:
    """SQLAlchemy's refusals that are ours too; any other error stays what it is."""
    name, words = type(error).__name__, str(error)
    if name == "UnboundExecutionError":
        return UnknownConnection(
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


def _ask(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    return [
        [tuple(row) for row in connection.exec_driver_sql(statement.sql, tuple(statement.values))]
        for statement in statements
    ]


CONNECTION = Hand(_ready_connection, _tongue, _run, _ask, _can_commit)
SESSION = Hand(_ready_session, _tongue, _run, _ask, _can_session_commit)
# A scoped session stands for the session of the thread or task that calls it.
SCOPED_SESSION = Hand(lambda scoped: _ready_session(scoped()), _tongue, _run, _ask, _can_session_commit)


# -- async -----------------------------------------------------------------------------------------------------------


def _started(connection: Any) -> Any:
    if connection.sync_connection is None:
        raise ConnectionClosed("the SQLAlchemy connection was not started; use: async with engine.connect()")
    if connection.closed:
        raise ConnectionClosed("the SQLAlchemy connection is closed")
    return connection


def _tongue_of_session(session: Any) -> Tongue:
    try:
        return _tongue(session.get_bind())
    except UnknownConnection:
        raise
    except Exception as error:
        raise _why_not(session, error) from error


def _within_connection(connection: Any, do: Callable[[Any, Any], T], what: Any) -> T:
    return do(_ready_connection(connection), what)


def _within_session(session: Any, do: Callable[[Any, Any], T], what: Any) -> T:
    return do(_ready_session(session), what)


def _run_async_connection(connection: Any, statement: Statement) -> Any:
    return connection.run_sync(_within_connection, _run, statement)


def _ask_async_connection(connection: Any, statements: Sequence[Statement]) -> Any:
    return connection.run_sync(_within_connection, _ask, statements)


def _run_async_session(session: Any, statement: Statement) -> Any:
    return session.run_sync(_within_session, _run, statement)


def _ask_async_session(session: Any, statements: Sequence[Statement]) -> Any:
    return session.run_sync(_within_session, _ask, statements)


def _can_async_connection_commit(connection: Any) -> bool | None:
    return _can_commit(connection.sync_connection)


def _can_async_session_commit(session: Any) -> bool | None:
    return _can_session_commit(session.sync_session)  # which asks nobody: its transaction has a connection


ASYNC_CONNECTION = Hand(
    _started, _tongue, _run_async_connection, _ask_async_connection, _can_async_connection_commit, is_async=True
)
ASYNC_SESSION = Hand(
    lambda session: session,
    _tongue_of_session,
    _run_async_session,
    _ask_async_session,
    _can_async_session_commit,
    is_async=True,
)
ASYNC_SCOPED_SESSION = Hand(
    lambda scoped: scoped(),
    _tongue_of_session,
    _run_async_session,
    _ask_async_session,
    lambda scoped: _can_async_session_commit(scoped()),
    is_async=True,
)
