"""Redis as a source: streams, or partitions of streams, read through a consumer group, and a stream for dead letters.

One process at a time has a stream, by a lease; see `receiving`. What goes wrong becomes BrokerUnavailable here.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from postroad.brokers.redis.address import Address
from postroad.brokers.redis.connection import LinkLost, ReplyError
from postroad.brokers.redis.dead_letter_box import RedisDeadLetters
from postroad.brokers.redis.entries import partition_name
from postroad.brokers.redis.leases import Leases
from postroad.brokers.redis.reading import Reader
from postroad.brokers.redis.receiving import Receiver
from postroad.brokers.redis.resp import command
from postroad.brokers.redis.scripts import DEAD_LETTER, MOST_ARGUMENTS, WAITING
from postroad.errors import BrokerUnavailable
from postroad.message import SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroad.brokers.base import Delivery, Revoked
    from postroad.brokers.redis.connection import Connection
    from postroad.brokers.redis.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["RedisSubscriber"]

_STARTS: Final = {"earliest": "0", "latest": "$"}


class RedisSubscriber:
    """Receives from streams of a Redis server. The settings must have been completed."""

    def __init__(
        self, url: str, settings: SubscriberSettings, *, consumer: str = "postroad", types: Sequence[str] = ()
    ) -> None:
        """`types` are those that the consumer takes; without any, it takes all."""
        self._settings = settings
        self._consumer = consumer
        self._address = Address(url, settings, client_name=f"postroad-{consumer}")
        self.warnings = tuple(self._address.warnings())
        self._group = settings.group or ""
        self._dead = settings.dead_letter_stream or ""
        self._bases = tuple(settings.streams or ())
        self._reader = Reader(types if settings.other_types == "skip" else (), foreign=settings.foreign == "deliver")
        self._seconds = settings.seconds("connect_timeout")
        self._receiver: Receiver | None = None

    def report(self, event: Event) -> None:
        """What happens beside messages; a consumer replaces this."""

    @property
    def name(self) -> str:
        partitions = self._settings.partitions
        return f"{self._address.name} group {self._group}" + (f" in {partitions} partitions" if partitions else "")

    def __repr__(self) -> str:
        return f"RedisSubscriber({self._address.name!r}, {self._group!r})"

    @property
    def streams(self) -> list[str]:
        """All streams to receive from: each, or each of its partitions."""
        partitions = self._settings.partitions
        if partitions is None:
            return list(self._bases)
        return [partition_name(base, number) for base in self._bases for number in range(partitions)]

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, create or check the group on each stream, and begin to receive."""
        await self._end()
        connections: list[Connection] = []
        try:
            connections = [await self._address.connect() for _ in range(2)]
            reading, control = connections
            await self._ensure(control)
            # It begins with the time, because those that came first keep what they have when there are few streams.
            process = f"{time.time_ns() // 1_000_000} {socket.gethostname()} {os.getpid()} {uuid4().hex}"
            lease_ms = int(self._settings.seconds("lease") * 1000)
            receiver = Receiver(
                reading,
                control,
                Leases(self._group, self.streams, process, milliseconds=lease_ms),
                self._settings,
                self._reader,
                consumer=self._consumer,
                report=self.report,
                check=partial(self._refuse_other_partitions, control),
            )
            await receiver.start()
        except BaseException as error:
            for connection in connections:
                connection.abort("the connection was not used")
            if isinstance(error, LinkLost):
                raise self._unavailable(error) from error
            raise
        self._receiver = receiver

    async def receive(self) -> Sequence[Delivery] | Revoked:
        try:
            return await self._opened().receive()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    def ack(self, deliveries: Collection[Delivery]) -> None:
        if self._receiver is not None:
            self._receiver.ack(deliveries)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Redis can't: they are delivered again, in order, when the stream's lease is taken anew."""

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Add to the stream for dead letters, and ack the message, in one step.

        One with very many fields is only added, because no script can do that: should this process die before the ack,
        there is another letter.
        """
        receiver, entry = self._opened(), delivery.original
        # The lease may be this process's own again, while another one had the stream and has finished the message.
        if receiver.sessions.get(entry.stream) is not delivery.session:
            raise self._lost(entry.stream)
        about = {**notes, "postroad-stream": entry.stream, "postroad-entry": entry.id}
        own = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
        noted = {name.encode(): value.encode() for name, value in about.items()}  # a letter that was retried has others
        fields = [part for pair in (own | noted).items() for part in pair]
        keys = (receiver.leases.key(entry.stream), entry.stream, self._dead)
        adding = ("EVAL", DEAD_LETTER, 3, *keys, receiver.leases.process, self._group, entry.id, *fields)
        if len(fields) > MOST_ARGUMENTS:
            adding = ("XADD", self._dead, "*", *fields)
        try:
            added = await receiver.control.ask(*adding, seconds=self._seconds)
        except LinkLost as lost:
            raise self._unavailable(lost, f"the dead-letter stream {self._dead!r}: ") from lost
        if added is None:
            raise self._lost(entry.stream)

    def dead_letters(self) -> RedisDeadLetters:
        return RedisDeadLetters(self._address, self._dead, seconds=self._seconds)

    async def waiting(self) -> int:
        receiver = self._opened()
        receiver.flush()
        streams = self.streams
        try:
            found = await receiver.control.ask(
                "EVAL", WAITING, len(streams), *streams, self._group, seconds=self._seconds
            )
        except LinkLost as lost:
            raise self._unavailable(lost) from lost
        unreceived = 0
        for stream, (pending, unread) in zip(streams, found, strict=True):
            session = receiver.sessions.get(stream)
            arrived = sum(1 for each in receiver.arrived if each.session is session)
            unreceived += max(0, pending + unread - (session.open - arrived if session else 0))
        return unreceived

    async def pause(self) -> None:
        if self._receiver is not None:
            await self._receiver.pause()

    async def close(self) -> None:
        """Send the acks that are due, and release the leases, so that another process has the streams at once."""
        await self._end()

    # -- parts of it -------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()

    def _opened(self) -> Receiver:
        if self._receiver is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        return self._receiver

    def _lost(self, stream: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.name}: this process has lost the stream {stream!r}", suspicious=False)

    def _unavailable(self, lost: LinkLost, where: str = "") -> BrokerUnavailable:
        return lost.outage(f"{self.name}: {where}{lost}", suspicious=False)

    async def _ensure(self, control: Connection) -> None:
        """Create or check the group on each stream. Raises LinkLost."""
        await self._refuse_other_partitions(control)
        for stream in self.streams:
            if self._settings.declare == "create":
                create = ("XGROUP", "CREATE", stream, self._group, _STARTS[self._settings.start], "MKSTREAM")
                (reply,) = await control.ask_all([command(*create)], self._seconds)
                if isinstance(reply, ReplyError) and not str(reply).startswith("BUSYGROUP"):
                    raise LinkLost(f"the group {self._group!r} can't be created on the stream {stream!r}: {reply}")
            else:
                (reply,) = await control.ask_all([command("XINFO", "GROUPS", stream)], self._seconds)
                if isinstance(reply, ReplyError) or self._group.encode() not in [_name(each) for each in reply]:
                    raise LinkLost(
                        f"there is no stream {stream!r}, or it has no group {self._group!r}; create it, or set "
                        f"declare='create': XGROUP CREATE {stream} {self._group} 0 MKSTREAM"
                    )

    async def _refuse_other_partitions(self, control: Connection) -> None:
        """A relay that divides streams in another way would add to streams that are not received from. Raises LinkLost.

        Any of those may be the first that gets a message, at any time.
        """
        partitions = self._settings.partitions
        for base in self._bases:
            others = [partition_name(base, number) for number in range(partitions or 0, SLOTS)]
            if others and await control.ask("EXISTS", *others, seconds=self._seconds):
                found = await control.ask_all([command("EXISTS", each) for each in others], self._seconds)
                other = next((each for each, exists in zip(others, found, strict=True) if exists), others[0])
                so_many = "not set" if partitions is None else partitions
                raise LinkLost(
                    f"partitions is {so_many}, and there is a stream {other!r}: set the number of partitions that the "
                    "relay has, or delete that stream when it is empty"
                )
            if partitions is not None and await control.ask("XLEN", base, seconds=self._seconds):
                raise LinkLost(
                    f"partitions is {partitions}, and there are entries in the undivided stream {base!r}: let a "
                    "consumer without partitions handle them, and delete it"
                )


def _name(group: list[Any]) -> bytes:
    """The name of a group, in the answer to XINFO GROUPS."""
    name: bytes = dict(zip(group[::2], group[1::2], strict=True))[b"name"]
    return name
