"""Connections and transactions that are left quickly after an error or a cancellation.

asyncpg asks the server to cancel the statement, and releases the connection only after the server has answered. If the
network is broken, that would take as long as a statement may take; here it takes at most a second.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["acquired", "holder_named", "in_transaction"]

CANCEL_SECONDS: Final = 1.0


@asynccontextmanager
async def acquired(pool: Any) -> AsyncIterator[Any]:
    """A connection of the pool, released at the end of the block."""
    connection = await pool.acquire()
    try:
        yield connection
    except BaseException:
        with suppress(Exception):  # then the connection was closed, and the pool makes another
            await pool.release(connection, timeout=CANCEL_SECONDS)
        raise
    finally:
        await pool.release(connection)  # a no-op the second time


@asynccontextmanager
async def in_transaction(connection: Any, *, one_snapshot: bool = False) -> AsyncIterator[None]:
    """A transaction, committed unless the block fails. `one_snapshot`: one that reads only, from a single snapshot."""
    transaction = (
        connection.transaction(isolation="repeatable_read", readonly=True) if one_snapshot else connection.transaction()
    )
    await transaction.start()
    try:
        yield
    except BaseException:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await transaction.rollback()
        except Exception:
            connection.terminate()
        raise
    else:
        await transaction.commit()


@asynccontextmanager
async def holder_named(connection: Any, sql: Mapping[str, str], lock: str) -> AsyncIterator[None]:
    """Around a transaction that waits for a row of `locks`: if the wait times out, the error names the process."""
    try:
        yield
    except asyncpg.LockNotAvailableError as error:
        holder = await connection.fetchval(sql["lock_row_holder"], lock)
        if holder is None:
            raise
        raise StoreUnavailable(
            f"PostgreSQL: the row {lock!r} of the table locks is locked by {holder}, and the wait for it timed out; "
            "try again when that transaction has ended, or end it"
        ) from error
