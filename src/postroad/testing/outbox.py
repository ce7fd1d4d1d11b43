"""The outbox as a connection sees it: what is committed, and what its own transaction has added."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.message import StoredMessage
from postroad.stores.connections.pending import Call
from postroad.testing.messages import Messages
from postroad.testing.query import query

if TYPE_CHECKING:
    from postroad.stores.connections import AsyncConnection, Pending, SyncConnection
    from postroad.stores.dialects import SQLDialect

__all__ = ["assert_same_transaction", "outbox_messages", "reset_outbox"]

_READ = Call("outbox_messages", undone="nothing was read from")
_RESET = Call("reset_outbox", undone="nothing was deleted from")
_CHECK = Call("assert_same_transaction", undone="nothing was checked about")


@overload
def outbox_messages(connection: SyncConnection, /, *, schema: str = ...) -> Messages: ...
@overload
def outbox_messages(connection: AsyncConnection, /, *, schema: str = ...) -> Pending[Messages]: ...
def outbox_messages(connection: Any, /, *, schema: str = DEFAULT_SCHEMA) -> Messages | Pending[Messages]:
    """Every message in the log that this connection sees, in order. Await it on an async connection."""
    schema = checked_schema(schema)

    def read(rows: list[tuple[Any, ...]]) -> Messages:
        return Messages(
            StoredMessage(position, UUID(id), topic, key, slot, type, bytes(payload), content_type, headers, created)
            for position, id, topic, key, slot, type, payload, content_type, headers, created in rows
        )

    return query(connection, lambda dialect: [dialect.log_statement(schema)], read, _READ, f"schema {schema}")


@overload
def reset_outbox(connection: SyncConnection, /, *, schema: str = ...) -> None: ...
@overload
def reset_outbox(connection: AsyncConnection, /, *, schema: str = ...) -> Pending[None]: ...
def reset_outbox(connection: Any, /, *, schema: str = DEFAULT_SCHEMA) -> Pending[None] | None:
    """Delete everything in postroad's tables: messages, sinks and their cursors, the inbox, the audit.

    It runs in the connection's own transaction; commit it. Call it between tests, while no relay and no consumer is
    running. Await it on an async connection.
    """
    schema = checked_schema(schema)
    statements = methodcaller("empty_statements", schema)
    return query(connection, statements, lambda _: None, _RESET, f"schema {schema}")


@overload
def assert_same_transaction(
    connection: SyncConnection, message: StoredMessage, /, *, table: str, where: str, schema: str = ...
) -> None: ...
@overload
def assert_same_transaction(
    connection: AsyncConnection, message: StoredMessage, /, *, table: str, where: str, schema: str = ...
) -> Pending[None]: ...
def assert_same_transaction(
    connection: Any, message: StoredMessage, /, *, table: str, where: str, schema: str = DEFAULT_SCHEMA
) -> Pending[None] | None:
    """Fail unless one transaction wrote both the row of your table and the message. PostgreSQL only.

    `table` and `where` are SQL, and must find one row. If the row was written inside a savepoint, the message must have
    been written inside the same one. Await it on an async connection.
    """
    schema = checked_schema(schema)

    def sql(dialect: SQLDialect) -> list[str]:
        return [dialect.writers_statement(schema, id=message.id, table=table, where=where)]

    def check(rows: list[tuple[Any, ...]]) -> None:
        __tracebackhide__ = True
        if not rows:
            raise AssertionError(f"message {message.id} is not in the log")
        writers = [each for *_, each in rows if each is not None]
        if len(writers) != 1:
            raise AssertionError(f"{table} has {len(writers)} rows where {where}; there must be one")
        ours = rows[0][:2]
        if writers[0] not in ours:
            raise AssertionError(
                f"the row of {table} where {where} was written by transaction {writers[0]}, "
                f"and message {message.id} ({message.type}) by transaction {ours[1]}"
            )

    return query(connection, sql, check, _CHECK, f"message {message.id}")
