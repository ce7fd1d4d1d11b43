"""The contracts of a broker: what the relay asks of a publisher and a consumer of a subscriber, and nothing more.

tests/contracts/test_publishers.py and test_subscribers.py hold every broker to these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["Delivery", "Publisher", "Subscriber"]


class Publisher(Protocol):
    """A destination. One publisher serves all lanes of a sink, so `publish` may run several times at once."""

    @property
    def name(self) -> str:
        """The destination as logs call it, without any secret."""
        ...

    @property
    def destination(self) -> str:
        """Where messages go, without any secret: the same text for the same place, whichever process asks.

        A sink keeps it, and a relay whose publisher has another one is refused. What changes nothing about who gets
        the messages (users, timeouts, the form of a message) is no part of it.
        """
        ...

    async def open(self) -> None:
        """Make the connection. Raises BrokerUnavailable when that fails; it may be called again.

        LoginRefused, which is one, says that the broker refuses the user or its password: it ends a relay that is being
        started, and no other.
        """

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Hand the messages to the broker, in this order, and wait until it has taken them.

        Every message without a Refusal is durably confirmed when this returns. Raises BrokerUnavailable if the broker
        could not be asked; it carries which messages were confirmed or refused before, so that those are not sent
        again. The next call makes the connection anew.
        """
        ...

    async def close(self) -> None:
        """Let go of the connection. What `publish` has not returned for is not confirmed."""


class Delivery(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A message that a broker has handed over, and of which it waits to hear."""

    session: object
    """The connection it came by. What was not acked when that ended comes again by another."""
    tag: int
    """Its number within the session, rising."""
    body: bytes
    headers: Mapping[str, Any] = {}
    content_type: str | None = None
    message_id: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    redelivered: bool = False
    """It was handed over before, and the broker has not heard what became of it."""
    unreadable: str | None = None
    """Why what stands beside its body can't be read."""
    original: Any = None
    """What its broker has beside the body, in the broker's own terms."""


class Subscriber(Protocol):
    """Where messages come from. One task receives; acks may come from anywhere in the loop, at any time."""

    @property
    def name(self) -> str:
        """The source as logs call it, without any secret."""
        ...

    async def open(self) -> None:
        """Connect, and begin to receive. Raises BrokerUnavailable when that fails; it may be called again.

        LoginRefused ends a consumer that is being started, and no other.
        """

    async def receive(self) -> Sequence[Delivery]:
        """Wait for messages, and give them in the broker's order: at least one, and no more than may be open at once.

        Raises BrokerUnavailable when the session has ended: what was not acked comes again after `open`.
        """
        ...

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """These are dealt with. An ack may get lost, and does when its session has ended: the message comes again."""

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """These were not begun: they are for anybody, at the place where they were."""

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Put the message, as it is and with these headers beside its own, where dead letters are kept.

        It is durably there when this returns, and has still to be acked. Raises BrokerUnavailable.
        """

    async def waiting(self) -> int:
        """How many messages there are that nobody was given yet. Raises BrokerUnavailable."""
        ...

    async def pause(self) -> None:
        """Receive no more, but hear acks. For good, until `open`. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Send the acks that are known, and let go of the connection. What was not acked is given back."""
