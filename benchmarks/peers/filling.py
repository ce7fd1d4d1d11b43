"""A peer's backlog, made inside the server by a connection that is gone before the measuring begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.payload import transactions

if TYPE_CHECKING:
    import asyncpg


async def fill(pool: asyncpg.Pool[Any], insert: str, messages: int) -> None:
    """Run an INSERT for the numbers $1 to $2, as often as it takes, and let the planner know."""
    for first, last in transactions(messages):
        await pool.execute(insert, first, last)
    await pool.execute("analyze")
