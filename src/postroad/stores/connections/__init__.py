"""What users already have: their connections, known by their class, and two hands to run a statement with them.

No driver is imported here. A connection's class says which driver it comes from, and that driver is loaded already, or
the object could not exist. A hand never commits and never opens a connection of its own.
"""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar

import msgspec

from postroad.errors import ConnectionClosed, NoTransaction, UnknownConnection
from postroad.stores.migrations import not_migrated
from postroad.stores.statements import Statement, add_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from postroad.message import NewRow

__all__ = ["AsyncConnection", "NeverAwaited", "Pending", "SyncConnection", "add_through"]

logger = logging.getLogger("postroad")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SyncSQLite(Protocol):
    """An sqlite3.Connection."""

    @property
    def in_transaction(self) -> bool: ...
    def executemany(self, sql: str, parameters: Any, /) -> Any: ...


class InMemory(Protocol):
    """A transaction of a MemoryStore."""

    rows: list[NewRow]


class AsyncPG(Protocol):
    """An asyncpg connection, or the pool's proxy for one."""

    def is_in_transaction(self) -> bool: ...
    async def execute(self, query: str, *args: Any) -> str: ...


SyncConnection = SyncSQLite | InMemory
AsyncConnection = AsyncPG


class NeverAwaited(RuntimeWarning):
    """A message was never added, because what `add` returned was never awaited."""


class Pending(Generic[T_co]):
    """What `add` returns on an async connection: await it, once, to add the message.

    It can't be taken for a truth value, and it complains when it is dropped, because forgetting `await` would lose the
    message.
    """

    __slots__ = ("_result", "_started", "_work")

    def __init__(self, work: Callable[[], Awaitable[None]], result: T_co) -> None:
        self._work = work
        self._result = result
        self._started = False

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._started:
            raise RuntimeError("this was awaited already; call add again to add another message")
        self._started = True
        yield from self._work().__await__()
        return self._result

    def __bool__(self) -> NoReturn:
        raise TypeError("an add on an async connection was used as a truth value; write: await outbox.add(...)")

    def __del__(self) -> None:
        if not self._started:
            text = f"nothing was added for {self._result}: outbox.add on an async connection was never awaited"
            logger.error(text)
            warnings.warn(text, NeverAwaited, stacklevel=2, source=self)


class Hand(msgspec.Struct, frozen=True):
    """How statements are run with one kind of connection."""

    dialect: Literal["postgresql", "sqlite", "memory"]
    check: Callable[[Any], None]
    """Raises ConnectionClosed or NoTransaction."""
    run: Callable[[Any, Statement], Any]
    """Runs a statement; on an async connection it gives an awaitable."""
    is_async: bool
    not_migrated: Callable[[Exception], bool]


def add_through(connection: Any, schema: str, rows: Sequence[NewRow], result: T) -> T | Pending[T]:
    """Write rows to the log in the connection's own transaction, now or when it is awaited, and give the result."""
    cls: type = type(connection)
    hand = _hand_for(cls)
    hand.check(connection)
    if hand.dialect == "memory":
        connection.rows.extend(rows)
        return result
    if not rows:
        return result if not hand.is_async else Pending(_nothing, result)
    statement = add_rows(hand.dialect, schema, rows)
    if hand.is_async:
        return Pending(lambda: _run_async(hand, connection, statement, schema), result)
    try:
        hand.run(connection, statement)
    except Exception as error:
        if hand.not_migrated(error):
            raise not_migrated(schema) from error
        raise
    return result


async def _run_async(hand: Hand, connection: Any, statement: Statement, schema: str) -> None:
    try:
        await hand.run(connection, statement)
    except Exception as error:
        if hand.not_migrated(error):
            raise not_migrated(schema) from error
        raise


async def _nothing() -> None:
    """There was nothing to add."""


@cache
def _hand_for(cls: type) -> Hand:
    for base in cls.__mro__:
        hand = _HANDS.get((base.__module__.partition(".")[0], base.__name__))
        if hand is not None:
            return hand
    if (cls.__module__.partition(".")[0], cls.__name__) == ("asyncpg", "Pool"):
        raise UnknownConnection(
            "an asyncpg pool is no connection; use one of its own: async with pool.acquire() as connection"
        )
    raise UnknownConnection(
        f"{cls.__module__}.{cls.__qualname__} is no connection that postroad knows; "
        "it takes an sqlite3.Connection, or an asyncpg connection (pip install 'postroad[postgresql]')"
    )


# -- sqlite3 ---------------------------------------------------------------------------------------------------------


def _check_sqlite3(connection: Any) -> None:
    try:
        connection.total_changes  # noqa: B018 - asking is the test: it raises on a closed connection
    except Exception as error:
        raise ConnectionClosed(f"the SQLite connection can't be used: {error}") from error
    # Python opens a transaction before an INSERT by itself, unless it was told not to.
    autocommit = getattr(connection, "autocommit", None)
    commits_by_itself = autocommit is True or (autocommit is not False and connection.isolation_level is None)
    if commits_by_itself and not connection.in_transaction:
        raise NoTransaction(
            "the SQLite connection is in autocommit mode and in no transaction, so the message would be committed by "
            "itself; execute BEGIN first, or leave isolation_level as it is by default"
        )


def _run_sqlite3(connection: Any, statement: Statement) -> None:
    connection.executemany(statement.sql, statement.values)


def _not_migrated_sqlite3(error: Exception) -> bool:
    return "no such table" in str(error)


# -- asyncpg ---------------------------------------------------------------------------------------------------------


def _check_asyncpg(connection: Any) -> None:
    if connection.is_closed():
        raise ConnectionClosed("the asyncpg connection is closed")
    if not connection.is_in_transaction():
        raise NoTransaction(
            "the asyncpg connection is in no transaction, so the message would be committed by itself; "
            "add it inside: async with connection.transaction()"
        )


def _run_asyncpg(connection: Any, statement: Statement) -> Any:
    return connection.execute(statement.sql, *statement.values)


def _not_migrated_asyncpg(error: Exception) -> bool:
    return type(error).__name__ in {"UndefinedTableError", "InvalidSchemaNameError"}


# -- memory ----------------------------------------------------------------------------------------------------------


def _check_memory(transaction: Any) -> None:
    if not transaction.open:
        raise NoTransaction("this transaction of the memory store has ended; begin another")


def _run_nothing(connection: Any, statement: Statement) -> None:
    raise NotImplementedError("the memory store has no statements")


_SQLITE3 = Hand("sqlite", _check_sqlite3, _run_sqlite3, is_async=False, not_migrated=_not_migrated_sqlite3)
_ASYNCPG = Hand("postgresql", _check_asyncpg, _run_asyncpg, is_async=True, not_migrated=_not_migrated_asyncpg)
_MEMORY = Hand("memory", _check_memory, _run_nothing, is_async=False, not_migrated=lambda _: False)

_HANDS = {
    ("sqlite3", "Connection"): _SQLITE3,
    ("asyncpg", "Connection"): _ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): _ASYNCPG,
    ("postroad", "MemoryTransaction"): _MEMORY,
}
