"""The dead letters of a consumer, as operators work with them: what a letter is, and what a broker does with one.

A consumer stores a message that it gives up as a dead letter, at its broker, and records it in its database. The
database says which letters there are, and the broker has their contents. A subscriber that can give operators access to
its letters has `dead_letters()`, which returns a DeadLetterBox. `Admin.retry_dead_letters` and
`Admin.drop_dead_letters` use it, and so the command line and the console.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["CONSUMER_HEADER", "IDENTITY_HEADER", "REASON_HEADER", "DeadLetter", "DeadLetterBox"]

CONSUMER_HEADER: Final = "postroad-consumer"
"""The header of a dead letter that names the consumer."""
REASON_HEADER: Final = "postroad-reason"
IDENTITY_HEADER: Final = "postroad-identity"
"""The header with the identity under which the consumer's database has recorded the letter."""


class DeadLetter(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A dead letter as its broker has it."""

    place: str
    """Where it is: "queue stock.dead"."""
    body: bytes
    content_type: str
    headers: Mapping[str, str]
    """All of them: those of the message, and what the consumer has noted."""
    original: Any = None
    """The letter as the broker's own module knows it."""

    @property
    def identity(self) -> str | None:
        """What its record in the database has as its id; None for one that no consumer of postroad has written."""
        return self.headers.get(IDENTITY_HEADER)

    @property
    def consumer(self) -> str | None:
        """The name of the consumer that gave it up."""
        return self.headers.get(CONSUMER_HEADER)


class DeadLetterBox(Protocol):
    """Where the dead letters of one consumer are: a queue, a topic or a stream. One task uses it at a time."""

    @property
    def name(self) -> str:
        """Its name in logs and answers, without any secret."""
        ...

    async def open(self) -> None:
        """Connect. Declares nothing. Raises BrokerUnavailable."""

    def letters(self) -> AsyncIterator[DeadLetter]:
        """The letters that are there now, oldest first; of several with one identity, a broker that keeps what was
        retried gives the newest only. Some brokers give up to a bound, beyond which they can't look. Raises
        BrokerUnavailable.
        """
        ...

    async def retry(self, letter: DeadLetter) -> None:
        """Store the letter, with all its headers, where the consumer received its message from; then remove it from
        here, where the broker can do that. It is durably there when this returns. Raises BrokerUnavailable, and then
        the letter is still here. A crash between both steps leaves it in both places; the inbox ignores the second.
        """

    async def drop(self, letter: DeadLetter) -> None:
        """Remove the letter, where the broker can do that. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Disconnect. All letters that were neither retried nor dropped stay where they were."""
