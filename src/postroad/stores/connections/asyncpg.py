"""asyncpg. It is in a transaction only when it was told to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import ConnectionClosed, NoTransaction
from postroad.stores.connections.hand import Hand, Tongue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.statements import Rows, Statement

__all__ = ["ASYNCPG", "can_asyncpg_commit"]

_TONGUE = Tongue("postgresql", "$1")


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


async def _ask(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    return [
        [tuple(row) for row in await connection.fetch(statement.sql, *statement.values)] for statement in statements
    ]


def can_asyncpg_commit(connection: Any) -> bool | None:
    """The driver knows whether there is a transaction, and keeps to itself whether an error has spoilt it."""
    return None if connection.is_in_transaction() else False


def _omen(connection: Any) -> bool | None:
    reported = getattr(connection.get_settings(), "default_transaction_read_only", None)  # from PostgreSQL 14 on
    return None if reported is None else bool(reported == "on")


ASYNCPG = Hand(_check, lambda _: _TONGUE, _run, _ask, can_asyncpg_commit, is_async=True, omen=_omen)
