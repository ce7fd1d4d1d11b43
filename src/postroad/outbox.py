"""WRITE: add messages in the transaction that changes the data. Nothing here commits or connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting
from postroad.message import LARGEST_PAYLOAD, UNSET, Message, encode
from postroad.stores.connections import add_through

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from postroad.message import Unset
    from postroad.stores.connections import AsyncConnection, Pending, SyncConnection

__all__ = ["Outbox"]


class Outbox:
    """Where an application adds its messages. Cheap, thread- and fork-safe: it holds settings and no connection."""

    def __init__(self, *, source: str, schema: str = DEFAULT_SCHEMA, largest_payload: int = LARGEST_PAYLOAD) -> None:
        """`source` says who adds (CloudEvents' `source`), such as "/orders"; `schema` is where the tables are."""
        if not _is_text(source):
            raise InvalidSetting(f"source is {source!r}; say which service adds the messages, such as '/orders'")
        if largest_payload < 1:
            raise InvalidSetting(f"largest_payload is {largest_payload!r}; it must be a number of bytes")
        self.source = source
        self.schema = checked_schema(schema)
        self.largest_payload = largest_payload

    @overload
    def add(
        self,
        connection: SyncConnection,
        event: Any,
        /,
        *,
        key: str | int | UUID | Unset = ...,
        type: str | None = ...,
        topic: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        correlation_id: str | None = ...,
        causation_id: str | None = ...,
    ) -> UUID: ...

    @overload
    def add(
        self,
        connection: AsyncConnection,
        event: Any,
        /,
        *,
        key: str | int | UUID | Unset = ...,
        type: str | None = ...,
        topic: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        correlation_id: str | None = ...,
        causation_id: str | None = ...,
    ) -> Pending[UUID]: ...

    def add(
        self,
        connection: Any,
        event: Any,
        /,
        *,
        key: str | int | UUID | Unset = UNSET,
        type: str | None = None,
        topic: str | None = None,
        id: UUID | None = None,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> UUID | Pending[UUID]:
        """Add a message in the connection's own transaction, in one round trip, and give its id.

        On an async connection the answer must be awaited. Messages with the same `key` stay in order, provided that
        the writer locks or changes what the key names before it adds; without `key` no order is kept. `type` is what
        `@event` says or the class's name in dotted words; `topic` is the type unless it is given. Adding an `id` again
        is a no-op. `correlation_id` comes from `correlated` unless it is given.

        Raises InvalidMessage, NoTransaction, ConnectionClosed, NotMigrated or UnknownConnection, and in each case
        nothing was written.
        """
        row = encode(
            Message(
                event,
                key=key,
                type=type,
                topic=topic,
                id=id,
                headers=headers,
                correlation_id=correlation_id,
                causation_id=causation_id,
            ),
            self.source,
            self.largest_payload,
        )
        return add_through(connection, self.schema, (row,), row.id)

    @overload
    def add_many(self, connection: SyncConnection, messages: Iterable[Message], /) -> list[UUID]: ...

    @overload
    def add_many(self, connection: AsyncConnection, messages: Iterable[Message], /) -> Pending[list[UUID]]: ...

    def add_many(self, connection: Any, messages: Iterable[Message], /) -> list[UUID] | Pending[list[UUID]]:
        """Add messages in this order, in one round trip, and give their ids. One that is invalid: none is added."""
        rows = [encode(message, self.source, self.largest_payload) for message in messages]
        return add_through(connection, self.schema, rows, [row.id for row in rows])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
