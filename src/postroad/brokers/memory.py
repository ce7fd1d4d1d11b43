"""A broker in memory, for tests: it keeps what it confirmed, delivers what was put, and fails on demand.

`memory://name` is one queue within this process: what is published there can be consumed there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from postroad.brokers.base import Delivery, Durability, Revoked
from postroad.brokers.cloudevents import CannotEncode, unwrap, wrap
from postroad.brokers.registry import Broker
from postroad.dead_letters import DeadLetter
from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from postroad.message import StoredMessage

__all__ = ["BROKER", "MemoryBroker", "MemoryDeadLetters", "MemoryQueue", "delivery_of"]


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
        self.durability = Durability("kept in the memory of this process, and lost when it ends")
        """What `open` returns."""

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

    async def open(self) -> Durability | None:
        self._check()
        return self.durability

    def _check(self) -> None:
        if self._out:
            raise BrokerUnavailable("the memory broker is unavailable")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Confirm what is not refused, until an outage that `fail_after` asked for."""
        self.asked.set()
        await self._flowing.wait()
        self._check()
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
                    deliveries.append(delivery_of(message))
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

    `dead` are the dead letters with their notes. With several `partitions`, each key belongs to one of them, and
    each of them has a session of its own, which `revoke` ends.
    """

    name = "memory queue"

    def __init__(self, *, partitions: int = 1) -> None:
        self.queue: deque[Delivery] = deque()
        self.dead: list[tuple[Delivery, Mapping[str, str]]] = []
        self.knows_redelivery = True
        """If not, no delivery says whether it was delivered before."""
        self._partitions = partitions
        self._open: dict[int, Delivery] = {}
        self._sessions: dict[int, object] = {}
        self._revoked: deque[Revoked] = deque()
        self._is_open = False
        self._numbers = count(1)
        self._arrived = asyncio.Event()

    def put(self, body: bytes, **fields: Any) -> None:
        """A message arrives."""
        self.add([Delivery(session=None, tag=0, body=body, **fields)])

    def put_stored(self, message: StoredMessage) -> None:
        """A message arrives as a publisher would send it."""
        self.add([delivery_of(message)])

    def add(self, deliveries: Collection[Delivery]) -> None:
        """Messages arrive."""
        self.queue.extend(deliveries)
        self._arrived.set()

    def drop(self) -> None:
        """Break the connection."""
        self._give_back(self._open.values())
        self._open = {}
        self._sessions.clear()
        self._revoked.clear()
        self._is_open = False
        self._arrived.set()

    def revoke(self, *partitions: int) -> asyncio.Event:
        """Take these partitions away, as if another consumer had got them. The event is set when they are released:
        what was not acked until then waits again, and is delivered after `assign`.
        """
        sessions = frozenset(self._sessions.pop(partition) for partition in partitions)
        revoked = asyncio.Event()

        def released() -> None:
            open_ = [each for each in self._open.values() if each.session in sessions]
            for each in open_:
                del self._open[each.tag]
            self._give_back(open_)
            revoked.set()

        self._revoked.append(Revoked(sessions, released))
        self._arrived.set()
        return revoked

    def assign(self, *partitions: int) -> None:
        """The consumer gets these partitions again, each with a new session."""
        self._sessions |= {partition: object() for partition in partitions}
        self._arrived.set()

    def partition_of(self, key: str | None) -> int:
        """The partition that a key belongs to."""
        return crc32((key or "").encode()) % self._partitions

    async def open(self) -> None:
        self.drop()
        self._is_open = True
        self._arrived = asyncio.Event()  # a queue outlives the event loop that its last session was in
        self._numbers = count(1)
        self.assign(*range(self._partitions))

    async def receive(self) -> Sequence[Delivery] | Revoked:
        while self._is_open:
            if self._revoked:
                return self._revoked.popleft()
            if arrived := self._take():
                return arrived
            self._arrived.clear()
            await self._arrived.wait()
        raise BrokerUnavailable("the memory queue's session has ended")

    def _take(self) -> Sequence[Delivery]:
        """What waits in the partitions that this consumer has."""
        taken: list[Delivery] = []
        waiting: list[Delivery] = []
        for each in self.queue:
            session = self._sessions.get(self._partition(each))
            if session is None:
                waiting.append(each)
                continue
            redelivered = each.redelivered if self.knows_redelivery else None
            tag = next(self._numbers)
            taken.append(msgspec.structs.replace(each, session=session, tag=tag, redelivered=redelivered))
        self.queue.clear()
        self.queue.extend(waiting)
        self._open |= {each.tag: each for each in taken}
        return taken

    def _partition(self, delivery: Delivery) -> int:
        return self.partition_of(unwrap(delivery).key) if self._partitions > 1 else 0

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

    def dead_letters(self) -> MemoryDeadLetters:
        return MemoryDeadLetters(self)

    async def waiting(self) -> int:
        return len(self.queue)

    async def pause(self) -> None:
        """There is nothing to cancel: what waits is delivered only by `receive`."""

    async def close(self) -> None:
        """What was not acked waits again."""
        self.drop()

    def _of_this_session(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        return [each for each in deliveries if self._open.get(each.tag) is each]

    def _give_back(self, deliveries: Collection[Delivery]) -> None:
        again = [msgspec.structs.replace(each, redelivered=True) for each in deliveries]
        self.queue.extendleft(sorted(again, key=lambda each: -each.tag))
        self._arrived.set()


class MemoryDeadLetters:
    """The dead letters of a queue in memory; see `DeadLetterBox`."""

    name = "memory queue of dead letters"

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def letters(self) -> AsyncIterator[DeadLetter]:
        for letter in list(self._queue.dead):
            delivery, notes = letter
            headers = {name: str(value) for name, value in {**delivery.headers, **notes}.items()}
            yield DeadLetter(
                place="in memory",
                body=delivery.body,
                content_type=delivery.content_type or "",
                headers=headers,
                original=letter,
            )

    async def retry(self, letter: DeadLetter) -> None:
        delivery, _ = letter.original
        again = msgspec.structs.replace(delivery, headers=letter.headers, session=None, tag=0, redelivered=False)
        self._queue.add([again])
        await self.drop(letter)

    async def drop(self, letter: DeadLetter) -> None:
        self._queue.dead.remove(letter.original)

    async def close(self) -> None:
        """All letters stay."""


def delivery_of(message: StoredMessage) -> Delivery:
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
