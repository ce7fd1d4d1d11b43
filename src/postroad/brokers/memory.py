"""A broker in memory, for tests: it keeps what it took, hands over what it was given, and fails when it is told to."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.brokers.base import Delivery
from postroad.brokers.envelope import Envelope
from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroad.message import StoredMessage

__all__ = ["MemoryBroker", "MemoryQueue"]


class MemoryBroker:
    """`messages` is what arrived, in order, duplicates and all."""

    name = "memory"
    destination = "memory"

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._refuse: Callable[[StoredMessage], str | Refusal | None] = lambda _: None
        self._unbound: set[str] = set()
        self._outages: deque[int] = deque()
        self._out = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.asked = asyncio.Event()
        """Set whenever somebody asks to publish."""

    def refuse(self, reason_for: Callable[[StoredMessage], str | Refusal | None]) -> None:
        """Refuse every message that this function gives a reason for, or a whole Refusal."""
        self._refuse = reason_for

    def unbind(self, topic: str) -> None:
        """Nobody takes messages of this topic any more: they are refused, and it is not their fault."""
        self._unbound.add(topic)

    def bind(self, topic: str) -> None:
        """Take messages of this topic again."""
        self._unbound.discard(topic)

    def fail_after(self, *confirmed: int) -> None:
        """Break the connection once for each number, after so many messages of a call were taken."""
        self._outages.extend(confirmed)

    def go_out(self) -> None:
        """Can't be asked until `come_back`."""
        self._out = True

    def come_back(self) -> None:
        """Can be asked again."""
        self._out = False

    def hold(self) -> None:
        """Let calls wait for their confirm until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Confirm again."""
        self._flowing.set()

    async def open(self) -> None:
        """Fails while the broker is out."""
        if self._out:
            raise BrokerUnavailable("the memory broker is out")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Take what is not refused, until an outage that was ordered."""
        self.asked.set()
        await self._flowing.wait()
        await self.open()
        outage_after = self._outages.popleft() if self._outages else None
        refusals: list[Refusal] = []
        for number, message in enumerate(messages):
            if number == outage_after:
                confirmed = {each.position for each in messages[:number]} - {each.position for each in refusals}
                raise BrokerUnavailable("the memory broker was told to fail", confirmed=confirmed, refusals=refusals)
            refusal = self._refusal_of(message)
            if refusal is None:
                self.messages.append(message)
            else:
                refusals.append(refusal)
        return refusals

    def _refusal_of(self, message: StoredMessage) -> Refusal | None:
        if message.topic in self._unbound:
            return Refusal(message.position, f"nobody takes {message.topic!r}", route=message.topic, unroutable=True)
        reason = self._refuse(message)
        return Refusal(message.position, reason) if isinstance(reason, str) else reason

    async def close(self) -> None:
        """What arrived stays."""


class MemoryQueue:
    """A queue in memory, for tests, as a Subscriber sees one: what is not acked comes again.

    `dead` are the dead letters with their notes.
    """

    name = "memory queue"

    def __init__(self) -> None:
        self.queue: deque[Delivery] = deque()
        self.dead: list[tuple[Delivery, Mapping[str, str]]] = []
        self._open: dict[int, Delivery] = {}
        self._session: object | None = None
        self._numbers = count(1)
        self._arrived = asyncio.Event()

    def put(self, body: bytes, **fields: Any) -> None:
        """A message arrives."""
        self.queue.append(Delivery(session=None, tag=0, body=body, **fields))
        self._arrived.set()

    def put_stored(self, message: StoredMessage, envelope: Envelope = Envelope()) -> None:  # noqa: B008 - it is frozen
        """A message arrives as a publisher would send it."""
        wire = envelope.wrap(message)
        self.put(wire.body, content_type=wire.content_type, headers=wire.headers, message_id=str(message.id))

    def drop(self) -> None:
        """Break the connection."""
        self._give_back(self._open.values())
        self._open = {}
        self._session = None
        self._arrived.set()

    async def open(self) -> None:
        """Begin a session."""
        self.drop()
        self._session = object()
        self._numbers = count(1)

    async def receive(self) -> Sequence[Delivery]:
        """All that waits."""
        while self._session is not None:
            if self.queue:
                arrived = [
                    msgspec.structs.replace(each, session=self._session, tag=next(self._numbers)) for each in self.queue
                ]
                self.queue.clear()
                self._open |= {each.tag: each for each in arrived}
                return arrived
            self._arrived.clear()
            await self._arrived.wait()
        raise BrokerUnavailable("the memory queue's session has ended")

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Forget them."""
        for each in self._of_this_session(deliveries):
            del self._open[each.tag]

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """They wait again, before all others."""
        mine = self._of_this_session(deliveries)
        for each in mine:
            del self._open[each.tag]
        self._give_back(mine)

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Keep it apart."""
        self.dead.append((delivery, notes))

    async def waiting(self) -> int:
        """As many as there are."""
        return len(self.queue)

    async def pause(self) -> None:
        """What waits is not taken any more, because nobody asks."""

    async def close(self) -> None:
        """What was not acked waits again."""
        self.drop()

    def _of_this_session(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        return [each for each in deliveries if each.session is self._session and each.tag in self._open]

    def _give_back(self, deliveries: Collection[Delivery]) -> None:
        again = [msgspec.structs.replace(each, redelivered=True) for each in deliveries]
        self.queue.extendleft(sorted(again, key=lambda each: -each.tag))
        self._arrived.set()
