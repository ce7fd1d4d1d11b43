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

__all__ = ["CRASHED", "Attempts", "Begun", "cut"]

CRASHED: Final = "the process ended while the handler ran"
LONGEST_ERROR: Final = 2000
BATCH: Final = 5000


class Begun(NamedTuple):
    """What is known of a message that was delivered before."""

    attempts: int
    crashes: int
    """How many of those ended with their process."""


class Attempts:
    """The attempts of one consumer."""

    def __init__(self, transactions: Transactions, consumer: str) -> None:
        self._transactions = transactions
        self._consumer = consumer

    async def begin(self, message: Received) -> Begun | None:
        """Mark that an attempt begins; None when the message was processed before."""
        known = (self._consumer, message.identity)
        rows = await self._transactions.ask("begin_attempt", message.id, *known, message.type, *known, CRASHED)
        return Begun(*rows[0]) if rows else None

    def ended(self, tx: Any, message: Received) -> Any:
        """Take the mark away, in the handler's own transaction."""
        return self._transactions.within(tx, "end_attempt", message.id, self._consumer, message.identity)

    async def failed(self, message: Received, reason: str) -> int:
        """An attempt has failed; how many there were."""
        values = (self._consumer, message.identity, message.type, cut(reason))
        rows = await self._transactions.ask("fail_attempt", message.id, *values)
        return int(rows[0][0])

    async def dead(self, identity: str, type: str, reason: str) -> None:
        """The message is among the dead letters."""
        await self._transactions.ask("note_dead", identity, self._consumer, identity, type, cut(reason))

    async def forget(self, older_than: timedelta) -> int:
        """Delete what was processed longer ago, and the attempts of that time; how many were processed."""
        seconds = older_than.total_seconds()

        async def batches(query: str) -> int:
            deleted = 0
            while True:
                rows = await self._transactions.ask(
                    query,
                    query,
                    values_for=lambda tongue: (
                        self._consumer,
                        f"{seconds} seconds" if tongue.dialect == "postgresql" else seconds * 1e6,
                        BATCH,
                    ),
                )
                deleted += len(rows)
                if len(rows) < BATCH:
                    return deleted

        await batches("forget_attempts")
        return await batches("forget_processed")


def cut(error: str) -> str:
    """What is kept of an error: databases take neither NUL nor broken Unicode, and nobody reads more."""
    return error.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:LONGEST_ERROR]
