"""Copies of dead messages that wait for another sink: the setting `dead_letter_sink`.

`Store.record` writes a copy in the transaction that records the death, so there is no death without its copy. The
relays of the other sink publish it, wherever they run, and delete it when it is confirmed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.message import StoredMessage

__all__ = ["Copies", "Copy", "Postponed"]


class Copy(msgspec.Struct, frozen=True):
    """A dead message, of which the sink is to get a copy."""

    message: StoredMessage
    id: UUID
    """The copy's own, however often it is published."""
    dead_in: str
    """The sink in which the message died."""
    attempts: int
    """How many attempts it had there."""
    error: str
    died_at_us: int
    """Microseconds since 1970."""
    tries: int
    """How often the copy itself was refused."""

    @property
    def died_at(self) -> datetime:
        """When the message died."""
        return datetime.fromtimestamp(self.died_at_us / 1e6, UTC)


class Postponed(msgspec.Struct, frozen=True):
    """A copy that was refused, and is published again."""

    id: UUID
    due_in: float
    counted: bool
    """Whether the refusal was about this copy, and not about its route."""


class Copies(Protocol):
    """The copies that wait. Raises StoreUnavailable when the database is unavailable.

    These calls are not fenced: should two relays publish a copy, it is the same copy with the same id, and it makes no
    difference which of them deletes it.
    """

    async def due(self, sink: str, limit: int) -> Sequence[Copy]:
        """The copies for this sink that may be published now, at most so many, in the order of the deaths."""
        ...

    async def settle(self, sink: str, *, done: Sequence[UUID], postponed: Sequence[Postponed]) -> None:
        """Delete copies of this sink by their ids, and postpone others. Those that are not there any more, or that a
        later death has replaced, are left out.
        """

    async def is_sink(self, sink: str) -> bool:
        """Whether the database has a sink of this name, which can publish copies."""
        ...
