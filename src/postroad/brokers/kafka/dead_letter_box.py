"""The dead letters of a consumer at Kafka: records of their topic. Kafka deletes no single record, so those that were
retried or dropped stay in the topic; the database knows which of them are still dead.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroad.brokers.kafka.dead_letters import DeadLetters, NotStored
from postroad.brokers.kafka.outages import error_of
from postroad.dead_letters import IDENTITY_HEADER, DeadLetter
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroad.brokers.kafka.reading import Record

__all__ = ["KafkaDeadLetters"]

ASK_SECONDS: Final = 10.0
READ_SECONDS: Final = 30.0
"""A read that brings nothing for so long fails."""
AT_ONCE: Final = 500

Place = tuple[int, int]
"""A partition and an offset."""


class KafkaDeadLetters:
    """See `DeadLetterBox` for the contract. Joins no group and commits nothing."""

    def __init__(self, name: str, config: dict[str, Any], topic: str) -> None:
        """`config` is that of a client without a group."""
        self.name = f"{name} topic {topic}"
        self._config = config
        self._topic = topic
        self._client: Consumer | None = None
        self._producers: dict[str, DeadLetters] = {}

    async def open(self) -> None:
        config = {
            "group.id": "postroad dead letters",  # librdkafka asks for one; partitions are assigned without it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
        try:
            self._client = Consumer(self._config | config)
            await asyncio.to_thread(self._ends)
        except KafkaException as failure:
            await self.close()
            raise self._unavailable(failure) from failure

    async def letters(self) -> AsyncIterator[DeadLetter]:
        try:
            ends = await asyncio.to_thread(self._ends)
            # A message that died again after a retry has several letters; the last is the one that counts.
            last: dict[str, Place] = {}
            async for record in self._records(ends):
                if identity := _headers(record).get(IDENTITY_HEADER):
                    last[identity] = _place(record)
            async for record in self._records(ends):
                letter = self._letter(record)
                if letter.identity is None or last.get(letter.identity) == _place(record):
                    yield letter
        except KafkaException as failure:
            raise self._unavailable(failure) from failure

    async def retry(self, letter: DeadLetter) -> None:
        topic = letter.headers.get("postroad-topic")
        if not topic:
            raise BrokerUnavailable(
                f"{self.name}: the letter has no header postroad-topic, so its topic is not known", suspicious=False
            )
        if topic not in self._producers:
            self._producers[topic] = DeadLetters(self._config, topic)
        partition = letter.headers.get("postroad-partition", "")
        try:
            await self._producers[topic].send_again(letter.original, int(partition) if partition.isdigit() else None)
        except NotStored as problem:
            raise BrokerUnavailable(f"{self.name}: the topic {topic!r}: {problem}", suspicious=False) from problem

    async def drop(self, letter: DeadLetter) -> None:
        """Kafka keeps the record."""

    async def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()
        client, self._client = self._client, None
        if client is not None:
            with suppress(KafkaException):
                await asyncio.to_thread(client.close)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _records(self, ends: dict[int, Place]) -> AsyncIterator[Record]:
        """All records up to the ends, partition by partition."""
        for partition, (first, end) in ends.items():
            if first >= end:
                continue
            self._opened().assign([TopicPartition(self._topic, partition, first)])
            offset, until = first, time.monotonic() + READ_SECONDS
            while offset < end:
                for record in await asyncio.to_thread(self._read):
                    until = time.monotonic() + READ_SECONDS
                    offset = (record.offset() or 0) + 1
                    if offset <= end:
                        yield record
                offset = max(offset, await asyncio.to_thread(self._position, partition))
                if offset < end and time.monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record for {READ_SECONDS:g} seconds"))

    def _read(self) -> list[Any]:
        found = self._opened().consume(AT_ONCE, timeout=0.5)
        for record in found:
            if (error := record.error()) is not None:
                raise KafkaException(error)
        return found

    def _position(self, partition: int) -> int:
        """Behind the last record that was read, also where a transaction's marker or nothing is."""
        (found,) = self._opened().position([TopicPartition(self._topic, partition)])
        return int(found.offset)

    def _ends(self) -> dict[int, Place]:
        """The first offset of each partition, and the one behind its last record."""
        client = self._opened()
        found = client.list_topics(self._topic, timeout=ASK_SECONDS).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return {
            number: client.get_watermark_offsets(TopicPartition(self._topic, number), timeout=ASK_SECONDS)
            for number in sorted(found.partitions)
        }

    def _opened(self) -> Consumer:
        if self._client is None:
            raise BrokerUnavailable(f"{self.name}: it is not open")
        return self._client

    def _letter(self, record: Record) -> DeadLetter:
        headers = _headers(record)
        content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
        partition, offset = _place(record)
        return DeadLetter(
            place=f"topic {self._topic}, partition {partition}, offset {offset}",
            body=record.value() or b"",
            content_type=content_type,
            headers=headers,
            original=record,
        )

    def _unavailable(self, failure: KafkaException) -> BrokerUnavailable:
        error = error_of(failure)
        return BrokerUnavailable(f"{self.name}: {error.name()}: {error.str()}", suspicious=False)


def _place(record: Record) -> Place:
    return record.partition() or 0, record.offset() or 0


def _headers(record: Record) -> dict[str, str]:
    """Of headers with the same name, the last. None of them, where the client can't read their names."""
    try:
        return {name: _text(value) for name, value in record.headers() or ()}
    except (UnicodeDecodeError, ValueError):
        return {}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
