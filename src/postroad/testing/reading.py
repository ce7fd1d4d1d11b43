"""What a connection sees in the log: what is committed, and what its own transaction has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.message import StoredMessage
from postroad.testing.asking import ask
from postroad.testing.messages import Messages

if TYPE_CHECKING:
    from postroad.stores.connections import AsyncConnection, SyncConnection
    from postroad.stores.dialects import SQLDialect
    from postroad.testing.asking import Answer

__all__ = ["assert_same_transaction", "outbox_messages", "reset_outbox"]


@overload
def outbox_messages(connection: SyncConnection, /, *, schema: str = ...) -> Messages: ...
@overload
def outbox_messages(connection: AsyncConnection, /, *, schema: str = ...) -> Answer[Messages]: ...
def outbox_messages(connection: Any, /, *, schema: str = DEFAULT_SCHEMA) -> Messages | Answer[Messages]:
    """Every message in the log that this connection sees, in order. On an async connection it must be awaited."""
    schema = checked_schema(schema)

    def read(rows: list[tuple[Any, ...]]) -> Messages:
        return Messages(
            StoredMessage(position, UUID(id), topic, key, slot, type, bytes(payload), content_type, headers, created)
            for position, id, topic, key, slot, type, payload, content_type, headers, created in rows
        )

    return ask(connection, lambda dialect: [dialect.log_statement(schema)], read)


@overload
def reset_outbox(connection: SyncConnection, /, *, schema: str = ...) -> None: ...
@overload
def reset_outbox(connection: AsyncConnection, /, *, schema: str = ...) -> Answer[None]: ...
def reset_outbox(connection: Any, /, *, schema: str = DEFAULT_SCHEMA) -> Answer[None] | None:
    """Delete everything that postroad's tables hold: messages, sinks and their cursors, the inbox, the audit.

    In the connection's own transaction, which has still to be committed. To be called between tests, while no relay and
    no consumer is running. On an async connection it must be awaited.
    """
    schema = checked_schema(schema)
    return ask(connection, lambda dialect: dialect.empty_statements(schema), lambda _: None)


@overload
def assert_same_transaction(
    connection: SyncConnection, message: StoredMessage, /, *, table: str, where: str, schema: str = ...
) -> None: ...
@overload
def assert_same_transaction(
    connection: AsyncConnection, message: StoredMessage, /, *, table: str, where: str, schema: str = ...
) -> Answer[None]: ...
def assert_same_transaction(
    connection: Any, message: StoredMessage, /, *, table: str, where: str, schema: str = DEFAULT_SCHEMA
) -> Answer[None] | None:
    """Fail unless the row of your table and the message were written by one transaction. PostgreSQL only.

    `table` and `where` are SQL, and must find one row. What was written inside a savepoint counts when the other
    was written inside the same one.
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

    return ask(connection, sql, check)
