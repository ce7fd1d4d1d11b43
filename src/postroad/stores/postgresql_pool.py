"""How long a server is waited for by one who does not want its answer any more.

asyncpg asks the server to cancel, and gives a connection back only when the server has said that it did: a server that
is silent, because the way to it is broken, would be waited for as long as a statement may take.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["holder_named", "in_transaction", "lent"]

FAREWELL_SECONDS: Final = 1.0


@asynccontextmanager
async def lent(pool: Any) -> AsyncIterator[Any]:
    """A connection of the pool, until the block is over."""
    connection = await pool.acquire()
    try:
        yield connection
    except BaseException:
        with suppress(Exception):  # then it is gone, and the next one who asks has another
            await pool.release(connection, timeout=FAREWELL_SECONDS)
        raise
    finally:
        await pool.release(connection)  # which does nothing the second time


@asynccontextmanager
async def in_transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction, committed unless the block fails."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    except BaseException:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await transaction.rollback()
        except Exception:
            connection.terminate()
        raise
    else:
        await transaction.commit()


@asynccontextmanager
async def holder_named(connection: Any, sql: Mapping[str, str], lock: str) -> AsyncIterator[None]:
    """Around a transaction that waits for a row of `locks`: if it waits in vain, the error says for which process."""
    try:
        yield
    except asyncpg.LockNotAvailableError as error:
        holder = await connection.fetchval(sql["lock_row_holder"], lock)
        if holder is None:
            raise
        raise StoreUnavailable(
            f"PostgreSQL: the row {lock!r} of the table locks is locked by {holder}, and the wait for it is over; "
            "try again when that transaction has ended, or end it"
        ) from error
