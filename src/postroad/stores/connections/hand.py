"""What is to be known about one kind of connection in order to run a statement with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.stores.queries import Dialect
    from postroad.stores.statements import Placeholders, Statement

__all__ = ["Hand", "Tongue"]


class Tongue(NamedTuple):
    """What a driver understands: its database's SQL, with its own placeholders."""

    dialect: Dialect
    placeholders: Placeholders


def _nothing(_: Any) -> None:
    """What most drivers hear."""


class Hand(msgspec.Struct, frozen=True):
    """How statements are run with one kind of connection. A hand never commits and never connects to anything else."""

    ready: Callable[[Any], Any]
    """Raises ConnectionClosed or NoTransaction, and else gives what the statement is to be run on."""
    tongue: Callable[[Any], Tongue]
    run: Callable[[Any, Statement], Any]
    """Runs a statement in one round trip; an async hand gives an awaitable."""
    ask: Callable[[Any, Sequence[Statement]], Any]
    """Runs statements that all give rows, one after the other, and gives the rows of each; an async hand gives an
    awaitable. Rows are tuples, whatever the user has told the driver to give.
    """
    can_commit: Callable[[Any], bool | None]
    """Whether the connection's transaction is still open and no error has spoilt it, without asking the database; None
    when the driver can't tell.
    """
    is_async: bool = False
    omen: Callable[[Any], bool | None] = _nothing
    """Where `can_commit` can't tell: what the driver has heard of a setting that `first_time` turns on until the end of
    the transaction, and that is off again as soon as an error has spoilt the transaction; None if it hears of none.
    """
