"""Dead letters: a record as it was, with notes about it as headers, in a topic of their own.

They get the time at which they were written: with the record's own, Kafka could delete them at once as too old.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from postroad.brokers.kafka.outages import error_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.brokers.kafka.reading import Record

__all__ = ["DeadLetters", "NotStored", "letter_headers"]

Header = tuple[str, bytes | None]

CONFIRM_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.2
LARGEST_MESSAGE: Final = 1_000_000_000
LARGE_HEADER: Final = 256


class NotStored(Exception):
    """The brokers have not confirmed the dead letter."""


class DeadLetters:
    """Writes to one topic, one record at a time."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._config = config | {
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "topic.metadata.propagation.max.ms": 0,  # a topic that is missing is an answer, and not waited for
            "message.max.bytes": LARGEST_MESSAGE,
            "delivery.timeout.ms": int(CONFIRM_SECONDS * 1000),
            "error_cb": self._on_error,
        }
        self._topic = topic
        self._closed = False
        self._producer: Producer | None = None
        self._last_error: KafkaError | None = None

    async def send(self, record: Record, notes: Mapping[str, str]) -> None:
        """Store the record; what is too large, with fewer headers. Raises NotStored."""
        error = await asyncio.to_thread(self._send, record, letter_headers(record, notes))
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            error = await asyncio.to_thread(self._send, record, letter_headers(record, notes, most=LARGE_HEADER))
        self._check(error)

    async def send_again(self, letter: Record, partition: int | None) -> None:
        """Store a dead letter as it is, in this partition of the topic. Raises NotStored."""
        self._check(await asyncio.to_thread(self._send, letter, _own(letter), partition))

    def _check(self, error: KafkaError | None) -> None:
        if error is None:
            return
        reason = f"{error.name()}: {error.str()}"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            reason = f"the record does not fit; raise max.message.bytes of the topic ({reason})"
        elif error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
            reason = f"it is missing; create it ({reason})"
        elif error.code() == KafkaError._MSG_TIMED_OUT and self._last_error is not None:
            reason = f"not confirmed ({self._last_error.name()}: {self._last_error.str()})"
        raise NotStored(reason)

    def close(self) -> None:
        """What was not confirmed is dropped: the record is delivered again. A `send` that still waits ends soon: a
        process that is stopped would wait for its thread.
        """
        self._closed = True
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.purge(blocking=False)
        self._producer = None

    def _send(self, record: Record, headers: list[Header], partition: int | None = None) -> KafkaError | None:
        """Returns what went wrong."""
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        outcome: list[KafkaError | None] = []
        try:
            producer = self._producer = self._producer or Producer(self._config)
            producer.produce(
                self._topic,
                value=record.value(),
                key=record.key(),
                headers=headers,  # type: ignore[arg-type]  # None is a value that a header can have
                on_delivery=lambda error, _: outcome.append(error),
                **where,
            )
            deadline = time.monotonic() + CONFIRM_SECONDS
            while not outcome and not self._closed and time.monotonic() < deadline:
                producer.poll(POLL_SECONDS)
        except KafkaException as failure:
            return error_of(failure)
        if outcome:
            return outcome[0]
        self.close()  # so that nothing is sent later
        return KafkaError(KafkaError._MSG_TIMED_OUT, "no answer")

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error


def letter_headers(record: Record, notes: Mapping[str, str], *, most: int | None = None) -> list[Header]:
    """The record's own headers, where it was, and the notes. With `most`, values of more bytes are left out or cut."""
    about = {
        **notes,
        "postroad-topic": record.topic() or "",
        "postroad-partition": str(record.partition()),
        "postroad-offset": str(record.offset()),
        "postroad-timestamp": str(record.timestamp()[1]),
    }
    own: list[Header] = []
    left_out: list[str] = []
    for name, value in _own(record):
        if name in about:  # of a letter that was retried
            continue
        if most is None or value is None or len(value) <= most:
            own.append((name, value))
        else:
            left_out.append(name)
    if left_out:
        about["postroad-left-out"] = ",".join(left_out)
    return [*own, *((name, value.encode()[:most]) for name, value in about.items())]


def _own(record: Record) -> list[Header]:
    try:
        return [(name, value) for name, value in record.headers() or ()]
    except (UnicodeDecodeError, ValueError):
        return []  # the client can't read their names
