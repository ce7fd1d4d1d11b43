"""The contracts of a broker: what the relay asks of a publisher and a consumer of a subscriber, and nothing more.

tests/contracts/test_publishers.py and test_subscribers.py test every broker against them. How a broker is registered is
in `registry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["Confirmed", "Delivery", "Durability", "LaneEpoch", "Publisher", "Revoked", "Subscriber"]


class Durability(msgspec.Struct, frozen=True):
    """What "durably confirmed" means at a destination, as far as it can be known when it is opened."""

    meaning: str
    """What a confirmed message is: "written by all in-sync replicas (at least 2)"."""
    warnings: Sequence[str] = ()
    """What weakens it, each with the setting to change: "min.insync.replicas is 1: …"."""


class Confirmed(NamedTuple):
    """What a `publish` that was cancelled may raise CancelledError with: what was confirmed before."""

    positions: frozenset[int]


class LaneEpoch(NamedTuple):
    """The owner of a lane. Each time a lane is taken, its epoch rises, so a destination can fence earlier owners."""

    sink: str
    lane: int
    epoch: int


class Publisher(Protocol):
    """A destination. One publisher serves all lanes of a sink, so `publish` may run several times at once.

    A publisher may also have `in_order = True`. It then promises: of one key in one call, it takes a message only after
    it has taken the one before it. What is behind a message that it refuses, or that an outage keeps it from taking, it
    neither takes nor refuses, whatever happens in the call. The relay then publishes a page in one call. Without it,
    the relay publishes a key's next message only after the one before it was confirmed.

    And it may have `for_lane(lane: LaneEpoch) -> Publisher`, for destinations that can fence a relay which has lost a
    lane and does not know it yet. It returns at once, without connecting. The relay then publishes the messages of the
    lane through what it returns, in calls that follow each other, and closes that when the lane is no longer its own or
    has a new epoch. It is not opened: its `publish` connects, and raises LeaseLost if a later owner has fenced it. Then
    the relay gives the lane up, and counts no attempt. The breaker probes the sink's own publisher by `open`.
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

    async def open(self) -> Durability | None:
        """Connect, and return what a confirm means there, or None if that is not known. Raises BrokerUnavailable when
        that fails; it may be called again. A relay reports what this returns whenever it differs from the last time.

        LoginRefused, a BrokerUnavailable, means that the broker refuses the user or its password: it ends a relay only
        while that is being started.
        """

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Send the messages to the broker, in this order, and wait until it has answered for each.

        Every message without a Refusal is durably confirmed when this returns; with `in_order`, those behind a refused
        message of their key are not. Raises BrokerUnavailable if the broker can't be reached; it carries which messages
        were confirmed or refused before, so that those are not sent again. The next call connects again.

        When this ends in any way, cancelled or with an error, this process sends nothing of it any more: no client
        library may keep a message in a queue of its own. What is on its way to the broker by then may still arrive.

        A relay that is stopped cancels this after its `grace`. What had been confirmed by then is sent again, unless
        this says it: `raise CancelledError(Confirmed(positions))`.
        """
        ...

    async def close(self) -> None:
        """Close the connection. Messages of a `publish` that has not returned are not confirmed."""


class Delivery(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A message that a broker has delivered, and that it expects an ack for."""

    session: object
    """What delivered it: a connection, or one partition of the source. If it ends before the ack, the message is
    delivered again in another one.
    """
    tag: int
    """Its number within the session, rising."""
    body: bytes
    headers: Mapping[str, Any] = {}
    content_type: str | None = None
    message_id: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    key: str | None = None
    """The key of the broker's own record, for messages that carry no CloudEvents attributes."""
    redelivered: bool | None = False
    """It was delivered before, and the broker got no ack; None if that is possible and the broker does not know. A
    consumer marks the attempt before it handles such a message, so that crashes of its process are counted.
    """
    unreadable: str | None = None
    """Why its properties can't be decoded, or its body was not kept."""
    original: Any = None
    """The delivery as the broker's own module knows it."""


class Revoked(msgspec.Struct, frozen=True, eq=False):
    """The broker is about to give partitions of the source to another process of the consumer."""

    sessions: frozenset[object]
    """The sessions that end: nothing of them is received any more, and of their deliveries nothing more is begun."""
    released: Callable[[], None]
    """To be called when none of their deliveries is being processed any more. Acks until then still count. The broker
    does not wait for ever: after its own time limit, the other consumer gets what was not acked.
    """


class Subscriber(Protocol):
    """A source of messages. One task receives; acks may come from any task of the loop, at any time.

    A subscriber may also have `dead_letters() -> DeadLetterBox` (`postroad.dead_letters`), for operators: it returns at
    once, without connecting, and does not depend on whether the subscriber is open.
    """

    @property
    def name(self) -> str:
        """The source's name in logs, without any secret."""
        ...

    async def open(self) -> None:
        """Connect, and begin to receive. Raises BrokerUnavailable when that fails; it may be called again.

        LoginRefused ends a consumer only while that is being started.
        """

    async def receive(self) -> Sequence[Delivery] | Revoked:
        """Wait for messages, and return them in the broker's order: at least one. Of a session, no more than `prefetch`
        are received and not acked at a time; so with several partitions, one call may return more than that.

        A source whose sessions can end one by one returns Revoked before some of them do; the others go on. Raises
        BrokerUnavailable when all sessions have ended: what was not acked comes again after `open`.
        """
        ...

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Ack these. An ack is lost when its session has ended: then the message is delivered again."""

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Requeue these, which were not begun, at the place where they were: any consumer may get them.

        Where the broker can't do that, nothing happens until the session ends: then it delivers them again, in order.
        """

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Store the message, unchanged and with these additional headers, as a dead letter.

        It is durably there when this returns, and has still to be acked. Raises BrokerUnavailable.
        """

    async def waiting(self) -> int:
        """How many messages wait to be received; an estimate is allowed, but not 0 while there are some. Raises
        BrokerUnavailable.
        """
        ...

    async def pause(self) -> None:
        """Stop receiving until the next `open`; acks still work. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Send the acks that are due, and close the connection. What was not acked is requeued."""
