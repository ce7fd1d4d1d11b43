"""The outbox as a connection sees it: what is committed, and what its own transaction has added."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from uuid import UUID

from postroad.codecs.chain import Decoder
from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.message import StoredMessage
from postroad.stores.connections.pending import Call
from postroad.testing.messages import Messages
from postroad.testing.query import query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroad.codecs.base import Codec
    from postroad.stores.connections import AsyncConnection, Pending, SyncConnection
    from postroad.stores.dialects import SQLDialect

__all__ = [
    "Contents",
    "Scheduled",
    "assert_same_transaction",
    "contents",
    "outbox_messages",
    "reset_outbox",
    "scheduled_messages",
]

_READ = Call("outbox_messages", undone="nothing was read from")
_LATER = Call("scheduled_messages", undone="nothing was read from")
_RESET = Call("reset_outbox", undone="nothing was deleted from")
_CHECK = Call("assert_same_transaction", undone="nothing was checked about")
_COLUMNS = 10  # of the log


class Scheduled(NamedTuple):
    """A message that is to be sent later."""

    message: StoredMessage
    due: int
    """In microseconds since 1970."""


class Contents(NamedTuple):
    """What a connection sees of the outbox."""

    log: list[StoredMessage]
    scheduled: list[Scheduled]
    """In the order in which they are due."""


@overload
def outbox_messages(connection: SyncConnection, /, *, schema: str = ..., codecs: Iterable[Codec] = ...) -> Messages: ...
@overload
def outbox_messages(
    connection: AsyncConnection, /, *, schema: str = ..., codecs: Iterable[Codec] = ...
) -> Pending[Messages]: ...
def outbox_messages(
    connection: Any, /, *, schema: str = DEFAULT_SCHEMA, codecs: Iterable[Codec] = ()
) -> Messages | Pending[Messages]:
    """Every message in the log that this connection sees, in order. Await it on an async connection.

    `codecs` are those of the outbox, for `assert_added` to compare payloads that are encrypted or stored elsewhere.
    """
    schema, decoders = checked_schema(schema), [Decoder(codecs)]

    def read(rows: list[tuple[Any, ...]]) -> Messages:
        return Messages((_stored(row) for row in rows), decoders=decoders)

    return query(
        connection, lambda dialect: [dialect.log_statement(schema)], read, _READ, f"schema {schema}", schema=schema
    )


@overload
def scheduled_messages(
    connection: SyncConnection, /, *, schema: str = ..., codecs: Iterable[Codec] = ...
) -> Messages: ...
@overload
def scheduled_messages(
    connection: AsyncConnection, /, *, schema: str = ..., codecs: Iterable[Codec] = ...
) -> Pending[Messages]: ...
def scheduled_messages(
    connection: Any, /, *, schema: str = DEFAULT_SCHEMA, codecs: Iterable[Codec] = ()
) -> Messages | Pending[Messages]:
    """Every message that is to be sent later, as far as this connection sees them, in the order in which they are due.
    Await it on an async connection.
    """
    schema, decoders = checked_schema(schema), [Decoder(codecs)]

    def read(rows: list[tuple[Any, ...]]) -> Messages:
        return Messages((_stored(row) for row in rows), decoders=decoders)

    return query(
        connection,
        lambda dialect: [dialect.scheduled_statement(schema)],
        read,
        _LATER,
        f"schema {schema}",
        schema=schema,
    )


def contents(connection: Any, schema: str, *, move: UUID | None = None) -> Contents | Pending[Contents]:
    """The log and the scheduled messages; `move` is one of the latter, to be moved into the log first."""

    def sql(dialect: SQLDialect) -> list[str]:
        moving = [] if move is None else dialect.move_statements(schema, move)
        return [*moving, dialect.log_statement(schema), dialect.scheduled_statement(schema)]

    def read(rows: list[tuple[Any, ...]]) -> Contents:
        log = [_stored(row) for row in rows if len(row) == _COLUMNS]
        return Contents(log, [Scheduled(_stored(row), row[-1]) for row in rows if len(row) > _COLUMNS])

    return query(connection, sql, read, _READ, f"schema {schema}", schema=schema)


def _stored(row: tuple[Any, ...]) -> StoredMessage:
    position, id, topic, key, slot, type, payload, content_type, headers, created = row[:_COLUMNS]
    return StoredMessage(position, UUID(id), topic, key, slot, type, bytes(payload), content_type, headers, created)


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
    return query(connection, statements, lambda _: None, _RESET, f"schema {schema}", schema=schema)


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

    return query(connection, sql, check, _CHECK, f"message {message.id}", schema=schema)
