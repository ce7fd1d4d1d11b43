"""What users already have: their connections, and two hands to run a statement with them, one sync and one async.

One file per driver says what differs. Whatever the driver, the errors of postroad are the same, and any other error
stays the driver's own: users catch those to retry. Nothing here commits, and nothing opens a connection of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import NoTransaction
from postroad.stores.connections.adapter import State
from postroad.stores.connections.kinds import hand_for
from postroad.stores.connections.missing import as_not_migrated
from postroad.stores.connections.pending import Call, NeverAwaited, Pending
from postroad.stores.connections.refused import as_refused
from postroad.stores.connections.typed import AsyncConnection, SyncConnection
from postroad.stores.memory import MemoryTransaction
from postroad.stores.statements import add_rows, add_rows_and_later, cancel_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Cancellation, Later
    from postroad.stores.connections.adapter import ConnectionAdapter, SQLStyle
    from postroad.stores.statements import Question, Statement

__all__ = [
    "AsyncConnection",
    "NeverAwaited",
    "Pending",
    "State",
    "SyncConnection",
    "add_through",
    "ask_through",
    "cancel_through",
    "idiom_of",
    "reported_through",
    "state_through",
]

T = TypeVar("T")

_ADD = Call("outbox.add", undone="nothing was added for")
_CANCEL = Call("outbox.cancel", undone="nothing was canceled for")


# -- writing ---------------------------------------------------------------------------------------------------------


def add_through(
    connection: Any, schema: str, rows: Sequence[NewRow], result: T, *, later: Sequence[Later] = ()
) -> T | Pending[T]:
    """Write rows to the log, and beside it what is for later, in the connection's own transaction, now or when it is
    awaited, and give the result.
    """
    if isinstance(connection, MemoryTransaction):
        return _add_in_memory(connection, rows, later, result)
    cls: type = type(connection)
    hand = hand_for(cls)
    target = hand.ready(connection)
    statements: Sequence[Statement] = ()
    if later:
        statements = add_rows_and_later(*hand.tongue(target), schema, rows, later)
    elif rows:
        statements = (add_rows(*hand.tongue(target), schema, rows),)
    if hand.is_async:
        return Pending(lambda: _run_async(hand, connection, statements, schema, result), _ADD, result)
    with _ErrorsNamed(schema):
        for statement in statements:
            hand.run(target, statement)
    return result


async def _run_async(
    hand: ConnectionAdapter, connection: Any, statements: Sequence[Statement], schema: str, result: T
) -> T:
    target = hand.ready(connection)  # asked again: the transaction may have ended since `add` was called
    with _ErrorsNamed(schema):
        for statement in statements:
            await hand.run(target, statement)
    return result


# -- asking ----------------------------------------------------------------------------------------------------------


def cancel_through(connection: Any, schema: str, id: UUID) -> Cancellation | Pending[Cancellation]:
    """Take a message back in the connection's own transaction, now or when it is awaited, unless it is too late."""
    if isinstance(connection, MemoryTransaction):
        return _still_open(connection).cancel(id)
    return ask_through(connection, schema, lambda tongue: cancel_message(*tongue, schema, id), _CANCEL, id)


def ask_through(
    connection: Any, schema: str, question: Callable[[SQLStyle], Question[T]], call: Call, about: object
) -> T | Pending[T]:
    """What the database answers in the connection's own transaction, now or when it is awaited."""
    cls: type = type(connection)
    hand = hand_for(cls)
    target = hand.ready(connection)
    asked = question(hand.tongue(target))
    if hand.is_async:
        return Pending(lambda: _ask_async(hand, connection, asked, schema), call, about)
    with _ErrorsNamed(schema):
        return asked.answer(hand.ask(target, asked.statements))


def reported_through(connection: Any) -> bool | Awaitable[bool | None] | None:
    """What `state_through` has to know from before `first_time`: see `Hand.reported`."""
    cls: type = type(connection)
    hand = hand_for(cls)
    return _connected(hand, connection) if hand.connect else hand.reported(connection)


async def _connected(hand: ConnectionAdapter, connection: Any) -> bool | None:
    assert hand.connect is not None  # noqa: S101 - asked before
    await hand.connect(connection)
    return hand.reported(connection)


def state_through(connection: Any, before: bool | None) -> State:
    """The state of the transaction in which `first_time` was asked, as far as the driver knows it."""
    cls: type = type(connection)
    hand = hand_for(cls)
    state = hand.state(connection)
    return State.KEPT if state is State.OPEN and before is False and hand.reported(connection) else state


def idiom_of(connection: Any) -> str:
    """How a `begin` for connections of this kind is written."""
    cls: type = type(connection)
    return hand_for(cls).idiom


async def _ask_async(hand: ConnectionAdapter, connection: Any, asked: Question[T], schema: str) -> T:
    target = hand.ready(connection)
    with _ErrorsNamed(schema):
        return asked.answer(await hand.ask(target, asked.statements))


class _ErrorsNamed:
    """Around a statement: errors that our tables are missing, and those that our SQL raises, become our own. A class,
    because `add` is called often.
    """

    __slots__ = ("_schema",)

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            named = as_refused(error, self._schema) or as_not_migrated(error, self._schema)
            if named is not None:
                raise named from error


# -- in memory -------------------------------------------------------------------------------------------------------


def _add_in_memory(transaction: MemoryTransaction, rows: Sequence[NewRow], later: Sequence[Later], result: T) -> T:
    _still_open(transaction).add(rows, later)
    return result


def _still_open(transaction: MemoryTransaction) -> MemoryTransaction:
    if not transaction.open:
        raise NoTransaction("this transaction of the memory store has ended; begin another")
    return transaction
