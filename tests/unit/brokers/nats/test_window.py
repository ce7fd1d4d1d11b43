"""Whatever a server delivers, and whenever: nothing is handed out twice in a session, and no later message before one
that was delivered to an earlier session and not acked.
"""

from __future__ import annotations

from random import Random

import pytest

from postroad.brokers.nats.window import Arrived, Window


def collected(*numbers: int) -> Window[int]:
    window: Window[int] = Window(in_order=True)
    for number in numbers:
        assert window.arrive(number, number) is Arrived.KEPT
    return window


def test_new_messages_wait_for_those_of_earlier_sessions() -> None:
    window = collected(2550)
    assert not window.is_complete(pending=51, held_before=1)
    for number in range(2549, 2499, -1):
        assert window.arrive(number, number) is Arrived.KEPT
    assert window.is_complete(pending=51, held_before=51)
    assert window.hand_out() == list(range(2500, 2551))
    assert window.arrive(2551, 2551) is Arrived.NEW


def test_what_arrived_after_the_question_does_not_count() -> None:
    """3 messages of an earlier session are missing, and 3 new ones have come since the server counted."""
    window = collected(10, 11)
    before = len(window)
    for number in (12, 13, 14):
        window.arrive(number, number)
    assert not window.is_complete(pending=5, held_before=before)


def test_what_comes_again_is_known() -> None:
    window = collected(1, 2)
    assert window.arrive(2, 2) is Arrived.HELD
    window.hand_out()
    assert window.arrive(1, 1) is Arrived.HELD
    assert window.ack(1)
    assert not window.ack(1)
    assert window.arrive(1, 1) is Arrived.ACKED
    assert window.held() == [2]


def test_what_is_behind_and_unknown_ends_the_order() -> None:
    window = collected(5)
    window.hand_out()
    assert window.arrive(4, 4) is Arrived.BEHIND
    window.ack(5)
    window.forget(5)
    assert window.arrive(5, 5) is Arrived.BEHIND
    assert len(window) == 0


def test_without_order_all_is_new_at_once() -> None:
    window: Window[int] = Window(in_order=False)
    assert not window.collecting
    assert [window.arrive(number, number) for number in (5, 4, 4)] == [Arrived.NEW, Arrived.NEW, Arrived.HELD]


class Stream:
    """A model of a server, and of consumers that handle each message once. It delivers again what is pending, after any
    number of new messages; acks can be lost.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next = 1
        self.pending: set[int] = set()
        self.handled: list[int] = []

    def deliver(self) -> int | None:
        if self._random.random() < 0.5:
            self.pending.add(self._next)
            self._next += 1
            return self._next - 1
        return self._random.choice(sorted(self.pending)) if self.pending else None

    def handle(self, number: int) -> None:
        if number not in self.handled:
            self.handled.append(number)
        if self._random.random() < 0.8:
            self.pending.discard(number)


def session(stream: Stream, random: Random) -> None:
    window: Window[int] = Window(in_order=True)
    ready: list[int] = []
    for _ in range(random.randrange(60)):
        number = stream.deliver()
        arrived = Arrived.HELD if number is None else window.arrive(number, number)
        if arrived is Arrived.BEHIND:
            return
        if arrived is Arrived.NEW and number is not None:
            ready.append(number)
        if arrived is Arrived.ACKED and number is not None:
            stream.pending.discard(number)
        if window.collecting and window.is_complete(len(stream.pending), len(window)):
            ready += window.hand_out()
        elif ready and random.random() < 0.6:
            window.ack(ready[0])
            stream.handle(ready.pop(0))


@pytest.mark.parametrize("seed", range(200))
def test_a_stream_over_many_sessions(seed: int) -> None:
    random = Random(seed)
    stream = Stream(random)
    for _ in range(random.randrange(1, 6)):
        session(stream, random)
    assert stream.handled == sorted(stream.handled)
