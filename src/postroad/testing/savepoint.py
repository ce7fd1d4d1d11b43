"""Runs steps in a savepoint of the test's transaction, which is never committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from postroad.consumer.transactions import Steps
    from postroad.stores.connections.adapter import ConnectionAdapter

__all__ = ["in_savepoint", "inside_transaction"]

_OUTER: Final = "postroad_deliveries"
_INNER: Final = "postroad_attempt"


def inside_transaction(adapter: ConnectionAdapter, connection: Any, work: Steps) -> Steps:
    """Run the steps in the connection's own transaction, which is begun first where a SAVEPOINT would begin it:
    SQLite's would then be committed by its RELEASE.
    """
    target = adapter.ready(connection)
    yield adapter.execute(target, f"savepoint {_OUTER}")
    result = yield from work
    yield adapter.execute(target, f"release savepoint {_OUTER}")
    return result


def in_savepoint(adapter: ConnectionAdapter, connection: Any, work: Steps) -> Steps:
    """Run the steps in a savepoint; after an error, nothing of them is left."""
    if adapter.savepoint is None:
        manager: Any = _SQLSavepoint(adapter, adapter.ready(connection))
    else:
        manager = adapter.savepoint(connection)
    if adapter.is_async:
        enter, leave = manager.__aenter__, manager.__aexit__
    else:
        enter, leave = manager.__enter__, manager.__exit__
    yield enter()
    try:
        result = yield from work
    except BaseException as error:
        yield leave(type(error), error, error.__traceback__)
        raise
    yield leave(None, None, None)
    return result


class _SQLSavepoint:
    """A savepoint of the database alone. On an async connection, what its methods return is awaited."""

    def __init__(self, adapter: ConnectionAdapter, target: Any) -> None:
        self._adapter = adapter
        self._target = target

    def __enter__(self) -> Any:
        return self._execute(f"savepoint {_INNER}")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> Any:
        return self._execute(f"release savepoint {_INNER}" if error is None else f"rollback to savepoint {_INNER}")

    __aenter__ = __enter__
    __aexit__ = __exit__

    def _execute(self, sql: str) -> Any:
        return self._adapter.execute(self._target, sql)
