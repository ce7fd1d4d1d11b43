"""The contracts of a broker: what the relay asks of a publisher and a consumer of a subscriber, and nothing more.

tests/contracts/test_publishers.py and test_subscribers.py test every broker against them. How a broker is registered is
in `registry`.
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
    """A destination. One publisher serves all lanes of a sink, so `publish` may run several times at once.

    A publisher may also have `in_order = True`. It then promises: of one key in one call, it takes a message only after
    it has taken the one before it. What is behind a message that it refuses, or that an outage keeps it from taking, it
    neither takes nor refuses, whatever happens in the call. The relay then publishes a page in one call. Without it,
    the relay publishes a key's next message only after the one before it was confirmed.
    """

    @property
    def name(self) -> str:
        """The destination's name in logs, without any secret."""
        ...

    @property
    def destination(self) -> str:
        """Where messages go, without any secret: the same text for the same place, in every process.

        A sink keeps it, and a relay whose publisher has another one is refused. Settings that do not change which
        consumers get the messages (users, timeouts, the form of a message) are not part of it.
        """
        ...

    async def open(self) -> None:
        """Connect. Raises BrokerUnavailable when that fails; it may be called again.

        LoginRefused, a BrokerUnavailable, means that the broker refuses the user or its password: it ends a relay only
        while that is being started.
        """

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Send the messages to the broker, in this order, and wait until it has answered for each.

        Every message without a Refusal is durably confirmed when this returns; with `in_order`, those behind a refused
        message of their key are not. Raises BrokerUnavailable if the broker
        can't be reached; it carries which messages were confirmed or refused before, so that those are not sent again.
        The next call connects again.
        """
        ...

    async def close(self) -> None:
        """Close the connection. Messages of a `publish` that has not returned are not confirmed."""


class Delivery(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A message that a broker has delivered, and that it expects an ack for."""

    session: object
    """The connection that delivered it. If it ends before the ack, the message is delivered again by another one."""
    tag: int
    """Its number within the session, rising."""
    body: bytes
    headers: Mapping[str, Any] = {}
    content_type: str | None = None
    message_id: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    redelivered: bool = False
    """It was delivered before, and the broker got no ack."""
    unreadable: str | None = None
    """Why its properties can't be decoded, or its body was not kept."""
    original: Any = None
    """The delivery as the broker's own module knows it."""


class Subscriber(Protocol):
    """A source of messages. One task receives; acks may come from any task of the loop, at any time."""

    @property
    def name(self) -> str:
        """The source's name in logs, without any secret."""
        ...

    async def open(self) -> None:
        """Connect, and begin to receive. Raises BrokerUnavailable when that fails; it may be called again.

        LoginRefused ends a consumer only while that is being started.
        """

    async def receive(self) -> Sequence[Delivery]:
        """Wait for messages, and return them in the broker's order: at least one, at most `prefetch`.

        Raises BrokerUnavailable when the session has ended: what was not acked comes again after `open`.
        """
        ...

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Ack these. An ack is lost when its session has ended: then the message is delivered again."""

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Requeue these, which were not begun, at the place where they were: any consumer may get them."""

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Store the message, unchanged and with these additional headers, as a dead letter.

        It is durably there when this returns, and has still to be acked. Raises BrokerUnavailable.
        """

    async def waiting(self) -> int:
        """How many messages wait to be received. Raises BrokerUnavailable."""
        ...

    async def pause(self) -> None:
        """Stop receiving until the next `open`; acks still work. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Send the acks that are due, and close the connection. What was not acked is requeued."""
