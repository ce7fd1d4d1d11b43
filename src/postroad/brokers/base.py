"""The contract of a publisher: what the relay asks of every destination, and nothing more.

tests/contracts/test_publishers.py holds every broker to these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["Publisher"]


class Publisher(Protocol):
    """A destination. One publisher serves all lanes of a sink, so `publish` may run several times at once."""

    @property
    def name(self) -> str:
        """The destination as logs call it, without any secret."""
        ...

    async def open(self) -> None:
        """Make the connection. Raises BrokerUnavailable when that fails; it may be called again."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Hand the messages to the broker, in this order, and wait until it has taken them.

        Every message without a Refusal is durably confirmed when this returns. Raises BrokerUnavailable if the broker
        could not be asked; it carries which messages were confirmed or refused before, so that those are not sent
        again. The next call makes the connection anew.
        """
        ...

    async def close(self) -> None:
        """Let go of the connection. What `publish` has not returned for is not confirmed."""
