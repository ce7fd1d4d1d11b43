"""Counted attempts: how often a message's handler has failed, kept in the database so that a crash forgets nothing.

A failure is counted after the handler has raised. A handler that crashes its process can't be counted that way, so an
attempt at a message that was delivered before is marked in the database before its handler is called; a mark that is
found at the next delivery is an attempt that ended with its process. A message that is delivered for the first time
costs none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.consumer.transactions import Transactions
    from postroad.received import Received
    from postroad.stores.statements import Statements

__all__ = ["CRASHED", "Attempts", "PriorAttempts", "cut"]

CRASHED: Final = "the process ended while the handler ran"
LONGEST_ERROR: Final = 2000
BATCH: Final = 5000
TIMEOUT: Final = "100ms"
"""How long to wait for a row that another handler's transaction has locked. Messages are marked one after the other, so
the next ones wait, too.
"""


class PriorAttempts(NamedTuple):
    """The attempts at a message before this one."""

    attempts: int
    crashes: int
    """How many of those ended with their process."""
    error: str | None
    """The error of the last one."""


class Attempts:
    """The attempts of one consumer. Each method but `end` raises InboxUnavailable, or MessageBusy when the transaction
    of another handler has locked the row.
    """

    def __init__(self, transactions: Transactions, consumer: str) -> None:
        self._transactions = transactions
        self._consumer = consumer

    async def begin(self, message: Received) -> PriorAttempts | None:
        """Mark an attempt as begun; None when the message was processed before."""
        known = (self._consumer, message.identity)
        rows = await self._write("begin_attempt", (*known, message.type), known, CRASHED)
        return PriorAttempts(*rows[0]) if rows else None

    def end(self, tx: Any, message: Received) -> Any:
        """Remove the mark, in the handler's own transaction; to be awaited on an async connection."""
        return self._transactions.query_within(tx, "end_attempt", self._consumer, message.identity)

    async def unmark(self, identity: str) -> None:
        """Remove the mark without counting: the consumer was stopped, so the handler did not crash the process."""
        await self._transactions.query_alone("end_attempt", self._consumer, identity)

    async def count_failure(self, message: Received, reason: str) -> int | None:
        """Count a failed attempt; how many there are now, or None when the message was processed after all."""
        known = (self._consumer, message.identity)
        rows = await self._write("fail_attempt", (*known, message.type, cut(reason)), known)
        return int(rows[0][0]) if rows else None

    async def record_dead(self, identity: str, type: str, reason: str) -> None:
        """Record that the message is in the dead-letter queue."""
        await self._write("note_dead", (self._consumer, identity, type, cut(reason)))

    async def _write(self, query: str, values: tuple[Any, ...], processed: tuple[str, ...] = (), *rest: Any) -> Any:
        """`processed` names the row of the inbox to look up."""

        def values_for(statements: Statements) -> tuple[Any, ...]:
            return statements.attempt_values(TIMEOUT, values, processed=processed, rest=rest)

        return await self._transactions.query_alone(query, values_for=values_for)

    async def delete_processed(self, older_than: timedelta) -> int:
        """Delete inbox rows that are older, and their attempts; how many inbox rows were deleted."""
        seconds = older_than.total_seconds()

        async def batches(query: str) -> int:
            deleted = 0
            while True:
                rows = await self._transactions.query_alone(
                    query,
                    values_for=lambda statements: (self._consumer, statements.interval(seconds), BATCH),
                )
                deleted += len(rows)
                if len(rows) < BATCH:
                    return deleted

        await batches("forget_attempts")
        return await batches("forget_processed")


def cut(error: str) -> str:
    """What is kept of an error text: without NUL and broken Unicode, which databases refuse, and not too long."""
    return error.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:LONGEST_ERROR]
