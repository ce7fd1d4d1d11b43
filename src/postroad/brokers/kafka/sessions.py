"""The partitions that a consumer has now: each is a session with a window of its own, which ends by itself.

Acks come from the event loop and records from the client's thread: `lock` guards what both change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from postroad.brokers.kafka.window import Progress, Window

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from postroad.brokers.base import Delivery
    from postroad.brokers.kafka.reading import Record

__all__ = ["Place", "Session", "Sessions"]

Place = tuple[str, int]
"""Topic and partition."""

LEAST_PENDING: Final = 500


class Session:
    """One partition, from its assignment until it is revoked."""

    def __init__(self, place: Place, window: Window[Record]) -> None:
        self.place = place
        self.window = window
        self.held = 0
        """The bytes of records that are not finished."""
        self.ended = False
        self.paused = False

    def __repr__(self) -> str:
        return f"{self.place[0]}[{self.place[1]}]"


class Sessions:
    """All sessions of a consumer."""

    def __init__(self, size: int, most_bytes: int) -> None:
        self.size = size
        self._most_bytes = most_bytes
        self._most_pending = max(LEAST_PENDING, size)
        self._over = False
        self.lock = threading.Lock()
        self.by_place: dict[Place, Session] = {}

    def begin(self, place: Place, start: int, before: Progress | None) -> Session:
        """The partition was assigned."""
        with self.lock:
            session = self.by_place[place] = Session(place, Window(self.size, start, before))
        return session

    def of(self, places: Iterable[Place]) -> list[Session]:
        """The sessions of these partitions."""
        return [self.by_place[place] for place in places if place in self.by_place]

    def end(self, sessions: Collection[Session]) -> None:
        """Remove these sessions: later acks of them are ignored."""
        with self.lock:
            for session in sessions:
                session.ended = True
                if self.by_place.get(session.place) is session:
                    del self.by_place[session.place]

    def arrive(self, place: Place, offset: int, record: Record) -> None:
        """A record came. One of a partition that was revoked meanwhile belongs to another consumer."""
        session = self.by_place.get(place)
        if session is not None:
            with self.lock:
                if session.window.arrive(offset, record):
                    session.held += len(record.value() or b"")

    def reach(self, place: Place, offset: int) -> None:
        """The end of a partition was reached."""
        if place in self.by_place:
            with self.lock:
                self.by_place[place].window.reach(offset)

    def ack(self, deliveries: Iterable[Delivery]) -> bool:
        """These are finished. Acks of a session that has ended are ignored. Returns whether records wait for which
        there is room now.
        """
        room = False
        with self.lock:
            for delivery in deliveries:
                session = delivery.session
                if isinstance(session, Session) and not session.ended and session.window.finish(delivery.tag):
                    session.held -= len(delivery.body)
                    room = room or session.window.has_room
        return room

    # -- what to do next ---------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Records wait for acks."""
        return any(session.window.pending for session in self.by_place.values())

    def to_commit(self, *, due: bool) -> list[tuple[Session, Progress]]:
        """What has changed, if that is due, or if records wait for it."""
        with self.lock:
            every = list(self.by_place.values())
            if not due and not any(session.window.urgent for session in every):
                return []
            return [
                (session, session.window.progress())
                for session in every
                if session.window.urgent or session.window.changed
            ]

    def last(self, sessions: Iterable[Session]) -> list[tuple[Session, Progress]]:
        """What is committed when nothing more of these will be delivered here."""
        with self.lock:
            return [(session, session.window.last_progress()) for session in sessions]

    def confirm(self, committed: Iterable[tuple[Session, Progress]]) -> None:
        """The broker has committed this."""
        with self.lock:
            for session, progress in committed:
                session.window.confirm(progress)

    def to_pause(self) -> list[Session]:
        """Those of which too much waits. The client goes on polling without them, and stays in its group."""
        held = sum(session.held for session in self.by_place.values())
        self._over = held >= (self._most_bytes // 2 if self._over else self._most_bytes)
        return [
            session
            for session in self.by_place.values()
            if not session.paused and (self._over or session.window.pending >= self._most_pending)
        ]

    def to_resume(self) -> list[Session]:
        """Those of which more may come again."""
        return [
            session
            for session in self.by_place.values()
            if session.paused and not self._over and session.window.pending < self._most_pending // 4
        ]
