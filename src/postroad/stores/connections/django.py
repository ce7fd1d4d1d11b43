"""Django's connections: `django.db.connection`, and what is in `django.db.connections`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import ConnectionClosed, NoTransaction, UnsupportedConnection
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.connections.psycopg import psycopg_reported, psycopg_state
from postroad.stores.connections.sqlite import sqlite_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["DJANGO"]

# Django's cursors take %s on every database.
_TONGUES = {"postgresql": SQLStyle("postgresql", "%s"), "sqlite": SQLStyle("sqlite", "%s")}


def _check(connection: Any) -> Any:
    if connection.in_atomic_block:
        if connection.closed_in_transaction:
            raise ConnectionClosed("Django's connection was closed inside its transaction")
        return connection
    # A connection that is not open yet will be what the settings say.
    opened = connection.connection is not None
    if connection.autocommit if opened else connection.settings_dict["AUTOCOMMIT"]:
        raise NoTransaction(
            "Django's connection is in autocommit mode and in no transaction, so the message would be committed by "
            "itself; add it inside: with transaction.atomic()"
        )
    return connection


def _tongue(connection: Any) -> SQLStyle:
    tongue = _TONGUES.get(connection.vendor)
    if tongue is None:
        raise UnsupportedConnection(
            f"Django is used with {connection.vendor} here, and postroad knows it with {' and '.join(_TONGUES)}"
        )
    return tongue


def _run(connection: Any, statement: Statement) -> None:
    with connection.cursor() as cursor:
        (cursor.executemany if statement.repeated else cursor.execute)(statement.sql, statement.values)


def _ask(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    with connection.cursor() as cursor:
        return [_rows(cursor, statement) for statement in statements]


def _rows(cursor: Any, statement: Statement) -> Rows:
    cursor.execute(statement.sql, statement.values)
    return list(cursor.fetchall())


def _state(connection: Any) -> State:
    if connection.connection is None:
        return State.ENDED
    of_driver = psycopg_state if connection.vendor == "postgresql" else sqlite_state
    state = of_driver(connection.connection)
    return State.ABORTED if state is State.OPEN and connection.needs_rollback else state


def _reported(connection: Any) -> bool | None:
    if connection.vendor != "postgresql":
        return None
    connection.ensure_connection()
    return psycopg_reported(connection.connection)


DJANGO = ConnectionAdapter(
    _check,
    _tongue,
    _run,
    _ask,
    _state,
    "@contextmanager def begin(): with transaction.atomic(): yield connection",
    reported=_reported,
)
