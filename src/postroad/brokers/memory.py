"""A broker in memory, for tests: it keeps what it confirmed, delivers what was put, and fails on demand.

`memory://name` is one queue within this process: what is published there can be consumed there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import CannotEncode, wrap
from postroad.brokers.registry import Broker
from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroad.message import StoredMessage

__all__ = ["BROKER", "MemoryBroker", "MemoryQueue"]


class MemoryBroker:
    """`messages` is what was confirmed, in order, with duplicates; each goes into `queue` too, if there is one."""

    name = "memory"
    destination = "memory"

    def __init__(self, queue: MemoryQueue | None = None, *, in_order: bool = False) -> None:
        """`in_order`: what is behind a refused message of its key is not taken; see `Publisher`."""
        self.in_order = in_order
        self.messages: list[StoredMessage] = []
        self._queue = queue
        self._refuse: Callable[[StoredMessage], str | Refusal | None] = lambda _: None
        self._unbound: set[str] = set()
        self._outages: deque[int] = deque()
        self._out = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.asked = asyncio.Event()
        """Set by each call of `publish`."""

    def refuse(self, reason_for: Callable[[StoredMessage], str | Refusal | None]) -> None:
        """Refuse every message that this function gives a reason for, or a whole Refusal."""
        self._refuse = reason_for

    def unbind(self, topic: str) -> None:
        """Refuse messages of this topic as unroutable."""
        self._unbound.add(topic)

    def bind(self, topic: str) -> None:
        """Take messages of this topic again."""
        self._unbound.discard(topic)

    def fail_after(self, *confirmed: int) -> None:
        """Break the connection once for each number, after so many messages of a call were confirmed."""
        self._outages.extend(confirmed)

    def go_out(self) -> None:
        """Be unavailable until `come_back`."""
        self._out = True

    def come_back(self) -> None:
        """Be available again."""
        self._out = False

    def hold(self) -> None:
        """Let calls wait for their confirm until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Confirm again."""
        self._flowing.set()

    async def open(self) -> None:
        if self._out:
            raise BrokerUnavailable("the memory broker is unavailable")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Confirm what is not refused, until an outage that `fail_after` asked for."""
        self.asked.set()
        await self._flowing.wait()
        await self.open()
        outage_after = self._outages.popleft() if self._outages else len(messages)
        refusals: list[Refusal] = []
        confirmed: list[StoredMessage] = []
        deliveries: list[Delivery] = []
        stopped: set[str | None] = set()
        # Nothing is kept before all are decided about: if a function of `refuse` raises, none was confirmed.
        for message in messages[:outage_after]:
            if message.key in stopped:
                continue
            refusal = self._refusal_of(message)
            if refusal is None and self._queue is not None:
                try:
                    deliveries.append(_delivery(message))
                except CannotEncode as error:
                    refusal = Refusal(message.position, str(error), permanent=True)
            if refusal is None:
                confirmed.append(message)
            else:
                refusals.append(refusal)
                if self.in_order and message.key is not None:
                    stopped.add(message.key)
        self.messages += confirmed
        if self._queue is not None:
            self._queue.add(deliveries)
        if outage_after < len(messages):
            positions = {message.position for message in confirmed}
            raise BrokerUnavailable("the memory broker fails on demand", confirmed=positions, refusals=refusals)
        return refusals

    def _refusal_of(self, message: StoredMessage) -> Refusal | None:
        if message.topic in self._unbound:
            return Refusal(
                message.position, f"no queue is bound to {message.topic!r}", route=message.topic, unroutable=True
            )
        reason = self._refuse(message)
        return Refusal(message.position, reason) if isinstance(reason, str) else reason

    async def close(self) -> None:
        """What was confirmed stays."""


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
        self.add([Delivery(session=None, tag=0, body=body, **fields)])

    def put_stored(self, message: StoredMessage) -> None:
        """A message arrives as a publisher would send it."""
        self.add([_delivery(message)])

    def add(self, deliveries: Collection[Delivery]) -> None:
        """Messages arrive."""
        self.queue.extend(deliveries)
        self._arrived.set()

    def drop(self) -> None:
        """Break the connection."""
        self._give_back(self._open.values())
        self._open = {}
        self._session = None
        self._arrived.set()

    async def open(self) -> None:
        self.drop()
        self._session = object()
        self._arrived = asyncio.Event()  # a queue outlives the event loop that its last session was in
        self._numbers = count(1)

    async def receive(self) -> Sequence[Delivery]:
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
        for each in self._of_this_session(deliveries):
            del self._open[each.tag]

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """They wait again, before all others."""
        mine = self._of_this_session(deliveries)
        for each in mine:
            del self._open[each.tag]
        self._give_back(mine)

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        self.dead.append((delivery, notes))

    async def waiting(self) -> int:
        return len(self.queue)

    async def pause(self) -> None:
        """There is nothing to cancel: what waits is delivered only by `receive`."""

    async def close(self) -> None:
        """What was not acked waits again."""
        self.drop()

    def _of_this_session(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        return [each for each in deliveries if each.session is self._session and each.tag in self._open]

    def _give_back(self, deliveries: Collection[Delivery]) -> None:
        again = [msgspec.structs.replace(each, redelivered=True) for each in deliveries]
        self.queue.extendleft(sorted(again, key=lambda each: -each.tag))
        self._arrived.set()


def _delivery(message: StoredMessage) -> Delivery:
    """The message as a publisher would send it. Raises CannotEncode."""
    content_type, headers, body = wrap(message)
    return Delivery(
        session=None, tag=0, body=body, content_type=content_type, headers=headers, message_id=str(message.id)
    )


# -- memory://name ---------------------------------------------------------------------------------------------------

_QUEUES: Final[dict[str, MemoryQueue]] = {}


def _queue(url: str) -> MemoryQueue:
    return _QUEUES.setdefault(url, MemoryQueue())


BROKER = Broker(
    name="memory",
    title="the memory broker",
    url="memory://name",
    in_process=True,
    publisher=lambda url, settings: MemoryBroker(_queue(url), in_order=True),
    subscriber=lambda url, settings, subscription: _queue(url),
)
