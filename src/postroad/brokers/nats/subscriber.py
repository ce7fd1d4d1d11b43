"""NATS JetStream as a source: a durable consumer of a stream, and a subject for dead letters.

To keep the order of keys, one process of a consumer is active at a time, and others stand by. What the servers say or
do not say becomes BrokerUnavailable here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.nats import topology
from postroad.brokers.nats.address import Address
from postroad.brokers.nats.answers import why_not_stored
from postroad.brokers.nats.connection import LinkLost, NoResponders
from postroad.brokers.nats.dead_letter_box import NATSDeadLetters
from postroad.brokers.nats.dead_letters import letters
from postroad.brokers.nats.jetstream import JetStream
from postroad.brokers.nats.session import Session
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroad.brokers.base import Delivery, Revoked
    from postroad.brokers.nats.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["NATSSubscriber"]


class NATSSubscriber:
    """Receives from a stream of a NATS server or cluster. The settings must have been completed."""

    def __init__(
        self,
        url: str,
        settings: SubscriberSettings,
        *,
        consumer: str = "postroad",
        types: Sequence[str] = (),
        in_order: bool = True,
    ) -> None:
        """`types` are those that the consumer takes; without any, it takes all."""
        self._settings = settings
        self._consumer = consumer
        self._in_order = in_order
        self._types = frozenset(types if settings.other_types == "skip" else ())
        self._address = Address(url, settings, client_name=f"postroad {consumer}")
        self.warnings = tuple(self._address.warnings())
        self._session: Session | None = None
        self._again: list[bytes] = []
        self._pin: str | None = None

    def report(self, event: Event) -> None:
        """What happens beside messages; a consumer replaces this."""

    @property
    def name(self) -> str:
        return f"{self._address.name} consumer {self._settings.durable}"

    def __repr__(self) -> str:
        return f"NATSSubscriber({self._address.name!r}, {self._settings.durable!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, check or create what is needed, and ask for messages."""
        await self._end_session()
        settings = self._settings
        try:
            connection = await self._address.connect()
            try:
                jetstream = JetStream(connection, settings.domain)
                stream = await topology.ensure(jetstream, settings, in_order=self._in_order)
                session = Session(
                    connection,
                    jetstream,
                    stream,
                    settings,
                    in_order=self._in_order,
                    types=self._types,
                    pin=self._pin,
                    consumer=self._consumer,
                    report=self.report,
                )
                session.start(self._again)
            except BaseException:
                connection.abort("the consumer could not be opened")
                raise
        except LinkLost as lost:
            raise self._unavailable(lost) from lost
        self._session, self._again = session, []

    async def receive(self) -> Sequence[Delivery] | Revoked:
        session = self._opened()
        try:
            while not session.arrived:
                session.check()
                await session.change()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost
        found = list(session.arrived)
        session.arrived.clear()
        return found

    def ack(self, deliveries: Collection[Delivery]) -> None:
        if self._session is not None:
            self._session.ack([each for each in deliveries if each.session is self._session])

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """JetStream would deliver them behind later ones: they are given back when the session ends."""

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Publish to the subject for dead letters, and wait until its stream has stored it."""
        session, subject = self._opened(), self._settings.dead_letter_subject or ""
        largest = session.connection.info.max_payload
        headers, body = letters(delivery.original, notes, self._settings.durable or "", largest)
        try:
            answer = await session.connection.request(subject, body, headers)
        except NoResponders as lost:
            raise self._unavailable(LinkLost("no stream takes it, or that has no leader"), subject) from lost
        except LinkLost as lost:
            raise self._unavailable(lost, subject) from lost
        if (why := why_not_stored(answer.body)) is not None:
            raise self._unavailable(LinkLost(why), subject)

    def dead_letters(self) -> NATSDeadLetters:
        settings = self._settings
        return NATSDeadLetters(self._address, settings.dead_letter_subject or "", settings.domain)

    async def waiting(self) -> int:
        try:
            return await self._opened().waiting()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    async def pause(self) -> None:
        if self._session is not None:
            self._session.stop_asking()

    async def close(self) -> None:
        """Send the acks that are due, and close the connection; what was not acked is given back."""
        await self._end_session()

    # -- parts of it -------------------------------------------------------------------------------------------------

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._again = await session.close()
            self._pin = session.pin

    def _opened(self) -> Session:
        if self._session is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        return self._session

    def _unavailable(self, lost: LinkLost, dead_letters: str | None = None) -> BrokerUnavailable:
        place = f"the dead-letter subject {dead_letters!r}: " if dead_letters else ""
        return lost.outage(f"{self.name}: {place}{lost}", suspicious=False)
