"""Gives the messages of a call to a producer, in order. Nothing of a key is given to it behind a message that can't be
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.kafka.answers import Verdict, verdict_on
from postroad.brokers.kafka.producer import Answer, Failure, Retired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.kafka.answers import Answers
    from postroad.brokers.kafka.producer import ProducerThread, Sending
    from postroad.brokers.kafka.records import Records
    from postroad.message import StoredMessage

__all__ = ["feed"]


def feed(
    link: ProducerThread, messages: Sequence[StoredMessage], records: Records, sending: Sending, answers: Answers
) -> None:
    """Give the messages to the producer, up to one that it does not take. What can't be sent is refused."""
    count = 0
    record_of = records.of
    ended: set[str | None] = set()
    try:
        with link.in_use() as producer:
            produce = producer.produce
            for message in messages:
                if ended and message.key in ended:
                    continue
                try:
                    topic, value, headers = record_of(message)
                    answer = Answer(message.position, sending)
                    # By position, which costs a quarter less than by name: any partition, and the time is the client's.
                    produce(topic, value, message.key, -1, answer, None, 0, headers)
                except (CannotEncode, KafkaException) as error:
                    _refuse(message, error, records, answers)
                    ended.add(message.key or "")
                else:
                    count += 1
    except (Retired, BufferError):
        pass  # the rest is sent later
    finally:
        sending.sent(count)


def _refuse(message: StoredMessage, error: CannotEncode | KafkaException, records: Records, answers: Answers) -> None:
    """Refuse what can't be given to the producer. Raises Retired if it takes nothing at all any more."""
    if isinstance(error, CannotEncode):
        answers.refuse(message, str(error), permanent=True)
        return
    reason: KafkaError = error.args[0]
    if verdict_on(reason) is Verdict.AGAIN:
        raise Retired from error
    if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        size = f"it has {message.size:,} bytes of payload and headers"
        answers.refuse(message, f"{size}, and max_message_size is {records.max_message_size:,}", permanent=True)
    else:
        answers.refuse_for(message, records.topic_of(message), Failure(reason, None))
