"""WRITE: add and cancel messages in the transaction that changes the data. Nothing here commits or connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from postroad.codecs.chain import Encoder
from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import LARGEST_PAYLOAD, LARGEST_PAYLOAD_OF_ALL, UNSET, Message, encode
from postroad.schedule import later
from postroad.stores.connections import add_through, cancel_through

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from postroad.codecs.base import Codec
    from postroad.codecs.claim_check import Put
    from postroad.message import NewRow, Unset
    from postroad.otel import Tracing
    from postroad.schedule import Cancellation
    from postroad.stores.connections import AsyncConnection, SyncConnection

__all__ = ["Outbox"]


class Outbox:
    """Where an application adds its messages. Cheap, thread- and fork-safe: it holds settings and no connection."""

    def __init__(
        self,
        *,
        source: str,
        schema: str = DEFAULT_SCHEMA,
        largest_payload: int = LARGEST_PAYLOAD,
        codecs: Iterable[Codec] = (),
        tracing: Tracing | None = None,
    ) -> None:
        """`source` is the service that adds, as in CloudEvents, such as "/orders"; `schema` is where the tables are.

        `codecs` compress payloads, encrypt them, or store them elsewhere, see `postroad.codecs`; consumers undo that,
        given the same. `largest_payload` is the most that a row may have after that, in bytes.

        Messages carry the current span of OpenTelemetry, where there is one. `tracing` is only needed for a span of its
        own for each message: `Tracing(create=True)`.
        """
        if not _is_text(source):
            raise InvalidSetting(f"source is {source!r}; say which service adds the messages, such as '/orders'")
        if not 1 <= largest_payload <= LARGEST_PAYLOAD_OF_ALL:
            raise InvalidSetting(
                f"largest_payload is {largest_payload!r}; it must be a number of bytes from 1 to "
                f"{LARGEST_PAYLOAD_OF_ALL:,}, which is the most that the database takes"
            )
        self.source = source
        self.schema = checked_schema(schema)
        self.largest_payload = largest_payload
        self._encoder = Encoder(codecs) if codecs else None
        self._tracing = tracing if tracing is not None and tracing.creates else None

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
        deliver_at: datetime | None = ...,
        deliver_in: timedelta | str | None = ...,
        content_type: str | None = ...,
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
        deliver_at: datetime | None = ...,
        deliver_in: timedelta | str | None = ...,
        content_type: str | None = ...,
    ) -> Coroutine[Any, Any, UUID]: ...

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
        deliver_at: datetime | None = None,
        deliver_in: timedelta | str | None = None,
        content_type: str | None = None,
    ) -> UUID | Coroutine[Any, Any, UUID]:
        """Add a message in the connection's own transaction, in one round trip, and return its id.

        On an async connection the result must be awaited. Messages with the same `key` stay in order, provided that
        the writer locks or changes what the key names before it adds; without `key` no order is kept. `type` is that
        of `@event`, or the class's name in dotted words; `topic` is the type unless it is given. Adding the same
        message again, with the same `id`, is a no-op. `correlation_id` comes from `correlated` unless it is given.

        A message with `deliver_at`, a datetime with a time zone, or `deliver_in`, a timedelta or a text such as "10m",
        is kept aside until then; `deliver_in` counts from now by the database's clock. Until it is sent, `cancel` takes
        it back. It takes its place among the messages of its key when it is due.

        An event is a dataclass, a msgspec Struct, a pydantic or attrs model, a plain dict, a str or bytes. NaN and
        Infinity are refused, because JSON has no number for them. `content_type` says what bytes are, such as
        "application/avro" or "application/protobuf"; consumers get both as they are.

        Raises InvalidMessage, NoTransaction, ConnectionClosed, NotMigrated, UnsupportedConnection, or
        PayloadsUnavailable where a codec stores payloads elsewhere, and in each case nothing was written; and IdTaken
        when another message has the `id`: another source, type, topic, key or payload, or another role that added it.
        On PostgreSQL the transaction must then be rolled back.
        """
        message = Message(
            event,
            key=key,
            type=type,
            topic=topic,
            id=id,
            headers=headers,
            correlation_id=correlation_id,
            causation_id=causation_id,
            deliver_at=deliver_at,
            deliver_in=deliver_in,
            content_type=content_type,
        )
        row = self._encode(message)
        puts: Sequence[Put] = ()
        if self._encoder is not None:
            row, put = self._encoder.encode(row, self.largest_payload)
            puts = () if put is None else (put,)
        if deliver_at is None and deliver_in is None:
            return add_through(connection, self.schema, (row,), row.id, puts=puts)
        return add_through(connection, self.schema, (), row.id, later=(later(message, row),), puts=puts)

    @overload
    def add_many(self, connection: SyncConnection, messages: Iterable[Message], /) -> list[UUID]: ...

    @overload
    def add_many(
        self, connection: AsyncConnection, messages: Iterable[Message], /
    ) -> Coroutine[Any, Any, list[UUID]]: ...

    def add_many(self, connection: Any, messages: Iterable[Message], /) -> list[UUID] | Coroutine[Any, Any, list[UUID]]:
        """Add messages in this order, in one round trip, and return their ids. If one is invalid, none is added.

        Some may be for later; on SQLite those take a statement of their own.
        """
        rows, waiting, ids = [], [], []
        puts: list[Put] = []
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidMessage(
                    f"add_many got {message.__class__.__name__}; it takes messages: Message(event, key=…)"
                )
            row = self._encode(message)
            if self._encoder is not None:
                row, put = self._encoder.encode(row, self.largest_payload)
                puts += () if put is None else (put,)
            ids.append(row.id)
            if message.deliver_at is None and message.deliver_in is None:
                rows.append(row)
            else:
                waiting.append(later(message, row))
        return add_through(connection, self.schema, rows, ids, later=waiting, puts=puts)

    @overload
    def cancel(self, connection: SyncConnection, id: UUID, /) -> Cancellation: ...

    @overload
    def cancel(self, connection: AsyncConnection, id: UUID, /) -> Coroutine[Any, Any, Cancellation]: ...

    def cancel(self, connection: Any, id: UUID, /) -> Cancellation | Coroutine[Any, Any, Cancellation]:
        """Cancel a message in the connection's own transaction, and return whether that was possible.

        CANCELED, which alone is true: it was not published and will not be, if this transaction commits; if it is
        rolled back, nothing has happened. TOO_LATE: it was published, or is on its way. UNKNOWN: there is no such
        message. On an async connection the result must be awaited.

        A message can be canceled while it is scheduled, and while it is deferred: the broker refused it, or it waits
        behind such a message. Until this transaction ends, the messages of its key that wait for it are not sent. A
        message that was canceled while it was scheduled is unknown afterwards. Under REPEATABLE READ and above,
        PostgreSQL raises its own serialization failure when a relay was faster: try the transaction again.

        Raises what `add` does, and in each case nothing was changed. On PostgreSQL, NotOwner when another role added it
        and this one is neither a member of that role nor an operator.
        """
        if not isinstance(id, UUID):
            raise InvalidMessage(f"id is {id!r:.80}; it must be a uuid.UUID, as add returned it")
        return cancel_through(connection, self.schema, id)

    def _encode(self, message: Message) -> NewRow:
        largest = self.largest_payload if self._encoder is None else None
        if self._tracing is None:
            return encode(message, self.source, largest)
        return self._tracing.create(lambda: encode(message, self.source, largest))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
