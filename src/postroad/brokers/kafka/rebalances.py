"""What happens when a consumer group gives partitions to this consumer, or takes them away. Called by the client.

- Partitions that go to another consumer wait until their messages are not being processed any more, at most
  `drain_timeout`; then what is finished is committed, and they are given up.
- Partitions that were lost are another consumer's already: nothing is committed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from postroad import events
from postroad.brokers.kafka.positions import first_offset, starts
from postroad.brokers.kafka.window import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError

    from postroad.brokers.kafka.commits import Commits
    from postroad.brokers.kafka.mailbox import Mailbox
    from postroad.brokers.kafka.sessions import Place, Session, Sessions
    from postroad.brokers.kafka.subscriber_settings import SubscriberSettings
    from postroad.events import Event

__all__ = ["Rebalances"]


class Rebalances:
    """Begins and ends sessions. `close` is called in the event loop, all else in the client's thread."""

    def __init__(
        self,
        settings: SubscriberSettings,
        sessions: Sessions,
        commits: Commits,
        mailbox: Mailbox,
        *,
        consumer: str,
        say: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._commits = commits
        self._mailbox = mailbox
        self._consumer = consumer
        self._say = say
        self._closing = False
        self._released: threading.Event | None = None
        self.paused = False
        """Nothing is received any more."""
        self.ends: Mapping[Place, int] = {}
        """Where to begin in partitions of which the group has read nothing, if that is not their first record."""

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closing = True
        if (released := self._released) is not None:
            released.set()

    def on_assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        """The group has given us these partitions, beside those that we have."""
        if self._closing:
            return
        found = starts(client, partitions, self._sessions.size, self.ends)
        client.incremental_assign([TopicPartition(*place, offset) for place, (offset, _) in found.items()])
        client.resume(partitions)  # one that was paused when it was revoked still is
        for place, (offset, before) in found.items():
            self._sessions.begin(place, offset, before)
        if found:
            self._say(events.PartitionsAssigned(self._consumer, partitions=_names(found)))
        self.pause_if_asked(client)

    def on_revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        """The group wants these for another consumer."""
        sessions = self._sessions.of((each.topic, each.partition) for each in partitions)
        if sessions:
            self._drain(sessions)
            self._commits.send(client, self._sessions.last(sessions))
            self._sessions.end(sessions)
        client.incremental_unassign(partitions)

    def on_lost(self, client: Any, partitions: list[TopicPartition]) -> None:
        """The group has taken us for dead."""
        self._lose(self._sessions.of((each.topic, each.partition) for each in partitions))
        client.incremental_unassign(partitions)

    def start_over(self, client: Any, place: Place, error: KafkaError) -> None:
        """The offset is out of range: records were deleted, or the topic was. Go on with the first that is there,
        whatever `start` is: nothing that is there is passed over.
        """
        sessions = self._sessions.of([place])
        if not sessions:
            return
        self._lose(sessions)
        topic, partition = place
        self._say(events.PositionReset(self._consumer, topic=topic, partition=partition, reason=error.str()))
        first = first_offset(client, place)
        client.incremental_unassign([TopicPartition(*place)])
        client.incremental_assign([TopicPartition(*place, first)])
        self._sessions.begin(place, first, Progress(first, first, first + self._sessions.size))
        self.pause_if_asked(client)

    def pause_if_asked(self, client: Any) -> None:
        """Pause all partitions, also new ones, if nothing is to be received any more."""
        if self.paused and self._sessions.by_place:
            client.pause([TopicPartition(*place) for place in self._sessions.by_place])
            for session in self._sessions.by_place.values():
                session.paused = True

    def _drain(self, sessions: Sequence[Session]) -> None:
        released = self._released = threading.Event()
        if not self._closing:
            self._mailbox.revoke(sessions, released.set)
            released.wait(self._settings.seconds("drain_timeout"))
        self._released = None

    def _lose(self, sessions: Sequence[Session]) -> None:
        self._sessions.end(sessions)
        if sessions:
            self._mailbox.revoke(sessions, lambda: None)


def _names(places: Iterable[Place]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return ", ".join(f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic.items())
