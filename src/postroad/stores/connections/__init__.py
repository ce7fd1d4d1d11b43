"""What users already have: their connections, and two hands to run a statement with them, one sync and one async.

One file per driver says what differs. Whatever the driver, the errors of postroad are the same, and any other error
stays the driver's own: users catch those to retry. Nothing here commits, and nothing opens a connection of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import NoTransaction
from postroad.stores.connections.kinds import hand_for
from postroad.stores.connections.missing import table_is_missing
from postroad.stores.connections.pending import NeverAwaited, Pending
from postroad.stores.connections.typed import AsyncConnection, SyncConnection
from postroad.stores.memory import MemoryTransaction
from postroad.stores.migrations import not_migrated
from postroad.stores.statements import add_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import NewRow
    from postroad.stores.connections.hand import Hand
    from postroad.stores.statements import Statement

__all__ = ["AsyncConnection", "NeverAwaited", "Pending", "SyncConnection", "add_through"]

T = TypeVar("T")


def add_through(connection: Any, schema: str, rows: Sequence[NewRow], result: T) -> T | Pending[T]:
    """Write rows to the log in the connection's own transaction, now or when it is awaited, and give the result."""
    if isinstance(connection, MemoryTransaction):
        return _add_in_memory(connection, rows, result)
    cls: type = type(connection)
    hand = hand_for(cls)
    target = hand.ready(connection)
    if not rows:
        return Pending(_nothing, result) if hand.is_async else result
    statement = add_rows(*hand.tongue(target), schema, rows)
    if hand.is_async:
        return Pending(lambda: _run_async(hand, connection, statement, schema), result)
    _run(hand, target, statement, schema)
    return result


def _run(hand: Hand, target: Any, statement: Statement, schema: str) -> None:
    try:
        hand.run(target, statement)
    except Exception as error:
        if table_is_missing(error, schema):
            raise not_migrated(schema) from error
        raise


async def _run_async(hand: Hand, connection: Any, statement: Statement, schema: str) -> None:
    target = hand.ready(connection)  # asked again: the transaction may have ended since `add` was called
    try:
        await hand.run(target, statement)
    except Exception as error:
        if table_is_missing(error, schema):
            raise not_migrated(schema) from error
        raise


async def _nothing() -> None:
    """There was nothing to add."""


def _add_in_memory(transaction: MemoryTransaction, rows: Sequence[NewRow], result: T) -> T:
    if not transaction.open:
        raise NoTransaction("this transaction of the memory store has ended; begin another")
    transaction.rows.extend(rows)
    return result
