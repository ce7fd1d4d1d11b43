"""The fewest acks that say what is dealt with, and none of them twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.rabbitmq.acks import Ack, Acks


def test_all_without_a_gap_are_one_ack() -> None:
    acks = Acks()
    for tag in (2, 1, 3):
        acks.done(tag)
    assert acks.next() == [Ack(3, multiple=True)]
    assert acks.next() == []


def test_what_is_beyond_a_gap_is_acked_by_itself_and_not_again() -> None:
    acks = Acks()
    for tag in (1, 3, 5):
        acks.done(tag)
    assert acks.next() == [Ack(1, multiple=True), Ack(3, multiple=False), Ack(5, multiple=False)]
    acks.done(2)
    assert acks.next() == [Ack(2, multiple=True)]
    acks.done(4)
    assert acks.next() == [Ack(4, multiple=True)]
    acks.done(5)
    assert acks.next() == []


def test_what_is_given_back_is_not_acked() -> None:
    acks = Acks()
    assert acks.mark_sent(2)
    assert not acks.mark_sent(2)
    for tag in (1, 2, 3):
        acks.done(tag)
    assert acks.next() == [Ack(3, multiple=True)], "the broker knows 2 already, and takes the ack for the others"


@given(st.permutations(range(1, 30)), st.sets(st.integers(1, 29)), st.sets(st.integers(0, 28)))
def test_a_broker_hears_of_each_once_and_never_of_what_is_open(
    order: list[int], given_back: set[int], flushes: set[int]
) -> None:
    """RabbitMQ closes the channel for a tag that it doesn't know, or knows no more."""
    acks, unacked, done = Acks(), set(range(1, 30)), set[int]()
    for number, tag in enumerate(order):
        if tag in given_back:
            assert acks.mark_sent(tag)
            unacked.discard(tag)
        else:
            acks.done(tag)
            done.add(tag)
        for ack in acks.next() if number in flushes else []:
            assert ack.tag in unacked
            acked = {each for each in unacked if each <= ack.tag} if ack.multiple else {ack.tag}
            assert acked <= done
            unacked -= acked
    for ack in acks.next():
        assert ack.tag in unacked
        unacked -= {each for each in unacked if each <= ack.tag} if ack.multiple else {ack.tag}
    assert not unacked
