"""Kafka as a destination: topics, an idempotent producer, a confirm by all in-sync replicas for each message.

It is in order: brokers take the batches of a partition only in the order of their numbers, and when one is refused, the
producer stops instead of numbering the others anew. What was behind it is then sent through a new producer, without the
refused message and all that follows it in its key. Messages of one key that go to different topics are sent one run
after the other.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from postroad.brokers.kafka.address import Address
from postroad.brokers.kafka.answers import Answers, Verdict, verdict_on
from postroad.brokers.kafka.cluster import Unreachable, durability, metadata
from postroad.brokers.kafka.feeding import feed
from postroad.brokers.kafka.producer import CLOSED, Sending
from postroad.brokers.kafka.producers import Producers
from postroad.brokers.kafka.records import Records, next_run
from postroad.brokers.kafka.settings import PublisherSettings
from postroad.brokers.kafka.silence import explain
from postroad.brokers.kafka.transactions import TransactionalPublisher
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka.admin import ClusterMetadata

    from postroad.brokers.base import Durability, LaneEpoch, Publisher
    from postroad.brokers.kafka.producer import Failure, ProducerThread
    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["KafkaPublisher"]

RETRIES: Final = 3
"""How many times in a row messages may be dropped without an answer before that is an outage."""


class KafkaPublisher:
    """Publishes to the topics of a Kafka cluster. Credentials of the settings replace the URL's, see `Address`."""

    in_order = True

    def __init__(self, url: str, settings: PublisherSettings = PublisherSettings()) -> None:  # noqa: B008 - it is frozen
        address = Address(url, settings)
        self.name = address.name
        self.destination = address.destination(settings.cluster, topic=settings.topic)
        self._topic = settings.topic
        self._records = Records(settings.topic, settings.envelope, settings.max_message_size)
        self._producers = Producers(address, settings)
        self._confirm_timeout = settings.seconds("confirm_timeout")
        self._connect_timeout = settings.seconds("connect_timeout")
        self._refusing: set[str] = set()
        """Topics that the user was not allowed to write to: a refusal would stop the shared producer each time."""
        self._durability: Durability | None = None
        if settings.transactional_id is not None:
            self.for_lane = partial(self._for_lane, settings.transactional_id)

    def __repr__(self) -> str:
        return f"KafkaPublisher({self.name!r}, topic={self._topic!r})"

    def _for_lane(self, prefix: str, lane: LaneEpoch) -> Publisher:
        id = f"{prefix}-{lane.sink}-{lane.lane}"
        return TransactionalPublisher(self, id, self._producers, self._records, self._confirm_timeout)

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> Durability:
        """Ask the brokers for metadata, and return what a confirm means there. See `Publisher`."""
        try:
            found = await self.metadata(self._records.only_topic)
        except Unreachable as error:
            raise error.outage(self.name) from error
        if self._durability is None:
            config = self._producers.admin_config()
            self._durability = await asyncio.to_thread(durability, config, found, self._records.only_topic)
        return self._durability

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Publish the messages to their topics, and wait until all in-sync replicas have them. See `Publisher`."""
        answers = Answers(messages)
        self._records.refuse_topicless(messages, answers)
        try:
            await self._publish(answers)
        except Unreachable as error:
            raise BrokerUnavailable(
                f"{self.name}: {error}", confirmed=answers.confirmed, refusals=answers.refusals(), suspicious=False
            ) from error
        return answers.refusals()

    async def close(self) -> None:
        """Close the connections. A `publish` that still waits raises BrokerUnavailable."""
        await self._producers.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _publish(self, answers: Answers) -> None:
        """Send until each message that is to get an answer has one. Raises Unreachable."""
        closings, dropped = self._producers.closings, 0
        while missing := answers.missing():
            if self._producers.closings != closings:
                raise Unreachable(CLOSED)
            if dropped == RETRIES:
                raise Unreachable("messages were dropped without an answer, again and again")
            before = answers.count
            await self._publish_run(next_run(missing, self._records.topic_of), answers)
            dropped = dropped + 1 if answers.count == before else 0

    async def _publish_run(self, messages: Sequence[StoredMessage], answers: Answers) -> None:
        """Send once, and decide about what was not confirmed. What was dropped has no answer afterwards."""
        suspects: set[int] = set()
        if self._refusing:
            topic_of = self._records.topic_of
            suspects = {message.position for message in messages if topic_of(message) in self._refusing}
            messages = [message for message in messages if message.position not in suspects]
        if messages:
            suspects |= self._decide(messages, await self._send(self._producers.shared(), messages, answers), answers)
        while alone := [message for message in answers.first_missing() if message.position in suspects]:
            before = answers.count
            await self._send_alone(alone, answers)
            if answers.count == before:
                return

    async def _send(
        self, link: ProducerThread, messages: Sequence[StoredMessage], answers: Answers
    ) -> dict[int, Failure]:
        """Send messages, and wait until each has its answer. Returns those that were not confirmed, with the reason.

        Raises Unreachable. However this ends, nothing that was not confirmed is sent any more.
        """
        sending = Sending()
        try:
            feed(link, messages, self._records, sending, answers)
            if not await sending.wait(link, self._confirm_timeout):
                await link.end()
                answers.confirmed.update(sending.confirmed)
                await self.explain_silence(messages, sending, answers)
        finally:
            if not sending.is_complete:
                await link.end()
            answers.confirmed.update(sending.confirmed)
        return sending.failed

    def _decide(self, messages: Sequence[StoredMessage], failed: dict[int, Failure], answers: Answers) -> set[int]:
        """Refuse what is refused for certain. Returns what has to be sent alone, because one of it is at fault."""
        for message in messages if failed else ():
            failure = failed.get(message.position)
            if failure is not None and verdict_on(failure.error) is Verdict.ROUTE:
                self._refusing.add(self._records.topic_of(message))
        return answers.decide(messages, failed, self._records.topic_of)

    async def _send_alone(self, messages: Sequence[StoredMessage], answers: Answers) -> None:
        """Send each message in a batch of its own, no two of a key, and refuse those that are refused."""
        failed = await self._send(self._producers.cautious(), messages, answers)
        answers.decide(messages, failed, self._records.topic_of, alone=True)
        for message in messages if self._refusing else ():
            if message.position in answers.confirmed:
                self._refusing.discard(self._records.topic_of(message))

    # -- asking ------------------------------------------------------------------------------------------------------

    async def explain_silence(self, messages: Sequence[StoredMessage], sending: Sending, answers: Answers) -> None:
        """Nothing was confirmed for `confirm_timeout`. Refuse the messages whose topic or partition is at fault, or
        raise Unreachable.
        """
        silence = f"nothing was confirmed within {self._confirm_timeout:g} seconds (confirm_timeout)"
        try:
            state = await explain(messages, sending, answers, self._records, self.metadata)
        except Unreachable as error:
            raise Unreachable(f"{silence}; {error}") from error
        if state is not None:
            raise Unreachable(f"{silence}; {state}")

    async def metadata(self, topic: str | None) -> ClusterMetadata:
        """What the brokers know of a topic, or of all. Raises Unreachable."""
        link = self._producers.shared()
        try:
            return await metadata(link, topic, self._connect_timeout)
        except Unreachable:
            link.retire()  # a new one reads the password anew, and does not wait to connect
            raise
