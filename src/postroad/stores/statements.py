"""The statements that run in the user's own transaction, as values; `connections` runs them. Nothing here does I/O.

Each database has a subclass of `Statements` (see `dialects`). The memory store has one too, so a transaction of the
memory store is used like any other connection.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Cancellation, Later

__all__ = ["Arrival", "Placeholders", "Query", "Rows", "Statement", "Statements", "columns", "with_placeholders"]

Placeholders = Literal["$1", "?", "%s"]
"""How a driver writes the places of values: PostgreSQL's own style, SQLite's, and that of Python's older drivers."""

Rows = list[tuple[Any, ...]]
"""The rows of one statement."""

_PLACE = re.compile(r"\$(\d+)|\?")

T = TypeVar("T")


class Statement(NamedTuple):
    """SQL and its values. With `repeated`, the values are rows, and the driver runs the SQL for each of them."""

    sql: str
    values: Sequence[Any]
    repeated: bool = False


class Arrival(NamedTuple):
    """A message for the inbox."""

    identity: str
    type: str


class Query(NamedTuple, Generic[T]):
    """Statements that all return rows, and the function that makes a result of them."""

    statements: Sequence[Statement]
    result: Callable[[Sequence[Rows]], T]
    """Takes the rows of each statement."""


class Statements(ABC):
    """The statements of one database, for one schema, with one driver's placeholders."""

    def __init__(self, queries: Mapping[str, str], placeholders: Placeholders) -> None:
        self._queries = queries
        self._placeholders = placeholders
        self._texts: dict[str, str] = {}

    def named(self, name: str, *values: Any) -> Statement:
        """A named query with its values."""
        return Statement(self.text(name), values)

    def rows(self, name: str, *values: Any) -> Query[Rows]:
        """The rows of a named query."""
        return Query([self.named(name, *values)], lambda found: found[0])

    def text(self, name: str) -> str:
        """A named query with the driver's placeholders."""
        text = self._texts.get(name)
        if text is None:
            text = self._texts[name] = with_placeholders(self._queries[name], self._placeholders)
        return text

    @abstractmethod
    def add(self, rows: Sequence[NewRow]) -> Statement:
        """Write these rows to the log, in this order, in one round trip."""

    @abstractmethod
    def add_later(self, rows: Sequence[NewRow], later: Sequence[Later]) -> Sequence[Statement]:
        """Write `rows` to the log, and `later` to the scheduled messages."""

    @abstractmethod
    def cancel(self, id: UUID) -> Query[Cancellation]:
        """Cancel a message, and return whether that was possible."""

    @abstractmethod
    def first_times(self, consumer: str, messages: Sequence[Arrival], *, timeout: str) -> Query[Rows]:
        """Record these messages as processed by a consumer, in one round trip.

        Returns a row for each new identity: the identity (`True` where there is only one message), and what
        `undo_first_times` knows the transaction by. PostgreSQL waits no longer than `timeout` for another transaction
        that is about to process one of them; SQLite has one writer, so there is none.
        """

    @abstractmethod
    def mark_transaction(self) -> Sequence[Statement]:
        """To be run after `first_times`, so that `same_transaction` can be asked. PostgreSQL needs nothing."""

    @abstractmethod
    def same_transaction(self, transaction: Any) -> Query[bool]:
        """Whether this is still the transaction of `first_times`. SQLite raises an error if it is not."""

    @abstractmethod
    def undo_first_times(self, transaction: Any, *, consumer: str, ids: Sequence[str]) -> Query[bool]:
        """Delete what `first_times` wrote in that transaction, if it was committed; False while it is open."""

    @abstractmethod
    def write_probe(self, *, consumer: str, id: str) -> Query[tuple[Any, Any]]:
        """Write something that shows later whether the transaction was committed. Returns what each of two statements
        knows the transaction by.
        """

    @abstractmethod
    def read_probe(self, *, transaction: Any, consumer: str, id: str) -> Query[bool]:
        """Whether the probe was committed; it is deleted."""

    @abstractmethod
    def attempt_values(
        self, timeout: str, values: Sequence[Any], *, processed: Sequence[Any] = (), rest: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        """The values of a named query about a consumer's attempts, in the order in which this database takes them.

        `processed` says which row of the inbox to look for; `timeout` is how long to wait for a lock.
        """

    @abstractmethod
    def interval(self, seconds: float) -> Any:
        """A length of time as a value of a named query."""


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as a list of their columns."""
    return [list(column) for column in zip(*rows, strict=True)]


def with_placeholders(sql: str, wanted: Placeholders) -> str:
    """A named query with a driver's own placeholders.

    `%s` and `?` have no numbers, so the query must use each value once, in order. Strings and comments are not looked
    at: named queries that are converted have none with a placeholder in it.
    """
    if wanted != "%s":
        return sql
    numbers = [int(number) for number in _PLACE.findall(sql) if number]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"values without numbers must be used once and in order, not as {numbers}")
    return _PLACE.sub("%s", sql.replace("%", "%%"))
