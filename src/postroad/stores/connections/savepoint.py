"""Writes rows and then stores their payloads elsewhere, all or nothing, in the user's transaction.

The order is the rule: INSERT, then put. A payload that is in the store belongs to a transaction that has an id already,
so a sweep that waits for older transactions knows whether the row was committed. When the put fails, or is cancelled,
the rows are rolled back: an application that catches the error and commits must not commit a message without payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.codecs.claim_check import put_all, put_all_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.codecs.claim_check import Put
    from postroad.stores.connections.adapter import ConnectionAdapter
    from postroad.stores.statements import Statement

__all__ = ["run_and_put", "run_and_put_async"]

SAVEPOINT: Final = "savepoint postroad_add"
ROLLBACK: Final = "rollback to savepoint postroad_add"
RELEASE: Final = "release savepoint postroad_add"


def run_and_put(adapter: ConnectionAdapter, target: Any, statements: Sequence[Statement], puts: Sequence[Put]) -> None:
    """Run the statements, then store the payloads; if either fails, neither has happened."""
    adapter.execute(target, SAVEPOINT)
    try:
        for statement in statements:
            adapter.run(target, statement)
        put_all(puts)
    except BaseException:
        adapter.execute(target, ROLLBACK)
        adapter.execute(target, RELEASE)
        raise
    adapter.execute(target, RELEASE)


async def run_and_put_async(
    adapter: ConnectionAdapter, target: Any, statements: Sequence[Statement], puts: Sequence[Put]
) -> None:
    """The same on an async connection."""
    await adapter.execute(target, SAVEPOINT)
    try:
        for statement in statements:
            await adapter.run(target, statement)
        await put_all_async(puts)
    except BaseException:
        await adapter.execute(target, ROLLBACK)
        await adapter.execute(target, RELEASE)
        raise
    await adapter.execute(target, RELEASE)
