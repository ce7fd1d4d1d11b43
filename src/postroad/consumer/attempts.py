"""How often a message was tried: kept in the database, so that it survives the death of the process.

A failure is counted after it. A handler that kills its process counts nothing, so before the handler of a message that
was delivered before a mark is made, and a mark that is found at the next delivery is an attempt that ended with its
process. A message that is delivered for the first time pays for none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.consumer.transactions import Transactions
    from postroad.received import Received
    from postroad.stores.statements import Statements

__all__ = ["CRASHED", "Attempts", "Begun", "cut"]

CRASHED: Final = "the process ended while the handler ran"
LONGEST_ERROR: Final = 2000
BATCH: Final = 5000
TIMEOUT: Final = "100ms"
"""How long a row is waited for that another's handler has locked; meanwhile other messages can't make their mark."""


class Begun(NamedTuple):
    """What is known of a message that was delivered before."""

    attempts: int
    crashes: int
    """How many of those ended with their process."""
    error: str | None
    """Of the last of them."""


class Attempts:
    """The attempts of one consumer. What writes them raises Busy when another's handler has locked the row."""

    def __init__(self, transactions: Transactions, consumer: str) -> None:
        self._transactions = transactions
        self._consumer = consumer

    async def begin(self, message: Received) -> Begun | None:
        """Mark that an attempt begins; None when the message was processed before."""
        known = (self._consumer, message.identity)
        rows = await self._write("begin_attempt", message.id, (*known, message.type), known, CRASHED)
        return Begun(*rows[0]) if rows else None

    def ended(self, tx: Any, message: Received) -> Any:
        """Take the mark away, in the handler's own transaction."""
        return self._transactions.within(tx, "end_attempt", message.id, self._consumer, message.identity)

    async def broken_off(self, identity: str) -> None:
        """Take the mark away: the consumer was stopped, and the handler has not ended its process."""
        await self._transactions.ask("end_attempt", identity, self._consumer, identity)

    async def failed(self, message: Received, reason: str) -> int | None:
        """An attempt has failed; how many there were, or None when the message was processed after all."""
        known = (self._consumer, message.identity)
        rows = await self._write("fail_attempt", message.id, (*known, message.type, cut(reason)), known)
        return int(rows[0][0]) if rows else None

    async def dead(self, identity: str, type: str, reason: str) -> None:
        """The message is among the dead letters."""
        await self._write("note_dead", identity, (self._consumer, identity, type, cut(reason)))

    async def _write(
        self, query: str, subject: str, values: tuple[Any, ...], processed: tuple[str, ...] = (), *rest: Any
    ) -> Any:
        """`processed` says which row of the inbox to look for."""

        def values_for(statements: Statements) -> tuple[Any, ...]:
            return statements.attempt_values(TIMEOUT, values, processed=processed, rest=rest)

        return await self._transactions.ask(query, subject, values_for=values_for)

    async def forget(self, older_than: timedelta) -> int:
        """Delete what was processed longer ago, and the attempts of that time; how many were processed."""
        seconds = older_than.total_seconds()

        async def batches(query: str) -> int:
            deleted = 0
            while True:
                rows = await self._transactions.ask(
                    query,
                    query,
                    values_for=lambda statements: (self._consumer, statements.interval(seconds), BATCH),
                )
                deleted += len(rows)
                if len(rows) < BATCH:
                    return deleted

        await batches("forget_attempts")
        return await batches("forget_processed")


def cut(error: str) -> str:
    """What is kept of an error: databases take neither NUL nor broken Unicode, and nobody reads more."""
    return error.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:LONGEST_ERROR]
