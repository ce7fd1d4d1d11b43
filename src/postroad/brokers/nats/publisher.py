"""NATS JetStream as a destination: messages with headers, a confirm for each, and an id by which a stream drops
duplicates.

One connection. The frames of a call go out in few large writes, and each message's reply subject names the call and
the message, so confirms need no bookkeeping of their own. Not in order: a stream that is full for one message may have
room for the next, and when its leader is lost, the next one may take what came later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.connecting import Connecting
from postroad.brokers.nats.address import Address
from postroad.brokers.nats.answers import Answers
from postroad.brokers.nats.connection import Connection, Denied, LinkLost
from postroad.brokers.nats.frames import Frames, wildcard
from postroad.brokers.nats.jetstream import ApiError, JetStream
from postroad.brokers.nats.settings import PublisherSettings
from postroad.brokers.nats.streams import durability, ensure_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.brokers.base import Durability
    from postroad.brokers.nats.reading import Arrival
    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["NATSPublisher"]

WRITE_BYTES: Final = 64 * 1024
"""A write is sent when it has grown to this. Larger ones are not faster, and each call holds one in memory."""
AFTER_OUTAGE_SECONDS: Final = 1.0
"""How long the other answers may take when a server has said that it takes nothing."""
ASKED_AT_ONCE: Final = 32
CLOSED: Final = "the publisher was closed"
UNSENT: Final = "another call ended before all that it had written was sent"


class NATSPublisher:
    """Publishes to the streams of a NATS server or cluster."""

    in_order = False

    def __init__(self, url: str, settings: PublisherSettings = PublisherSettings()) -> None:  # noqa: B008 - it is frozen
        self._settings = settings
        self._address = Address(url, settings)
        self._frames = Frames(settings.subject, settings.envelope, settings.stream)
        self._confirm_timeout = settings.seconds("confirm_timeout")
        self.destination = self._address.destination(settings.cluster, subject=settings.subject, stream=settings.stream)
        self._link: _Link | None = None
        self._connecting = Connecting(self._connect)

    @property
    def name(self) -> str:
        return self._address.name

    def __repr__(self) -> str:
        return f"NATSPublisher({self.name!r}, subject={self._settings.subject!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> Durability:
        """Connect, and check or create the stream. See `Publisher`."""
        try:
            link = await self._linked()
            return await durability(link.jetstream, wildcard(self._settings.subject), self._settings.stream)
        except LinkLost as lost:
            raise lost.outage(f"{self.name}: {lost}") from lost

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Publish the messages, in this order, and wait for all confirms. See `Publisher`."""
        answers = Answers(messages, self._frames.subject_of)
        try:
            if messages:
                await self._send(messages, answers)
        except LinkLost as lost:
            raise lost.outage(
                f"{self.name}: {lost}",
                confirmed=answers.confirmed,
                refusals=answers.in_order(),
                suspicious=lost.suspicious,
            ) from lost
        return answers.in_order()

    async def close(self) -> None:
        """Close the connection. A `publish` that still waits raises BrokerUnavailable."""
        await self._connecting.end()
        link, self._link = self._link, None
        if link is not None:
            link.connection.abort(CLOSED)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, messages: Sequence[StoredMessage], answers: Answers) -> None:
        """Send once. Returns when every message has its answer."""
        link = await self._linked()
        call = link.begin(answers)
        try:
            for numbers, data in self._writes(messages, link, call, answers):
                answers.pending.update(numbers)
                link.connection.write(data)
                await link.connection.room(self._confirm_timeout)
            await call.wait(self._confirm_timeout)
            while answers.without_responder:
                await self._explain(link, answers)
                if answers.outage is None:
                    await call.wait(self._confirm_timeout)
        except LinkLost as lost:
            self._drop(link, str(lost))
            raise
        finally:
            link.end(call)
            if answers.pending and link.connection.has_unsent:
                self._drop(link, UNSENT)
        if not answers.is_complete:
            raise LinkLost(answers.outage or "not every message was answered")

    def _writes(
        self, messages: Sequence[StoredMessage], link: _Link, call: _Call, answers: Answers
    ) -> Iterator[tuple[list[int], bytes]]:
        """Whole messages, encoded, in pieces of about WRITE_BYTES. What can't be encoded is refused."""
        encoded, largest, prefix = self._frames.encoded, link.connection.info.max_payload, call.prefix
        numbers: list[int] = []
        frames: list[bytes] = []
        size = 0
        for number, message in enumerate(messages):
            try:
                frame = encoded(message, f"{prefix}{number}", largest)
            except CannotEncode as error:
                answers.refuse(message, str(error), permanent=True)
                continue
            numbers.append(number)
            frames.append(frame)
            size += len(frame)
            if size >= WRITE_BYTES:
                yield numbers, b"".join(frames)
                numbers, frames, size = [], [], 0
        if numbers:
            yield numbers, b"".join(frames)

    async def _explain(self, link: _Link, answers: Answers) -> None:
        """Nothing answers for some subjects: ask whether a stream takes them. If one does, its leader is lost."""
        subjects = list(dict.fromkeys(answers.without_responder.values()))
        streams: dict[str, tuple[str, ...] | None] = {}
        for first in range(0, len(subjects), ASKED_AT_ONCE):
            some = subjects[first : first + ASKED_AT_ONCE]
            found = await asyncio.gather(*(self._streams_for(link, subject) for subject in some))
            streams.update(zip(some, found, strict=True))
        answers.explain(streams)

    async def _streams_for(self, link: _Link, subject: str) -> tuple[str, ...] | None:
        """The streams that take a subject; None if this user may not ask."""
        try:
            return await link.jetstream.streams_for(subject)
        except Denied:
            return None
        except ApiError as error:
            raise LinkLost(str(error)) from error

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _linked(self) -> _Link:
        if self._link is not None and self._link.connection.lost is None:
            return self._link
        link = await self._connecting.wait()
        if link is None:
            raise LinkLost(CLOSED)
        return link

    async def _connect(self) -> _Link:
        settings = self._settings
        connection = await self._address.connect()
        try:
            link = _Link(connection, JetStream(connection, settings.domain))
            if settings.declare != "no" and settings.stream is not None:
                await ensure_stream(
                    link.jetstream,
                    settings.stream,
                    settings.subjects or [wildcard(settings.subject)],
                    dict(settings.stream_config or {}),
                    create=settings.declare == "create",
                )
        except BaseException:
            connection.abort("the stream could not be checked")
            raise
        self._link = link
        return link

    def _drop(self, link: _Link, reason: str) -> None:
        """Use this connection no more, and discard what it has not sent: the call that wrote it ends."""
        link.connection.abort(reason)
        if self._link is link:
            self._link = None


class _Link:
    """A connection, and the calls that wait for answers on it."""

    def __init__(self, connection: Connection, jetstream: JetStream) -> None:
        self.connection = connection
        self.jetstream = jetstream
        self._calls: dict[bytes, _Call] = {}
        self._last = 0
        connection.on_denied = self._on_denied
        connection.subscribe(f"{connection.inbox}.p.*.*", self._on_answer)

    def begin(self, answers: Answers) -> _Call:
        """A new call."""
        self._last += 1
        call = _Call(self.connection, b"%d" % self._last, answers)
        self._calls[call.name] = call
        return call

    def end(self, call: _Call) -> None:
        """Expect no more answers to the call."""
        self._calls.pop(call.name, None)

    def _on_answer(self, arrival: Arrival) -> None:
        parts = arrival.subject.rsplit(b".", 2)
        call = self._calls.get(parts[-2]) if len(parts) == 3 else None
        if call is not None and parts[-1].isdigit():  # other programs may send to any inbox
            call.answered(int(parts[-1]), arrival)

    def _on_denied(self, subject: str, words: str) -> None:
        for call in self._calls.values():
            call.denied(subject, words)


class _Call:
    """The wait for the answers to one call of `publish`."""

    def __init__(self, connection: Connection, name: bytes, answers: Answers) -> None:
        self.name = name
        self.prefix = f"{connection.inbox}.p.{name.decode()}."
        """How the reply subjects of its messages begin."""
        self._connection = connection
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._last_answer = self._loop.time()
        self._done: asyncio.Future[None] | None = None

    def answered(self, number: int, arrival: Arrival) -> None:
        answers = self._answers
        if answers.add(number, arrival.headers, arrival.body):
            self._last_answer = self._loop.time()
            if not answers.pending:
                self._check()

    def denied(self, subject: str, words: str) -> None:
        if self._answers.deny(subject, words):
            self._last_answer = self._loop.time()
            self._check()

    def _check(self) -> None:
        if not self._answers.pending and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return when each message has its answer, or soon after one was that nothing takes it. Every answer restarts
        the timeout. Raises LinkLost.
        """
        self._last_answer = self._loop.time()
        self._done = done = self._loop.create_future()
        self._check()
        while not done.done():
            limit = AFTER_OUTAGE_SECONDS if self._leaderless else seconds
            left = self._last_answer + limit - self._loop.time()
            if left <= 0:
                if self._leaderless:
                    return
                raise LinkLost(f"it has confirmed nothing for {seconds:g} seconds (confirm_timeout)")
            waiting: tuple[asyncio.Future[Any], ...] = (done, self._connection.closed)
            # A shorter look while nothing has answered: the limit depends on what comes.
            await asyncio.wait(waiting, timeout=min(left, AFTER_OUTAGE_SECONDS), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                self._connection.check()

    @property
    def _leaderless(self) -> bool:
        return self._answers.outage is not None or bool(self._answers.without_responder)
