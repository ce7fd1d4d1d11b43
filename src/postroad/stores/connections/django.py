"""Django's connections: `django.db.connection`, and what is in `django.db.connections`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.errors import ConnectionClosed, NoTransaction, UnsupportedConnection
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.connections.psycopg import psycopg_reported, psycopg_state
from postroad.stores.connections.sqlite import sqlite_state
from postroad.stores.dialects import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["DJANGO"]


class Driver(NamedTuple):
    """What is below Django: the style of its cursors, which take %s on every database, and its driver's state."""

    sql_style: SQLStyle
    state: Callable[[Any], State]
    """See `ConnectionAdapter`; given the driver's connection."""
    reported: Callable[[Any], bool | None] | None = None
    """See `ConnectionAdapter`; given the driver's connection. None: nothing is ever reported."""


_DRIVERS = {
    POSTGRESQL.name: Driver(SQLStyle(POSTGRESQL, "%s"), psycopg_state, psycopg_reported),
    SQLITE.name: Driver(SQLStyle(SQLITE, "%s"), sqlite_state),
}


def _check(connection: Any) -> Any:
    if connection.in_atomic_block:
        if connection.closed_in_transaction:
            raise ConnectionClosed("Django's connection was closed inside its transaction")
        return connection
    # A connection that is not open yet will have the autocommit mode of the settings.
    opened = connection.connection is not None
    if connection.autocommit if opened else connection.settings_dict["AUTOCOMMIT"]:
        raise NoTransaction(
            "Django's connection is in autocommit mode and in no transaction, so the message would be committed by "
            "itself; add it inside: with transaction.atomic()"
        )
    return connection


def _sql_style(connection: Any) -> SQLStyle:
    driver = _DRIVERS.get(connection.vendor)
    if driver is None:
        raise UnsupportedConnection(
            f"Django is used with {connection.vendor} here; postroad supports {' and '.join(_DRIVERS)}"
        )
    return driver.sql_style


def _run(connection: Any, statement: Statement) -> None:
    with connection.cursor() as cursor:
        (cursor.executemany if statement.repeated else cursor.execute)(statement.sql, statement.values)


def _fetch(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    with connection.cursor() as cursor:
        return [_rows(cursor, statement) for statement in statements]


def _rows(cursor: Any, statement: Statement) -> Rows:
    cursor.execute(statement.sql, statement.values)
    return list(cursor.fetchall())


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        if _sql_style(connection).dialect.begin_before_savepoint and not connection.connection.in_transaction:
            cursor.execute("begin")
        cursor.execute(sql)


def _state(connection: Any) -> State:
    if connection.connection is None:
        return State.ENDED
    state = _DRIVERS[connection.vendor].state(connection.connection)
    return State.ABORTED if state is State.OPEN and connection.needs_rollback else state


def _reported(connection: Any) -> bool | None:
    reported = _DRIVERS[connection.vendor].reported
    if reported is None:
        return None
    connection.ensure_connection()
    return reported(connection.connection)


def _savepoint(connection: Any) -> Any:
    from django.db import transaction

    return transaction.atomic(using=connection.alias)  # it keeps the flag that the transaction can only be rolled back


DJANGO = ConnectionAdapter(
    _check,
    _sql_style,
    _run,
    _fetch,
    _execute,
    _state,
    "@contextmanager def begin(): with transaction.atomic(): yield connection",
    reported=_reported,
    savepoint=_savepoint,
)
