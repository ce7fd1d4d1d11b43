from __future__ import annotations

from typing import Any

from postroad.brokers.base import Delivery
from postroad.brokers.kafka.sessions import LEAST_PENDING, Session, Sessions
from postroad.brokers.kafka.window import Progress
from tests.unit.brokers.kafka.test_reading import Record

PLACE = ("orders", 0)


def begun(sessions: Sessions, *sizes: int) -> Session:
    """A session with records of these sizes, which may be delivered."""
    session = sessions.begin(PLACE, 0, None)
    for offset, size in enumerate(sizes):
        sessions.arrive(PLACE, offset, Record(b"x" * size, offset=offset))
    sessions.confirm(sessions.to_commit(due=True))
    return session


def delivered(session: Session) -> list[Delivery]:
    return [
        Delivery(session=session, tag=offset, body=record.value() or b"") for offset, record, _ in session.window.take()
    ]


def test_acks_of_a_session_that_has_ended_are_not_heard() -> None:
    sessions = Sessions(10, 1000)
    session = begun(sessions, 5, 5)
    first, second = delivered(session)
    sessions.ack([first, first])
    assert (session.window.open, session.held) == (1, 5)
    sessions.end([session])
    sessions.ack([second])
    assert session.window.open == 1
    assert sessions.by_place == {}


def test_records_that_an_earlier_owner_has_finished_are_not_held() -> None:
    sessions = Sessions(10, 1000)
    session = sessions.begin(PLACE, 0, Progress(0, 3, 3, (0,)))
    for offset in range(4):
        sessions.arrive(PLACE, offset, Record(b"x" * 10, offset=offset))
    assert (session.held, session.window.pending) == (20, 2)


def test_records_of_a_partition_that_was_revoked_are_dropped() -> None:
    sessions = Sessions(10, 1000)
    sessions.arrive(PLACE, 0, Record())
    sessions.reach(PLACE, 5)
    assert sessions.by_place == {}


def test_partitions_pause_while_too_many_bytes_are_held_and_resume_at_half() -> None:
    sessions = Sessions(10, 100)
    session = begun(sessions, 40, 40, 30)
    assert sessions.to_pause() == [session]
    session.paused = True
    first, second, third = delivered(session)
    sessions.ack([first])
    assert (sessions.to_pause(), sessions.to_resume()) == ([], [])
    sessions.ack([second])
    assert (sessions.to_pause(), sessions.to_resume()) == ([], [session])
    sessions.ack([third])


def test_records_that_the_last_owner_has_finished_hold_no_bytes() -> None:
    """Otherwise they would be held for ever, and at some time nothing more would be received."""
    sessions = Sessions(10, 100)
    session = sessions.begin(PLACE, 0, Progress(0, 10, 10, (0,)))
    for offset in range(12):
        sessions.arrive(PLACE, offset, Record(b"x" * 20, offset=offset))
    sessions.confirm(sessions.to_commit(due=True))
    first, *others = delivered(session)
    assert [first.tag, *(each.tag for each in others)] == [0, 10, 11]
    assert (session.held, sessions.to_pause()) == (60, [])
    sessions.ack([first, *others])
    assert session.held == 0


def test_a_partition_pauses_while_too_many_records_wait() -> None:
    sessions = Sessions(1, 1 << 30)
    session = begun(sessions, *[1] * LEAST_PENDING)
    other: Any = sessions.begin(("orders", 1), 0, None)
    assert sessions.to_pause() == [session]
    assert other not in sessions.to_pause()


def test_a_session_that_has_nothing_new_is_not_committed_again() -> None:
    sessions = Sessions(10, 1000)
    session = begun(sessions, 1)
    assert sessions.to_commit(due=True) == []
    sessions.ack(delivered(session))
    assert sessions.to_commit(due=False) == []
    ((_, progress),) = sessions.to_commit(due=True)
    assert progress.offset == 1
