"""Runs statements on the connections that users already have, sync and async.

One file per driver has its adapter. Whatever the driver, the errors of postroad are the same, and any other error stays
the driver's own: users catch those to retry. Nothing here commits, and nothing opens a connection of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroad.stores.connections.adapter import State
from postroad.stores.connections.errors import as_ours
from postroad.stores.connections.kinds import adapter_for
from postroad.stores.connections.pending import Call, NeverAwaited, Pending
from postroad.stores.connections.savepoint import run_and_put, run_and_put_async
from postroad.stores.connections.typed import AsyncConnection, SyncConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from uuid import UUID

    from postroad.codecs.claim_check import Put
    from postroad.message import NewRow
    from postroad.schedule import Cancellation, Later
    from postroad.stores.connections.adapter import ConnectionAdapter
    from postroad.stores.statements import Query, Statement, Statements

__all__ = [
    "AsyncConnection",
    "NeverAwaited",
    "OurErrors",
    "Pending",
    "State",
    "SyncConnection",
    "add_through",
    "begin_example",
    "cancel_through",
    "query_at_once",
    "query_through",
    "reported_through",
    "state_through",
]

T = TypeVar("T")

_ADD = Call("outbox.add", undone="nothing was added for")
_CANCEL = Call("outbox.cancel", undone="nothing was canceled for")


# -- writing ---------------------------------------------------------------------------------------------------------


def add_through(
    connection: Any,
    schema: str,
    rows: Sequence[NewRow],
    result: T,
    *,
    later: Sequence[Later] = (),
    puts: Sequence[Put] = (),
) -> T | Pending[T]:
    """Write rows to the log, and `later` to the scheduled messages, in the connection's own transaction, now or when
    awaited, and return the result. `puts` are payloads that are stored elsewhere afterwards.
    """
    cls: type = type(connection)
    adapter = adapter_for(cls)
    target = adapter.ready(connection)
    statements: Sequence[Statement] = ()
    if later:
        statements = adapter.sql_style(target).statements(schema).add_later(rows, later)
    elif rows:
        statements = (adapter.sql_style(target).statements(schema).add(rows),)
    if adapter.is_async:
        return Pending(lambda: _run_async(adapter, connection, statements, schema, result, puts=puts), _ADD, result)
    with OurErrors(schema):
        if puts:
            run_and_put(adapter, target, statements, puts)
            return result
        for statement in statements:
            adapter.run(target, statement)
    return result


async def _run_async(
    adapter: ConnectionAdapter,
    connection: Any,
    statements: Sequence[Statement],
    schema: str,
    result: T,
    *,
    puts: Sequence[Put],
) -> T:
    target = adapter.ready(connection)  # checked again: the transaction may have ended since `add` was called
    with OurErrors(schema):
        if puts:
            await run_and_put_async(adapter, target, statements, puts)
            return result
        for statement in statements:
            await adapter.run(target, statement)
    return result


# -- querying --------------------------------------------------------------------------------------------------------


def cancel_through(connection: Any, schema: str, id: UUID) -> Cancellation | Pending[Cancellation]:
    """Cancel a message in the connection's own transaction, now or when awaited, unless it is too late."""
    return query_through(connection, schema, lambda statements: statements.cancel(id), _CANCEL, id)


def query_through(
    connection: Any, schema: str, query: Callable[[Statements], Query[T]], call: Call, about: object
) -> T | Pending[T]:
    """Run a query in the connection's own transaction, now or when awaited, and return its result."""
    cls: type = type(connection)
    adapter = adapter_for(cls)
    if not adapter.is_async:
        return _query(adapter, connection, schema, query)
    adapter.ready(connection)  # before it is awaited, too
    return Pending(lambda: _query_async(adapter, connection, schema, query), call, about)


def query_at_once(connection: Any, schema: str, query: Callable[[Statements], Query[T]]) -> T | Coroutine[Any, Any, T]:
    """The same for postroad's own code, which awaits every coroutine that it gets."""
    cls: type = type(connection)
    adapter = adapter_for(cls)
    return (_query_async if adapter.is_async else _query)(adapter, connection, schema, query)


def _query(adapter: ConnectionAdapter, connection: Any, schema: str, query: Callable[[Statements], Query[T]]) -> T:
    target = adapter.ready(connection)
    wanted = query(adapter.sql_style(target).statements(schema))
    with OurErrors(schema):
        return wanted.result(adapter.fetch(target, wanted.statements))


async def _query_async(
    adapter: ConnectionAdapter, connection: Any, schema: str, query: Callable[[Statements], Query[T]]
) -> T:
    target = adapter.ready(connection)
    wanted = query(adapter.sql_style(target).statements(schema))
    with OurErrors(schema):
        return wanted.result(await adapter.fetch(target, wanted.statements))


class OurErrors:
    """Turns a driver's error about our tables, or one that our SQL raised, into an error of postroad. A class and not a
    generator, because `add` is called often.
    """

    __slots__ = ("_schema",)

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            ours = as_ours(error, self._schema)
            if ours is not None:
                raise ours from error


# -- the state of a transaction --------------------------------------------------------------------------------------


def reported_through(connection: Any) -> bool | Awaitable[bool | None] | None:
    """The value of `ConnectionAdapter.reported` before `first_time`, for `state_through` to compare with."""
    cls: type = type(connection)
    adapter = adapter_for(cls)
    return _connected(adapter, connection) if adapter.connect else adapter.reported(connection)


async def _connected(adapter: ConnectionAdapter, connection: Any) -> bool | None:
    assert adapter.connect is not None  # noqa: S101 - checked by the caller
    await adapter.connect(connection)
    return adapter.reported(connection)


def state_through(connection: Any, before: bool | None) -> State:
    """The state of the transaction in which `first_time` was run, as far as the driver knows it."""
    cls: type = type(connection)
    adapter = adapter_for(cls)
    state = adapter.state(connection)
    return State.KEPT if state is State.OPEN and before is False and adapter.reported(connection) else state


def begin_example(connection: Any) -> str:
    """An example of a `begin` for connections of this kind."""
    cls: type = type(connection)
    return adapter_for(cls).begin_example
