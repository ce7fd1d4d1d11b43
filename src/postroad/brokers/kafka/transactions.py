"""Publishes a lane's pages, each in a Kafka transaction: all of it or nothing. Consumers that read committed records
see nothing of a relay that has lost the lane.

The lane's transactional id is the same for all its owners. When an owner begins, Kafka ends the transaction of the one
before, and refuses whatever that one still sends. An owner must not begin after it has lost the lane itself: so when
beginning took long, the call ends, and the relay checks its lease before the next one.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from postroad.brokers.kafka.answers import Answers, Verdict, verdict_on
from postroad.brokers.kafka.cluster import Unreachable
from postroad.brokers.kafka.feeding import feed
from postroad.brokers.kafka.producer import CLOSED, END_SECONDS, Failure, Retired, Sending
from postroad.errors import BrokerUnavailable, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Producer

    from postroad.brokers.base import Durability
    from postroad.brokers.kafka.producer import ProducerThread
    from postroad.brokers.kafka.producers import Producers
    from postroad.brokers.kafka.records import Records
    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["TransactionalPublisher"]

BEGIN_SECONDS: Final = 2.0
"""Beginning that took longer publishes nothing before the lease is checked again. It may all the same have fenced the
next owner of the lane, which then publishes the page again.
"""
ABORT_SECONDS: Final = 5.0
COMMIT_SECONDS: Final = 0.5
"""A call that commits can't be interrupted: after so long it looks whether it is to go on."""
RETRIES: Final = 5

_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class _SharedPublisher(Protocol):
    """The publisher of all lanes."""

    name: str
    destination: str

    async def open(self) -> Durability: ...

    async def explain_silence(self, messages: Sequence[StoredMessage], sending: Sending, answers: Answers) -> None: ...


class _TopicRefused(Exception):
    """The topic of one of the messages may not be in the transaction."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error


class TransactionalPublisher:
    """The publisher of one lane, for one epoch."""

    in_order = True

    def __init__(
        self,
        shared: _SharedPublisher,
        transactional_id: str,
        producers: Producers,
        records: Records,
        confirm_timeout: float,
    ) -> None:
        self.name = shared.name
        self.destination = shared.destination
        self._shared = shared
        self._id = transactional_id
        self._producers = producers
        self._records = records
        self._confirm_timeout = confirm_timeout
        self._link: ProducerThread | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._fenced: str | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="postroad kafka transaction")

    def __repr__(self) -> str:
        return f"TransactionalPublisher({self.name!r}, transactional_id={self._id!r})"

    async def open(self) -> Durability:
        """See `Publisher`."""
        return await self._shared.open()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Publish the messages in one transaction, or several if some of them are refused. See `Publisher`.

        Raises LeaseLost when another owner of the lane has begun.
        """
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
        """Abort the transaction, if there is one, and close the connection."""
        self._closed = True
        self._drop()
        if self._ending:
            await asyncio.wait(self._ending, timeout=ABORT_SECONDS + END_SECONDS)
        self._threads.shutdown(wait=False)

    async def _publish(self, answers: Answers) -> None:
        """Publish until each message that is to get an answer has one. Raises Unreachable.

        When Kafka refuses one that it does not name, less is published at once, from the front, until it is found: so
        all is in order, and the others are not published one by one.
        """
        most, aborted = None, 0
        while missing := answers.missing():
            if aborted == RETRIES:
                raise Unreachable("transactions were aborted again and again")
            before, batch = answers.count, missing[:most]
            try:
                failed = await self._transaction(batch, answers)
                suspected = bool(answers.decide(batch, failed, self._records.topic_of, alone=len(batch) == 1))
            except _TopicRefused as refused:
                suspected = len(batch) > 1
                if not suspected:
                    self._refuse_all_like(batch[0], missing, refused.error, answers)
            if suspected:
                most, aborted = len(batch) // 2, 0
            elif answers.count > before:
                most, aborted = 2 * len(batch), 0
            else:
                aborted += 1  # the first transaction after an aborted one may be dropped

    # -- one transaction ---------------------------------------------------------------------------------------------

    async def _transaction(self, messages: Sequence[StoredMessage], answers: Answers) -> dict[int, Failure]:
        """Publish all of them, or nothing. Returns those that were refused: then the transaction was aborted."""
        link = await self._begun()
        sending, refused = Sending(together=True), None
        try:
            _in_use(link, lambda producer: producer.begin_transaction())
            feed(link, messages, self._records, sending, answers)
            if not await sending.wait(link, self._confirm_timeout):
                self._drop()
                sending.part()
                await sending.wait(link, END_SECONDS)
                await self._shared.explain_silence(messages, sending, answers)
            elif sending.failed:
                refused = await self._refused_topic(link, sending)
                await self._abort_failed(link)
            else:
                await self._commit(link)
                answers.confirmed.update(sending.confirmed)
        except (Retired, KafkaException) as error:
            self._drop()
            raise self._translated(link, error) from error
        except BaseException:
            self._drop()
            raise
        if refused is not None:
            raise _TopicRefused(refused)
        return sending.failed

    async def _commit(self, link: ProducerThread) -> None:
        """Commit. When this is cancelled, or fails, librdkafka would go on in the background, for as long as there is
        the producer: so it ends before the call does.
        """
        try:
            await self._ask(link, lambda producer: _commit(producer, link, self._confirm_timeout))
        except BaseException:
            self._drop()
            if self._ending:
                await asyncio.wait(self._ending, timeout=END_SECONDS)
            raise

    async def _begun(self) -> ProducerThread:
        """The producer, as the only one with the lane's transactional id."""
        if self._fenced is not None:
            raise LeaseLost(self._fenced)
        if self._closed:
            raise Unreachable(CLOSED)
        if self._link is not None and not self._link.retired:
            return self._link
        begin = time.monotonic()
        await self._ended()
        self._link = link = self._producers.transactional(self._id)
        try:
            await self._ask(link, lambda producer: producer.init_transactions(self._confirm_timeout))
        except (Retired, KafkaException) as error:
            self._drop()
            raise self._translated(link, error) from error
        except BaseException:
            self._drop()
            raise
        if time.monotonic() - begin > BEGIN_SECONDS:
            raise Unreachable("beginning took long, so the relay has to check its lease")
        return link

    async def _ended(self) -> None:
        """Wait for the producers that were dropped: one that is still beginning would fence the next one."""
        if self._ending:
            _, unfinished = await asyncio.wait(self._ending, timeout=self._confirm_timeout)
            if unfinished:
                raise Unreachable("the transaction before this one has not ended yet")

    async def _refused_topic(self, link: ProducerThread, sending: Sending) -> KafkaError | None:
        """The error of a topic that may not be in the transaction. All messages are dropped then, none with a reason,
        and the topic is not named.
        """
        if any(verdict_on(failure.error) is not Verdict.AGAIN for failure in list(sending.failed.values())):
            return None
        try:
            await self._ask(link, lambda producer: producer.commit_transaction(self._confirm_timeout))
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            return reason if verdict_on(reason) in {Verdict.ROUTE, Verdict.UNROUTABLE} else None
        return None

    def _refuse_all_like(
        self, message: StoredMessage, missing: Sequence[StoredMessage], error: KafkaError, answers: Answers
    ) -> None:
        """Refuse all messages of the topic of this one."""
        topic = self._records.topic_of(message)
        for each in missing:
            if self._records.topic_of(each) == topic:
                answers.refuse_for(each, topic, Failure(error, None))

    async def _abort_failed(self, link: ProducerThread) -> None:
        """Abort a transaction of which messages were refused. Where that fails, as when Kafka has not even begun it, a
        new producer ends it: the refusals must not be lost, or the lane would try the same for ever.
        """
        try:
            await self._ask(link, lambda producer: producer.abort_transaction(self._confirm_timeout))
        except (Retired, KafkaException) as error:
            self._drop()
            translated = self._translated(link, error)
            if isinstance(translated, LeaseLost):
                raise translated from error

    async def _ask(self, link: ProducerThread, call: Callable[[Producer], object]) -> None:
        """Make a call that blocks."""
        await asyncio.get_running_loop().run_in_executor(self._threads, _in_use, link, call)

    def _translated(self, link: ProducerThread, error: Exception) -> Unreachable | LeaseLost:
        """What an error of the producer means; once it is fenced, that stays so."""
        reason = error.args[0] if isinstance(error, KafkaException) else link.last_error
        if reason is not None and reason.code() in _FENCED:
            self._fenced = f"{self.name}: another relay publishes this lane's messages ({reason.str()})"
            return LeaseLost(self._fenced)
        return Unreachable(CLOSED if reason is None else reason.str())

    def _drop(self) -> None:
        """Drop what was not confirmed, and abort in the background: until then, consumers would wait for the end of the
        transaction.
        """
        link, self._link = self._link, None
        if link is not None and not link.retired:
            task = asyncio.create_task(self._abort(link))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _abort(self, link: ProducerThread) -> None:
        try:
            with suppress(KafkaException, Retired):
                await self._ask(link, lambda producer: producer.abort_transaction(ABORT_SECONDS))
        finally:
            while not await link.end():
                pass


def _in_use(link: ProducerThread, call: Callable[[Producer], object]) -> None:
    with link.in_use() as producer:
        call(producer)


def _commit(producer: Producer, link: ProducerThread, seconds: float) -> None:
    """Commit within this time; only as long as the producer was not dropped."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            producer.commit_transaction(min(max(left, 0.0), COMMIT_SECONDS))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT and left > COMMIT_SECONDS and not link.retired:
                continue
            raise
        return
