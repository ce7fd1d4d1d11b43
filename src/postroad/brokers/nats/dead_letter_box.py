"""The dead letters of a consumer at NATS: messages of the stream that takes their subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.cloudevents import percent_decoded
from postroad.brokers.nats.answers import why_not_stored
from postroad.brokers.nats.connection import LinkLost, NoResponders
from postroad.brokers.nats.frames import MESSAGE_ID, check_subject, header_block
from postroad.brokers.nats.jetstream import ApiError, JetStream
from postroad.brokers.nats.reading import headers_of
from postroad.dead_letters import DeadLetter
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroad.brokers.nats.address import Address
    from postroad.brokers.nats.connection import Connection
    from postroad.brokers.nats.jetstream import StoredMessage

__all__ = ["NATSDeadLetters"]


class NATSDeadLetters:
    """See `DeadLetterBox` for the contract."""

    def __init__(self, address: Address, subject: str, domain: str | None) -> None:
        self.name = f"{address.name} subject {subject}"
        self._address = address
        self._subject = subject
        self._domain = domain
        self._connection: Connection | None = None

    async def open(self) -> None:
        try:
            self._connection = await self._address.connect()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    async def letters(self) -> AsyncIterator[DeadLetter]:
        jetstream = self._jetstream()
        try:
            for stream in await jetstream.streams_for(self._subject):
                number = 1
                while (found := await jetstream.next_message(stream, number, self._subject)) is not None:
                    yield self._letter(stream, found)
                    number = found.seq + 1
        except (LinkLost, ApiError) as problem:
            raise self._unavailable(problem) from problem

    async def retry(self, letter: DeadLetter) -> None:
        """Publish it to its subject. It has an id of its own, by which the stream drops it if it was stored before and
        could not be deleted here.
        """
        stream, number = letter.original
        subject = letter.headers.get("postroad-subject", "")
        if wrong := check_subject(subject):
            raise BrokerUnavailable(f"{self.name}: the letter {number}: {wrong}", suspicious=False)
        headers = header_block({**letter.headers, MESSAGE_ID: f"{stream}/{number}"})
        jetstream = self._jetstream()
        try:
            answer = await self._opened().request(subject, letter.body, headers)
            why_not = why_not_stored(answer.body)
            if why_not is None:
                await jetstream.delete_message(stream, number)
        except NoResponders as lost:
            raise self._unavailable(LinkLost(f"no stream takes the subject {subject!r}")) from lost
        except (LinkLost, ApiError) as problem:
            raise self._unavailable(problem) from problem
        if why_not is not None:
            raise self._unavailable(LinkLost(f"the subject {subject!r}: {why_not}"))

    async def drop(self, letter: DeadLetter) -> None:
        try:
            await self._jetstream().delete_message(*letter.original)
        except (LinkLost, ApiError) as problem:
            raise self._unavailable(problem) from problem

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _opened(self) -> Connection:
        if self._connection is None:
            raise BrokerUnavailable(f"{self.name}: it is not open")
        return self._connection

    def _jetstream(self) -> JetStream:
        return JetStream(self._opened(), self._domain)

    def _letter(self, stream: str, found: StoredMessage) -> DeadLetter:
        try:
            headers = percent_decoded(headers_of(found.hdrs))
        except UnicodeDecodeError:
            headers = {}
        named = {name.lower(): value for name, value in headers.items()}
        return DeadLetter(
            place=f"stream {stream}, number {found.seq}",
            body=found.data,
            content_type=named.get("ce-datacontenttype") or named.get("content-type") or "",
            headers={name: value for name, value in headers.items() if not name.lower().startswith("nats-")},
            original=(stream, found.seq),
        )

    def _unavailable(self, problem: LinkLost | ApiError) -> BrokerUnavailable:
        outage = problem.outage if isinstance(problem, LinkLost) else BrokerUnavailable
        return outage(f"{self.name}: {problem}", suspicious=False)
