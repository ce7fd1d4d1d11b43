"""Commits of a consumer group's offsets: one at a time, in the background, as often as records need it.

A commit never blocks: without brokers that could take minutes. Called in the client's thread only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroad.brokers.kafka.outages import LATER, error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.kafka.sessions import Session, Sessions
    from postroad.brokers.kafka.window import Progress

__all__ = ["Commits"]

AGAIN_SECONDS: Final = 0.1
"""How long to wait after a commit that failed."""


class Commits:
    """What is committed of all sessions."""

    def __init__(self, sessions: Sessions, interval: float, fail: Callable[[KafkaError, str | None], None]) -> None:
        """`interval`: seconds between commits that no record waits for. `fail` gets errors that will not pass."""
        self._sessions = sessions
        self._interval = interval
        self._fail = fail
        self._next_at = self._retry_at = 0.0
        self._with_metadata = True
        self._under_way: Sequence[tuple[Session, Progress]] = ()

    @property
    def under_way(self) -> bool:
        """A commit has no answer yet."""
        return bool(self._under_way)

    def send_due(self, client: Any, now: float) -> None:
        """Commit what records wait for, and all else that has changed when it is time."""
        if self._under_way or now < self._retry_at:
            return
        due = now >= self._next_at
        progress = self._sessions.to_commit(due=due)
        if progress:
            self._under_way = progress
            self.send(client, progress)
        if due:
            self._next_at = now + self._interval

    def send(self, client: Any, progress: Sequence[tuple[Session, Progress]]) -> None:
        """Send this; the answer comes to `on_commit`. The brokers get it before what the client sends later: that it
        gives partitions up, or leaves the group.
        """
        if not progress:
            return
        offsets = [
            TopicPartition(*session.place, each.offset, each.metadata() if self._with_metadata else "")
            for session, each in progress
        ]
        try:
            client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as failure:
            self._failed(error_of(failure), None)

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called by the client, once for each commit. Those of sessions that have ended are not waited for."""
        offsets = {(each.topic, each.partition): each.offset for each in partitions}
        expected = {session.place: each.offset for session, each in self._under_way}
        if offsets != expected and not (error is not None and not partitions):
            return
        errors = {(each.topic, each.partition): error or each.error for each in partitions}
        self._sessions.confirm(each for each in self._under_way if errors.get(each[0].place, error) is None)
        self._under_way = ()
        for (topic, _), problem in errors.items():
            if problem is not None:
                self._failed(problem, topic)

    def _failed(self, error: KafkaError, topic: str | None) -> None:
        self._under_way = ()
        self._retry_at = time.monotonic() + AGAIN_SECONDS
        if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._with_metadata = False
        elif error.code() not in LATER and not error.retriable():
            self._fail(error, topic)
