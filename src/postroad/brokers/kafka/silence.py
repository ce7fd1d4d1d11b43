"""What is at fault when messages are not confirmed in time. librdkafka tries again and again whatever happens, so an
outage, a deleted topic and too few replicas look alike; the brokers are asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.brokers.kafka.answers import Verdict, verdict_on
from postroad.brokers.kafka.cluster import trouble_with
from postroad.brokers.kafka.producer import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from confluent_kafka.admin import ClusterMetadata

    from postroad.brokers.kafka.answers import Answers
    from postroad.brokers.kafka.producer import Sending
    from postroad.brokers.kafka.records import Records
    from postroad.message import StoredMessage

__all__ = ["explain"]

_OF_TOPIC: Final = {Verdict.ROUTE, Verdict.UNROUTABLE, Verdict.PERMANENT}
"""What a topic is at fault for. All else, such as a leader that is being elected, passes, and counts no attempt."""


async def explain(
    messages: Sequence[StoredMessage],
    sending: Sending,
    answers: Answers,
    records: Records,
    ask: Callable[[str], Awaitable[ClusterMetadata]],
) -> str | None:
    """Refuse the messages whose topic or partition is at fault; what was not confirmed has been dropped.

    Where other partitions have confirmed, it is the partition. Otherwise the brokers are unavailable: returns what they
    say of the first message, or raises what `ask` raises.
    """
    unanswered = [message for message in messages if message.position in sending.failed]
    topics = {topic: await ask(topic) for topic in dict.fromkeys(map(records.topic_of, unanswered))}
    states = []
    for message in unanswered:
        topic, partition = records.topic_of(message), sending.failed[message.position].partition
        error, state = trouble_with(topics[topic], topic, partition)
        if error is not None and verdict_on(error) in _OF_TOPIC:
            answers.refuse_for(message, topic, Failure(error, partition))
            continue
        states.append(state)
        if answers.confirmed:
            answers.refuse(message, f"it was not confirmed in time; {state}", route=f"{topic}[{partition}]")
    return states[0] if states and not answers.confirmed else None
