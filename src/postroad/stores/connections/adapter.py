"""What postroad needs to know about one kind of connection in order to run statements on it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.dialects import Dialect
    from postroad.stores.statements import Placeholders, Statement, Statements

__all__ = ["ConnectionAdapter", "SQLStyle", "State"]


class SQLStyle(NamedTuple):
    """The SQL that a driver takes: its database's dialect, with the driver's own placeholders."""

    dialect: Dialect
    placeholders: Placeholders

    def statements(self, schema: str) -> Statements:
        """The statements for this driver and one schema."""
        return self.dialect.statements(schema, self.placeholders)


class State(Enum):
    """The state of a connection's transaction after a handler has used it."""

    KEPT = "the same transaction as before, and no error has aborted it"
    OPEN = "a transaction; only the database knows whether it is the same, or an error has aborted it"
    ABORTED = "a statement failed, so it can only be rolled back"
    ENDED = "committed, rolled back, or its connection was returned to the pool"
    LOST = "lost with its connection"


def _not_reported(_: Any) -> None:
    """For a driver that does not know the server's parameters."""


class ConnectionAdapter(msgspec.Struct, frozen=True):
    """Runs statements on one kind of connection. An adapter never commits and never opens a connection."""

    ready: Callable[[Any], Any]
    """Returns the object to run the statements on. Raises ConnectionClosed or NoTransaction."""
    sql_style: Callable[[Any], SQLStyle]
    run: Callable[[Any, Statement], Any]
    """Runs a statement in one round trip; returns an awaitable on an async connection."""
    fetch: Callable[[Any, Sequence[Statement]], Any]
    """Runs statements that all return rows, one after the other, and returns the rows of each; an awaitable of them on
    an async connection. Rows are tuples, whatever row type the user has set on the connection.
    """
    execute: Callable[[Any, str], Any]
    """Runs SQL about the transaction itself, without values or rows: a savepoint. A driver that would begin a
    transaction only before the first INSERT begins it here. Returns an awaitable on an async connection.
    """
    state: Callable[[Any], State]
    """What the driver knows about the connection's transaction, without a round trip."""
    begin_example: str
    """A `begin` that commits, for error messages."""
    is_async: bool = False
    reported: Callable[[Any], bool | None] = _not_reported
    """The value of `default_transaction_read_only`, which PostgreSQL 14 and newer report to the driver without a query;
    None where it is not reported. `first_time` turns it on until its transaction ends or is aborted, so a value that is
    still on proves that the transaction is still the same. A sync connection is connected first, if necessary.
    """
    connect: Callable[[Any], Any] | None = None
    """For async connections that connect on first use: returns an awaitable after which `reported` can be asked."""
    savepoint: Callable[[Any], Any] | None = None
    """For libraries whose own state must follow a savepoint: returns a context manager for one, async on an async
    connection. None: a SAVEPOINT by `execute` is enough.
    """
    fetch_unchecked: Callable[[Any, Sequence[Statement]], Any] | None = None
    """For async connections whose `fetch` raises NoTransaction: the same without that check, for `postroad.testing`."""
