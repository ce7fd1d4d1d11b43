"""Redis as a destination: each message an entry of a stream, a whole page in one round trip, an answer for each.

It is in order: messages that are alone of their key in a page are an XADD each, and those that share a key are added by
a script, which stops at the first one that Redis does not take. Messages of one key that go to different streams are
sent one run after the other.

Each call has a connection to itself, because WAIT is about all that its connection has written, and because a call that
ends early drops its connection, with all of it that has not left this process.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.redis.address import Address
from postroad.brokers.redis.answers import Answers
from postroad.brokers.redis.connection import LinkLost
from postroad.brokers.redis.entries import MOST_DELETED, Entries, Entry
from postroad.brokers.redis.resp import command
from postroad.brokers.redis.server import examine
from postroad.brokers.redis.settings import PublisherSettings
from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from postroad.brokers.base import Durability
    from postroad.brokers.redis.connection import Connection
    from postroad.message import StoredMessage

__all__ = ["RedisPublisher"]

WRITE_BYTES: Final = 256 * 1024
"""Commands are written when they have grown to this."""
TRIM_SECONDS: Final = 10.0
"""How often a stream is trimmed, at most."""
MOST_TRIMMED: Final = 10_000
"""Of so many streams it is known when they were trimmed."""
WAIT_SHARE: Final = 0.8
CLOSED: Final = "the publisher was closed"
CANCELLED: Final = "the call that used the connection ended early"


class RedisPublisher:
    """Publishes to the streams of a Redis server. Credentials of the settings replace the URL's, see `Address`."""

    in_order = True

    def __init__(self, url: str, settings: PublisherSettings = PublisherSettings()) -> None:  # noqa: B008 - it is frozen
        self._settings = settings
        self._address = Address(url, settings)
        self._entries = Entries(settings)
        self.name = self._address.name
        partitions = {} if settings.partitions is None else {"partitions": str(settings.partitions)}
        self.destination = self._address.destination(settings.cluster, stream=settings.stream, **partitions)
        self._confirm_timeout = settings.seconds("confirm_timeout")
        self._connect_timeout = settings.seconds("connect_timeout")
        self._waits = bool(settings.replicas or settings.fsync)
        self._free: list[Connection] = []
        self._used: set[Connection] = set()
        self._closings = 0
        """How often it was closed: what was connecting then must not go on."""
        self._trimmed: dict[str, float] = {}
        """When each stream was trimmed last."""

    def __repr__(self) -> str:
        return f"RedisPublisher({self.name!r}, stream={self._settings.stream!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> Durability:
        """Connect, and ask what a confirm means. See `Publisher`."""
        try:
            async with self._connection() as connection:
                return await examine(connection, self._settings, self._connect_timeout)
        except LinkLost as lost:
            raise lost.outage(f"{self.name}: {lost}", suspicious=False) from lost

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Add the messages to their streams, and wait for all answers. See `Publisher`."""
        answers = Answers(messages)
        try:
            while missing := answers.missing():
                entries = self._encoded(missing, answers)
                if entries:
                    async with self._connection() as connection:
                        await self._send(connection, entries, answers)
        except LinkLost as lost:
            raise BrokerUnavailable(
                f"{self.name}: {lost}",
                confirmed=answers.confirmed,
                refusals=answers.refusals(),
                suspicious=lost.suspicious,
            ) from lost
        return answers.refusals()

    async def close(self) -> None:
        """Close the connections. A `publish` that still waits raises BrokerUnavailable."""
        self._closings += 1
        for connection in list(self._used):
            connection.abort(CLOSED)
        free, self._free = self._free, []
        for connection in free:
            await connection.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _encoded(self, messages: Sequence[StoredMessage], answers: Answers) -> list[Entry]:
        """What can be sent at once: of each key, its messages up to the first one for another stream. What can't be
        encoded is refused, as soon as nothing of its key is before it.
        """
        stream_of, entry_of = self._entries.stream_of, self._entries.entry_of
        entries: dict[object, Entry] = {}
        ended: set[str] = set()
        for message in messages:
            key = message.key
            if key in ended:
                continue
            first = None if key is None else entries.get(key)
            try:
                stream = stream_of(message)
                if first is not None and first.stream != stream:
                    ended.add(message.key or "")
                    continue
                entry = entry_of(message, stream)
            except CannotEncode as error:
                if key is not None:
                    ended.add(key)
                if first is None:
                    answers.refuse(Refusal(message.position, str(error), permanent=True))
                continue
            if first is None:
                entries[message.position if key is None else key] = entry
            elif first.followers is None:
                first.followers = [entry]
            else:
                first.followers.append(entry)
        return list(entries.values())

    async def _send(self, connection: Connection, entries: Sequence[Entry], answers: Answers) -> None:
        """Send once, and note each answer that comes. Raises LinkLost."""
        trimmed = self._due_trims(entries)
        trims = [self._entries.trim_command(stream) for stream in trimmed]
        exchange = connection.begin(len(entries) + self._waits + len(trims))
        try:
            for data in self._writes(entries, trims):
                connection.write(data)
                await connection.drain(self._confirm_timeout)
            await connection.wait(exchange, self._confirm_timeout)
        finally:
            if not exchange.is_complete:
                connection.abort(CANCELLED)
            outages = answers.note_all(entries, exchange.replies)
            self._note_trims(trimmed, exchange.replies[len(entries) + self._waits :])
            unsafe = self._unsafe(exchange.replies[len(entries) :])
            if unsafe is None:
                answers.confirm_taken()
        for reason in (*outages, unsafe):
            if reason is not None:
                if self._address.follows_master:  # it may be the master no more: the next connection asks
                    connection.abort(reason)
                raise LinkLost(reason)

    def _writes(self, entries: Sequence[Entry], trims: Sequence[bytes]) -> Iterator[bytes]:
        """All commands, in pieces of about WRITE_BYTES."""
        options = self._entries.options(time.time_ns() // 1_000_000)
        pieces: list[bytes] = []
        size = 0
        for entry in entries:
            pieces.append(self._entries.command(entry, options))
            size += len(pieces[-1])
            if size >= WRITE_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        if self._waits:
            pieces.append(self._wait_command())
        yield b"".join((*pieces, *trims))

    def _wait_command(self) -> bytes:
        """Waits for less time than this process does, so that the answer says what is missing."""
        wait_ms = int(self._confirm_timeout * WAIT_SHARE * 1000)
        if self._settings.fsync:
            return command("WAITAOF", 1, self._settings.replicas, wait_ms)
        return command("WAIT", self._settings.replicas, wait_ms)

    def _unsafe(self, replies: Sequence[Any]) -> str | None:
        """Why what the server has taken is not confirmed as the settings ask. `replies` begins with that to WAIT."""
        if not self._waits:
            return None
        wanted, found = self._settings.replicas, replies[0] if replies else "no answer"
        if not self._settings.fsync:
            is_safe = isinstance(found, int) and found >= wanted
            return None if is_safe else f"replicas is {wanted}, and so many have what was sent: {found}"
        is_safe = isinstance(found, list) and found[0] >= 1 and found[1] >= wanted
        return None if is_safe else f"fsync is true, and the server and {wanted} replicas have not written all: {found}"

    def _due_trims(self, entries: Sequence[Entry]) -> list[str]:
        """The streams that were not trimmed for a while."""
        if not self._entries.are_trimmed:
            return []
        now, due = time.monotonic(), []
        for stream in {entry.stream for entry in entries}:
            if now - self._trimmed.get(stream, -TRIM_SECONDS) >= TRIM_SECONDS:
                if len(self._trimmed) > MOST_TRIMMED:
                    self._trimmed.clear()
                self._trimmed[stream] = now
                due.append(stream)
        return due

    def _note_trims(self, streams: Sequence[str], replies: Sequence[Any]) -> None:
        """A stream of which a trim has deleted so much that more may be left is trimmed again with the next page."""
        for stream, deleted in zip(streams, replies, strict=False):  # some answers may not have come
            if isinstance(deleted, int) and deleted >= MOST_DELETED // 2:
                self._trimmed.pop(stream, None)

    # -- connecting --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection that no other call uses. It is kept for later calls if it can be used again."""
        connection = None
        while self._free and connection is None:
            kept = self._free.pop()
            connection = kept if kept.lost is None else None
        if connection is None:
            closings = self._closings
            connection = await self._address.connect()
            if self._closings != closings:
                connection.abort(CLOSED)
                raise LinkLost(CLOSED)
        self._used.add(connection)
        try:
            yield connection
        finally:
            self._used.discard(connection)
            if connection.is_idle:
                self._free.append(connection)
            else:
                connection.abort(CANCELLED)
