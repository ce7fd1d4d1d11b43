"""asyncpg. A connection is in a transaction only inside `connection.transaction()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import ConnectionClosed, NoTransaction
from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle, State
from postroad.stores.dialects import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["ASYNCPG", "asyncpg_reported", "asyncpg_state"]

_STYLE = SQLStyle(POSTGRESQL, "$1")


def _check(connection: Any) -> Any:
    try:
        closed = connection.is_closed()
    except Exception as error:  # a pool's proxy raises when its connection was given back
        raise ConnectionClosed(f"the asyncpg connection can't be used: {error}") from error
    if closed:
        raise ConnectionClosed("the asyncpg connection is closed")
    if not connection.is_in_transaction():
        raise NoTransaction(
            "the asyncpg connection is in no transaction, so the message would be committed by itself; "
            "add it inside: async with connection.transaction()"
        )
    return connection


def _run(connection: Any, statement: Statement) -> Any:
    return connection.execute(statement.sql, *statement.values)


async def _fetch(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    return [list(map(tuple, await connection.fetch(each.sql, *each.values))) for each in statements]


def _execute(connection: Any, sql: str) -> Any:
    return connection.execute(sql)


def asyncpg_state(connection: Any) -> State:
    """The driver knows whether there is a transaction; it does not know whether an error has aborted it."""
    try:
        if connection.is_closed():  # by a handler, or lost: the driver does not know which
            return State.LOST
        return State.OPEN if connection.is_in_transaction() else State.ENDED
    except Exception:  # a pool's proxy raises when its connection was given back
        return State.ENDED


def asyncpg_reported(connection: Any) -> bool | None:
    """See `ConnectionAdapter.reported`. Servers before PostgreSQL 14 don't report it."""
    value = getattr(connection.get_settings(), "default_transaction_read_only", None)
    return None if value is None else bool(value == "on")


ASYNCPG = ConnectionAdapter(
    _check,
    lambda _: _STYLE,
    _run,
    _fetch,
    _execute,
    asyncpg_state,
    "@asynccontextmanager async def begin(): async with pool.acquire() as connection, connection.transaction(): "
    "yield connection",
    is_async=True,
    reported=asyncpg_reported,
)
