"""Runs queries on the connection that a test has, sync or async, with the same adapters as `Outbox.add`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import NoTransaction, UnsupportedConnection
from postroad.stores.connections import OurErrors
from postroad.stores.connections.kinds import adapter_for
from postroad.stores.connections.pending import Pending
from postroad.stores.dialects import SQLDialect
from postroad.stores.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle
    from postroad.stores.connections.pending import Call
    from postroad.stores.statements import Rows

__all__ = ["query"]

T = TypeVar("T")


def query(
    connection: Any,
    sql: Callable[[SQLDialect], Iterable[str]],
    result: Callable[[Rows], T],
    call: Call,
    about: object,
    *,
    schema: str,
) -> T | Pending[T]:
    """Run SQL without values, in the dialect of this connection, and make a result of all rows; now or when awaited.

    Nothing is committed. Raises UnsupportedConnection, or NotMigrated.
    """
    cls: type = type(connection)
    adapter = adapter_for(cls)
    target = _target(adapter, connection)
    style = adapter.sql_style(target)
    # A driver with %s for its values takes every other percent sign twice.
    texts = [text.replace("%", "%%") if style.placeholders == "%s" else text for text in sql(_sql_dialect(style))]
    statements = [Statement(text, ()) for text in texts]
    if not adapter.is_async:
        with OurErrors(schema):
            return result(_all(adapter.fetch(target, statements)))

    async def run() -> T:
        target = _target(adapter, connection)
        with OurErrors(schema):
            try:
                return result(_all(await adapter.fetch(target, statements)))
            except NoTransaction:
                if adapter.fetch_unchecked is None:
                    raise
            return result(_all(await adapter.fetch_unchecked(target, statements)))

    return Pending(run, call, about)


def _target(adapter: ConnectionAdapter, connection: Any) -> Any:
    """What the adapter runs statements on. Unlike `add`, a test may read in autocommit mode."""
    try:
        return adapter.ready(connection)
    except NoTransaction:
        if not hasattr(connection, "get_bind"):
            return connection
        session = connection() if callable(connection) else connection  # a scoped session is called for its own
        if not session.in_transaction():  # it begins none by itself
            raise
        session.flush()
        return session.connection()


def _sql_dialect(style: SQLStyle) -> SQLDialect:
    if isinstance(style.dialect, SQLDialect):
        return style.dialect
    raise UnsupportedConnection("a transaction of the memory store runs no SQL; ask its store: store.added()")


def _all(answered: Sequence[Rows]) -> Rows:
    return [row for rows in answered for row in rows]
