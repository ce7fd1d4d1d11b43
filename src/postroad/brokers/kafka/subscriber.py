"""Kafka as a source: topics, shared with the other members of a consumer group, and a topic for dead letters.

The group gives each partition to one member at a time, and a key is in one partition: so several processes share the
messages, and each key stays in order. What the client raises becomes BrokerUnavailable here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.kafka.address import Address
from postroad.brokers.kafka.dead_letter_box import KafkaDeadLetters
from postroad.brokers.kafka.dead_letters import DeadLetters, NotStored
from postroad.brokers.kafka.mailbox import Mailbox
from postroad.brokers.kafka.poller import Poller
from postroad.brokers.kafka.reading import Reader
from postroad.brokers.kafka.sessions import Sessions
from postroad.errors import BrokerUnavailable, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from postroad.brokers.base import Delivery, Revoked
    from postroad.brokers.kafka.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["KafkaSubscriber"]

CLOSE_SECONDS: Final = 10.0
ANSWER_MS: Final = 10_000
"""How long a request may take: so long a commit blocks the client's thread when the brokers are gone."""
LARGEST_QUEUE: Final = 2_097_151  # kilobytes: librdkafka's limit

_TAKEN: Final = {
    "group.id": "group",
    "group.instance.id": "instance",
    "group.protocol": "a group of the classic protocol",
    "partition.assignment.strategy": "cooperative-sticky, which it is",
    "enable.auto.commit": "acks, which are committed",
    "enable.auto.offset.store": "acks, which are committed",
    "enable.partition.eof": "max_held_bytes and prefetch",
    "auto.offset.reset": "start",
    "isolation.level": "isolation",
    "session.timeout.ms": "session_timeout",
    "heartbeat.interval.ms": "session_timeout",
    "max.poll.interval.ms": "max_poll_interval",
    "allow.auto.create.topics": "declare",
}


class KafkaSubscriber:
    """Receives from topics of a Kafka cluster. The settings must have been completed."""

    def __init__(
        self, url: str, settings: SubscriberSettings, *, consumer: str = "postroad", types: Sequence[str] = ()
    ) -> None:
        """`types` are those that the consumer takes; without any, it takes all."""
        self._settings = settings
        self._consumer = consumer
        self._address = Address(url, settings, client_id=f"postroad {consumer}")
        self._config = _config(self._address, settings)
        self.warnings = tuple(self._address.warnings())
        self._reader = Reader(types if settings.other_types == "skip" else (), foreign=settings.foreign == "deliver")
        self._poller: Poller | None = None
        self._sessions: Sessions | None = None
        self._mailbox: Mailbox | None = None
        self._dead_letters: DeadLetters | None = None
        self._one_dead_letter = asyncio.Lock()

    def report(self, event: Event) -> None:
        """What happens beside messages; a consumer replaces this."""

    @property
    def name(self) -> str:
        return f"{self._address.name} group {self._settings.group}"

    def __repr__(self) -> str:
        return f"KafkaSubscriber({self._address.name!r}, {self._settings.group!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, check or create the topics, and join the group."""
        await self._end_session()
        settings = self._settings
        try:
            config, admin_config = _config(self._address, settings), self._address.config({})
        except InvalidSetting as error:  # a file that could be read when the subscriber was built
            raise BrokerUnavailable(f"{self.name}: {error}", suspicious=False) from error
        self._mailbox = Mailbox()
        self._sessions = Sessions(settings.prefetch or 1, settings.max_held_bytes)
        self._poller = Poller(
            self.name,
            config,
            admin_config,
            settings,
            consumer=self._consumer,
            user=self._address.user,
            sessions=self._sessions,
            reader=self._reader,
            mailbox=self._mailbox,
            report=self.report,
        )
        await asyncio.wrap_future(self._poller.opened)

    async def receive(self) -> Sequence[Delivery] | Revoked:
        if self._mailbox is None:
            raise self._not_open()
        return await self._mailbox.get()

    def ack(self, deliveries: Collection[Delivery]) -> None:
        if self._sessions is not None and self._sessions.ack(deliveries) and self._poller is not None:
            self._poller.acked()

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Kafka can't: they are delivered again when the partition is assigned anew, here or elsewhere."""

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Write to the topic for dead letters, confirmed by all in-sync replicas."""
        topic = self._settings.dead_letter_topic
        assert topic is not None  # noqa: S101 - the settings were completed
        async with self._one_dead_letter:
            if self._dead_letters is None:
                self._dead_letters = self._new_dead_letters(topic)
            try:
                await self._dead_letters.send(delivery.original, notes)
            except NotStored as problem:
                self._dead_letters.close()
                self._dead_letters = None  # the next one reads the password anew
                reason = f"{self.name}: the dead-letter topic {topic!r}: {problem}"
                raise BrokerUnavailable(reason, suspicious=False) from problem

    def dead_letters(self) -> KafkaDeadLetters:
        topic = self._settings.dead_letter_topic or ""
        return KafkaDeadLetters(self._address.name, self._address.config({}), topic)

    async def waiting(self) -> int:
        if self._poller is None:
            raise self._not_open()
        return int(await self._asked(self._poller.waiting()))

    async def pause(self) -> None:
        if self._poller is not None:
            await self._asked(self._poller.pause())

    async def close(self) -> None:
        """Commit what was acked, and leave the group; with `instance`, the partitions wait for the next one."""
        await self._end_session()
        dead_letters, self._dead_letters = self._dead_letters, None
        if dead_letters is not None:
            dead_letters.close()

    def _new_dead_letters(self, topic: str) -> DeadLetters:
        try:
            return DeadLetters(self._address.config({}), topic)
        except InvalidSetting as error:
            raise BrokerUnavailable(f"{self.name}: {error}", suspicious=False) from error

    # -- parts of it -------------------------------------------------------------------------------------------------

    async def _end_session(self) -> None:
        poller, self._poller, self._mailbox = self._poller, None, None
        if poller is not None:
            poller.close()
            ended = asyncio.wrap_future(poller.ended)
            await asyncio.wait((ended,), timeout=CLOSE_SECONDS)

    async def _asked(self, future: Future[Any]) -> Any:
        try:
            async with asyncio.timeout(self._settings.seconds("connect_timeout")):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name}: no answer in time", suspicious=False) from None

    def _not_open(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.name}: the subscriber is not open")


def _config(address: Address, settings: SubscriberSettings) -> dict[str, Any]:
    """The configuration of the client. Raises InvalidSetting."""
    size, session_ms = settings.prefetch or 1, int(settings.seconds("session_timeout") * 1000)
    config: dict[str, Any] = {
        "queued.min.messages": max(1000, 2 * size),
        "queued.max.messages.kbytes": max(1, min(LARGEST_QUEUE, settings.max_held_bytes // 2048)),
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        "socket.timeout.ms": ANSWER_MS,
    }
    config |= address.config(_TAKEN)
    config |= {
        "group.id": settings.group,
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": settings.isolation,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(100, min(3000, session_ms // 4)),
        "max.poll.interval.ms": int(settings.seconds("max_poll_interval") * 1000),
        "allow.auto.create.topics": False,
    }
    return config if settings.instance is None else config | {"group.instance.id": settings.instance}
