"""What the answers of Kafka mean, and the answers to the messages of one call. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from postroad.brokers.kafka.cluster import Unreachable
from postroad.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroad.brokers.kafka.producer import Failure
    from postroad.message import StoredMessage

__all__ = ["Answers", "Verdict", "verdict_on"]


class Verdict(Enum):
    """What to do about a message that was not confirmed."""

    AGAIN = "it was dropped before it was answered; send it again"
    SUSPECT = "it, or another one of its batch, is at fault; send it alone"
    ROUTE = "its topic takes nothing for now"
    UNROUTABLE = "there is no such topic"
    PERMANENT = "it can never be taken"
    OUTAGE = "the cluster takes nothing for now"


_VERDICTS: Final = {
    KafkaError._PURGE_QUEUE: Verdict.AGAIN,
    KafkaError._PURGE_INFLIGHT: Verdict.AGAIN,
    KafkaError._FATAL: Verdict.AGAIN,
    KafkaError._MSG_TIMED_OUT: Verdict.AGAIN,
    KafkaError._STATE: Verdict.AGAIN,  # its transaction has failed, because of another message
    KafkaError._UNKNOWN_TOPIC: Verdict.UNROUTABLE,
    KafkaError._UNKNOWN_PARTITION: Verdict.UNROUTABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Verdict.UNROUTABLE,
    KafkaError.UNKNOWN_TOPIC_ID: Verdict.UNROUTABLE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Verdict.ROUTE,
    KafkaError.TOPIC_EXCEPTION: Verdict.PERMANENT,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Verdict.OUTAGE,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.OUTAGE,
}
_PERMANENT_ALONE: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}


def verdict_on(error: KafkaError) -> Verdict:
    """What an error of a delivery report means for its message."""
    found = _VERDICTS.get(error.code())
    if found is None:
        found = Verdict.AGAIN if error.retriable() else Verdict.SUSPECT
    return found


class Answers:
    """The answers to the messages of one call, in the order of the call.

    A message is taken or refused only after all before it, of its key, were taken. So a refusal ends its key in this
    call; and one that came too early, because what was before it had to be sent again, counts only if that is taken.
    """

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        self._messages = messages
        self.confirmed: set[int] = set()
        self._refusals: dict[int, Refusal] = {}

    @property
    def count(self) -> int:
        """How many answers there are."""
        return len(self.confirmed) + len(self._refusals)

    def refuse(
        self,
        message: StoredMessage,
        reason: str,
        *,
        permanent: bool = False,
        route: str | None = None,
        unroutable: bool = False,
    ) -> None:
        """Refuse a message."""
        self._refusals[message.position] = Refusal(message.position, reason, permanent, route, unroutable)

    def decide(
        self,
        messages: Sequence[StoredMessage],
        failed: Mapping[int, Failure],
        topic_of: Callable[[StoredMessage], str],
        *,
        alone: bool = False,
    ) -> set[int]:
        """Refuse what is refused for certain; with `alone`, each message had a batch of its own. Returns what has to be
        sent alone, because one of it is at fault. Raises Unreachable.
        """
        suspects: set[int] = set()
        for message in messages if failed else ():
            failure = failed.get(message.position)
            verdict = Verdict.AGAIN if failure is None else verdict_on(failure.error)
            if failure is None or verdict is Verdict.AGAIN:
                continue
            if verdict is Verdict.OUTAGE:
                raise Unreachable(failure.error.str())
            if verdict is Verdict.SUSPECT and not alone:
                suspects.add(message.position)
            else:
                self.refuse_for(message, topic_of(message), failure, alone=alone)
        return suspects

    def refuse_for(self, message: StoredMessage, topic: str, failure: Failure, *, alone: bool = False) -> None:
        """Refuse a message for what Kafka said about it, or, when it was sent alone, about its batch."""
        error, verdict = failure.error, verdict_on(failure.error)
        match verdict:
            case Verdict.UNROUTABLE:
                reason = f"there is no topic {topic!r}; create it ({error.str()})"
                self.refuse(message, reason, route=topic, unroutable=True)
            case Verdict.ROUTE:
                self.refuse(message, f"the user may not write to topic {topic!r} ({error.str()})", route=topic)
            case _:
                permanent = verdict is Verdict.PERMANENT or (alone and error.code() in _PERMANENT_ALONE)
                self.refuse(message, f"Kafka refuses it: {error.str()} ({error.name()})", permanent=permanent)

    def missing(self) -> Sequence[StoredMessage]:
        """The messages that have no answer and are to get one: all but those behind a refused one of their key."""
        if not self.count:
            return self._messages
        if len(self.confirmed) == len(self._messages):
            return ()
        ended: set[str | None] = set()
        found = []
        for message in self._messages:
            if message.position in self._refusals:
                if message.key is not None:
                    ended.add(message.key)
            elif message.position not in self.confirmed and message.key not in ended:
                found.append(message)
        return found

    def first_missing(self) -> list[StoredMessage]:
        """Of each key, the message that is to be taken next; and all without a key."""
        first: dict[object, StoredMessage] = {}
        for message in self.missing():
            first.setdefault(message.position if message.key is None else message.key, message)
        return list(first.values())

    def refusals(self) -> list[Refusal]:
        """The refusals that count, in order."""
        if not self._refusals:
            return []
        ended: set[str] = set()
        found = []
        for message in self._messages:
            if message.position in self.confirmed or message.key in ended:
                continue
            if message.position in self._refusals:
                found.append(self._refusals[message.position])
            if message.key is not None:
                ended.add(message.key)
        return found
