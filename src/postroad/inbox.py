"""RECEIVE: records in the handler's own transaction that a message was processed. Nothing here commits or connects."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload
from uuid import UUID

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidMessage, InvalidSetting
from postroad.kinds import duration
from postroad.received import identity_of
from postroad.stores.connections import query_at_once, query_through
from postroad.stores.connections.pending import Call
from postroad.stores.statements import Arrival, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from postroad.kinds import Duration
    from postroad.stores.connections import AsyncConnection, SyncConnection
    from postroad.stores.statements import Rows, Statements

__all__ = ["FirstTimes", "Inbox", "checked_consumer"]

T = TypeVar("T")

Arrived = tuple[UUID | str, str] | tuple[UUID | str, str, str | None]
"""A message's id, its type, and its source if it has one."""

_ONE = Call("inbox.first_time", undone="the inbox was not asked about")
_MANY = Call("inbox.first_times", undone="the inbox was not asked about")

LONGEST_CONSUMER = 255  # bytes
LONGEST_ID = 1024
LONGEST_TYPE = 255


class FirstTimes(NamedTuple):
    """Which messages a consumer sees for the first time."""

    new: list[bool]
    """For each message whether this is the first time."""
    transaction: Any = None
    """What identifies the transaction, if any message is new."""


class Inbox:
    """The messages that consumers have processed. Cheap, thread- and fork-safe: it holds settings, no connection."""

    def __init__(self, *, schema: str = DEFAULT_SCHEMA, lock_timeout: Duration = "5s") -> None:
        """`schema` is the schema of the tables; `lock_timeout` is how long PostgreSQL waits for another transaction
        that is processing the same message, 0 for as long as it takes.
        """
        self.schema = checked_schema(schema)
        self.lock_timeout = duration("lock_timeout", lock_timeout)
        self._timeout = f"{self.lock_timeout.total_seconds() * 1000:.0f}ms"

    @overload
    def first_time(
        self,
        connection: SyncConnection,
        message_id: UUID | str,
        /,
        *,
        consumer: str,
        type: str = ...,
        source: str | None = ...,
    ) -> bool: ...

    @overload
    def first_time(
        self,
        connection: AsyncConnection,
        message_id: UUID | str,
        /,
        *,
        consumer: str,
        type: str = ...,
        source: str | None = ...,
    ) -> Coroutine[Any, Any, bool]: ...

    def first_time(
        self,
        connection: Any,
        message_id: UUID | str,
        /,
        *,
        consumer: str,
        type: str = "",
        source: str | None = None,
    ) -> bool | Coroutine[Any, Any, bool]:
        """Record the message as processed, in the connection's own transaction; True if this is the first time.

        A message is identified by its `source` and its id: pass both, as they came with the message. Without a source,
        every message without a source and with that id is taken for the same one.

        When another transaction is processing it, this one waits: the result is False if the other commits and True if
        it rolls back. Await the result on an async connection. The driver's error is raised when waiting takes longer
        than `lock_timeout`, and in isolation levels above READ COMMITTED when the other has committed: roll back and
        try again. On PostgreSQL a consumer's name belongs to the role that first used it. Raises
        InvalidMessage, NotOwner, NoTransaction, ConnectionClosed, NotMigrated or UnsupportedConnection, and in each
        case nothing was written.
        """
        arrivals = [_arrival(message_id, type, source)]
        return self._ask(connection, arrivals, consumer, lambda recorded: recorded.new[0], _ONE)

    @overload
    def first_times(
        self, connection: SyncConnection, messages: Iterable[Arrived], /, *, consumer: str
    ) -> list[bool]: ...

    @overload
    def first_times(
        self, connection: AsyncConnection, messages: Iterable[Arrived], /, *, consumer: str
    ) -> Coroutine[Any, Any, list[bool]]: ...

    def first_times(
        self, connection: Any, messages: Iterable[Arrived], /, *, consumer: str
    ) -> list[bool] | Coroutine[Any, Any, list[bool]]:
        """The same for a batch of ids, types and sources, in one round trip: an answer for each, in the order given.

        If a message is in the batch twice, the second is never new. Two batches can't deadlock: rows are written in the
        order of their ids.
        """
        checked = [_arrival(*message) for message in messages]
        return self._ask(connection, checked, consumer, lambda recorded: recorded.new, _MANY)

    def record(self, connection: Any, messages: Sequence[Arrival], /, *, consumer: str) -> Any:
        """For a consumer, which has checked the messages: the same, and the transaction is marked, so that the consumer
        can tell whether the handler has ended it. Returns FirstTimes, or an awaitable of it on an async connection.
        """

        def query(statements: Statements) -> Query[FirstTimes]:
            found = statements.first_times(consumer, messages, timeout=self._timeout)
            return Query(
                [*found.statements, *statements.mark_transaction()],
                lambda rows: _recorded(messages, found.result(rows)),
            )

        return query_at_once(connection, self.schema, query)

    def _ask(
        self,
        connection: Any,
        messages: Sequence[Arrival],
        consumer: str,
        shape: Callable[[FirstTimes], T],
        call: Call,
    ) -> T | Coroutine[Any, Any, T]:
        checked_consumer(consumer)

        def query(statements: Statements) -> Query[T]:
            found = statements.first_times(consumer, messages, timeout=self._timeout)
            return Query(found.statements, lambda rows: shape(_recorded(messages, found.result(rows))))

        about = messages[0][0] if len(messages) == 1 else f"{len(messages)} messages"
        return query_through(connection, self.schema, query, call, about)


def _recorded(messages: Sequence[Arrival], rows: Rows) -> FirstTimes:
    if not rows:
        return FirstTimes([False] * len(messages))
    return FirstTimes([True] if len(messages) == 1 else _answers(messages, rows), rows[0][1])


def _answers(messages: Sequence[Arrival], rows: Rows) -> list[bool]:
    """For each message whether it is new, and not a repetition within the batch."""
    new = Counter(row[0] for row in rows)
    answers = []
    for message in messages:
        answers.append(new[message.identity] > 0)
        new[message.identity] -= 1
    return answers


def _arrival(message_id: Any, type: Any, source: Any = None) -> Arrival:
    id = _checked_id(message_id)
    if source is None:
        return Arrival(identity_of(id, None), _checked_type(type))
    identity = identity_of(id, source) if isinstance(source, str) else ""
    if not _is_text(identity, 1, LONGEST_ID):
        raise InvalidMessage(
            f"source is {ascii(source)[:80]}; it must be a text, with the id at most {LONGEST_ID:,} bytes long"
        )
    return Arrival(identity, _checked_type(type))


def checked_consumer(consumer: Any) -> str:
    """The name of a consumer. Raises InvalidSetting."""
    if not _is_text(consumer, 1, LONGEST_CONSUMER):
        raise InvalidSetting(f"consumer is {consumer!r}; it must be a name of 1 to {LONGEST_CONSUMER} bytes")
    return str(consumer)


def _checked_id(id: Any) -> str:
    if isinstance(id, UUID):
        return str(id)
    if not _is_text(id, 1, LONGEST_ID):
        raise InvalidMessage(
            f"message_id is {ascii(id)[:80]}; it must be a UUID, or a text of 1 to {LONGEST_ID:,} bytes"
        )
    return str(id)


def _checked_type(type: Any) -> str:
    if not _is_text(type, 0, LONGEST_TYPE):
        raise InvalidMessage(f"type is {ascii(type)[:80]}; it must be a text of at most {LONGEST_TYPE} bytes")
    return str(type)


def _is_text(value: Any, least: int, most: int) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return least <= len(value.encode()) <= most
    except UnicodeEncodeError:
        return False
