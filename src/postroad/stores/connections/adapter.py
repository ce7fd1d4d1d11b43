"""What is to be known about one kind of connection in order to run a statement with it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.queries import Dialect
    from postroad.stores.statements import Placeholders, Statement

__all__ = ["ConnectionAdapter", "SQLStyle", "State"]


class SQLStyle(NamedTuple):
    """What a driver understands: its database's SQL, with its own placeholders."""

    dialect: Dialect
    placeholders: Placeholders


class State(Enum):
    """A connection's transaction, after a handler had it."""

    KEPT = "the transaction that it was, and an error has not aborted it"
    OPEN = "a transaction; only the database knows whether it is the same, or an error has aborted it"
    ABORTED = "a statement failed, so it can only be rolled back"
    ENDED = "committed, rolled back or given back with its connection"
    LOST = "lost with its connection"


def _nothing(_: Any) -> None:
    """What a driver without server parameters knows."""


class ConnectionAdapter(msgspec.Struct, frozen=True):
    """How statements are run with one kind of connection. A hand never commits and never connects to anything else."""

    ready: Callable[[Any], Any]
    """Raises ConnectionClosed or NoTransaction, and else gives what the statement is to be run on."""
    tongue: Callable[[Any], SQLStyle]
    run: Callable[[Any, Statement], Any]
    """Runs a statement in one round trip; an async hand gives an awaitable."""
    ask: Callable[[Any, Sequence[Statement]], Any]
    """Runs statements that all give rows, one after the other, and gives the rows of each; an async hand gives an
    awaitable. Rows are tuples, whatever the user has told the driver to give.
    """
    state: Callable[[Any], State]
    """What the driver knows about the connection's transaction, without asking the database."""
    idiom: str
    """A `begin` that commits, for messages to users."""
    is_async: bool = False
    reported: Callable[[Any], bool | None] = _nothing
    """What the server has reported of a setting that `first_time` turns on until the transaction ends or is aborted;
    None where it is not reported. A sync hand connects, if the connection is not yet connected.
    """
    connect: Callable[[Any], Any] | None = None
    """For async hands that connect when they are first used: an awaitable after which `reported` can be asked."""
