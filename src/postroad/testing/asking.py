"""Running queries on whatever connection a test has, sync or async. Nothing is bound, nothing committed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from postroad.errors import UnsupportedConnection
from postroad.stores.connections import NeverAwaited
from postroad.stores.dialects import POSTGRESQL, SQLITE, dialect_named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from postroad.stores.dialects import SQLDialect

__all__ = ["Answer", "ask"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Rows = list[tuple[Any, ...]]


class Answer(Generic[T_co]):
    """What is asked of an async connection: await it. One that was never awaited has checked nothing, and says so."""

    __slots__ = ("_asked", "_work")

    def __init__(self, work: Callable[[], Awaitable[T_co]]) -> None:
        self._work = work
        self._asked = False

    def __await__(self) -> Generator[Any, None, T_co]:
        self._asked = True
        return self._work().__await__()

    def __del__(self) -> None:
        if not self._asked:
            text = "nothing was checked: on an async connection this must be awaited"
            warnings.warn(text, NeverAwaited, stacklevel=2, source=self)


class _Way(msgspec.Struct, frozen=True):
    """How one kind of connection is asked."""

    dialect: Callable[[Any], SQLDialect]
    fetch: Callable[[Any, str], Any]
    is_async: bool = False


def ask(connection: Any, sql: Callable[[SQLDialect], Sequence[str]], then: Callable[[Rows], T]) -> T | Answer[T]:
    """Run the queries for this connection's kind of database, and make something of the rows of all of them, now or
    when awaited.
    """
    cls = type(connection)
    if cls.__name__ in {"scoped_session", "async_scoped_session"}:
        connection = connection()  # the session of the thread or task that calls
    way = _way_of(type(connection))
    texts = sql(way.dialect(connection))
    if not way.is_async:
        return then([row for text in texts for row in _tuples(way.fetch(connection, text))])

    async def fetch() -> T:
        return then([row for text in texts for row in _tuples(await way.fetch(connection, text))])

    return Answer(fetch)


def _tuples(rows: Iterable[Any]) -> Rows:
    """Whatever kind of row the connection was told to give."""
    return [tuple(row.values() if isinstance(row, Mapping) else row) for row in rows]


def _way_of(cls: type) -> _Way:
    for base in cls.__mro__:
        way = _WAYS.get((base.__module__.partition(".")[0], base.__name__))
        if way is not None:
            return way
    raise UnsupportedConnection(f"{cls.__module__}.{cls.__qualname__} is no connection that postroad.testing can ask")


# -- one function for each kind --------------------------------------------------------------------------------------


def _postgresql(_: object) -> SQLDialect:
    return POSTGRESQL


def _sqlite(_: object) -> SQLDialect:
    return SQLITE


def _of_bind(connection: Any) -> SQLDialect:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return dialect_named(bind.dialect.name)


def _of_vendor(connection: Any) -> SQLDialect:
    return dialect_named(connection.vendor)


def _fetch(connection: Any, sql: str) -> Any:
    return connection.execute(sql).fetchall()


async def _fetch_async(connection: Any, sql: str) -> Any:
    return await (await connection.execute(sql)).fetchall()


def _fetch_from_session(session: Any, sql: str) -> Any:
    session.flush()  # what its entities recorded is to be seen too
    return _fetch_from_connection(session.connection(), sql)


def _fetch_from_connection(connection: Any, sql: str) -> Any:
    return connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).all()


def _fetch_from_django(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


_WAYS = {
    ("sqlite3", "Connection"): _Way(_sqlite, _fetch),
    ("aiosqlite", "Connection"): _Way(_sqlite, _fetch_async, is_async=True),
    ("asyncpg", "Connection"): _Way(_postgresql, lambda each, sql: each.fetch(sql), is_async=True),
    ("asyncpg", "PoolConnectionProxy"): _Way(_postgresql, lambda each, sql: each.fetch(sql), is_async=True),
    ("psycopg", "Connection"): _Way(_postgresql, _fetch),
    ("psycopg", "AsyncConnection"): _Way(_postgresql, _fetch_async, is_async=True),
    ("sqlalchemy", "Connection"): _Way(_of_bind, _fetch_from_connection),
    ("sqlalchemy", "Session"): _Way(_of_bind, _fetch_from_session),
    ("sqlalchemy", "AsyncConnection"): _Way(
        _of_bind, lambda each, sql: each.run_sync(_fetch_from_connection, sql), is_async=True
    ),
    ("sqlalchemy", "AsyncSession"): _Way(
        _of_bind, lambda each, sql: each.run_sync(_fetch_from_session, sql), is_async=True
    ),
    ("django", "BaseDatabaseWrapper"): _Way(_of_vendor, _fetch_from_django),
    ("django", "ConnectionProxy"): _Way(_of_vendor, _fetch_from_django),
}
