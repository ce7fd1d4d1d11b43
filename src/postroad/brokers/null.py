"""A destination that takes everything and keeps nothing: for measuring the road itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["NullPublisher"]


class NullPublisher:
    """Confirms at once."""

    name = "null://"
    destination = "null://"

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Take them."""
        return ()

    async def close(self) -> None:
        """There is nothing to let go of."""
