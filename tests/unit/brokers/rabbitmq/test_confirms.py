"""What the broker's answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.rabbitmq.confirms import Confirms
from tests.destinations import a_page

# The positions of a page are 1, 2, 3 ... in these tests, and its tags begin at 11.


def a_page_of(size: int) -> Confirms:
    page = Confirms(first_tag=11)
    page.wrote(a_page(size))
    return page


def test_one_ack_confirms_one_message() -> None:
    page = a_page_of(3)
    page.acked(12, multiple=False)
    assert page.confirmed == [2]
    assert [message.position for message in page.unanswered] == [1, 3]
    assert not page.answered


def test_a_multiple_ack_confirms_all_up_to_it() -> None:
    page = a_page_of(4)
    page.acked(12, multiple=False)
    page.acked(13, multiple=True)
    assert page.confirmed == [1, 2, 3]
    page.acked(14, multiple=True)
    assert page.answered


def test_a_multiple_nack_leaves_what_was_confirmed_before() -> None:
    page = a_page_of(4)
    page.acked(11, multiple=False)
    page.nacked(13, multiple=True)
    assert page.confirmed == [1]
    assert [message.position for message, _ in page.refused] == [2, 3]
    assert [message.position for message in page.unanswered] == [4]


def test_a_returned_message_is_refused_although_it_is_acked() -> None:
    page = a_page_of(3)
    page.returned(str(page.messages[1].id), "no queue")
    page.acked(13, multiple=True)
    assert page.confirmed == [1, 3]
    assert [(message.position, reason) for message, reason in page.refused] == [(2, "no queue")]


def test_a_returned_message_needs_no_ack_to_be_refused() -> None:
    page = a_page_of(2)
    page.returned(str(page.messages[1].id), "no queue")
    assert [message.position for message in page.unanswered] == [1]
    assert [message.position for message, _ in page.refused] == [2]


def test_a_return_between_two_writes() -> None:
    page = Confirms(first_tag=1)
    first, second = a_page(2)
    page.wrote([first])
    page.returned(str(first.id), "no queue")
    page.wrote([second])
    page.returned(str(second.id), "no queue")
    assert [message.position for message, _ in page.refused] == [1, 2]


def test_answers_to_an_older_page_mean_nothing() -> None:
    page = a_page_of(2)
    page.acked(10, multiple=True)
    page.acked(3, multiple=False)
    page.nacked(10, multiple=True)
    page.returned("somebody-else", "no queue")
    page.returned(None, "no queue")
    assert page.confirmed == []
    assert page.refused == []


@pytest.mark.parametrize("tag", [1_000, (1 << 64) - 1])
@pytest.mark.parametrize("positive", [True, False])
def test_an_answer_counts_only_for_what_was_written(tag: int, positive: bool) -> None:
    """A tag far beyond it says nothing of what is written next, and costs no more than any other."""
    page = a_page_of(2)
    (page.acked if positive else page.nacked)(tag, multiple=True)
    assert page.answered
    page.wrote(a_page(2, first=3))
    assert [message.position for message in page.unanswered] == [3, 4]
    page.acked(14, multiple=True)
    assert page.confirmed == ([1, 2, 3, 4] if positive else [3, 4])


def test_tags_go_on_from_page_to_page() -> None:
    assert a_page_of(3).next_tag == 14


answers = st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=30)


@given(answers)
def test_every_message_is_in_one_state(answers: list[tuple[int, bool, bool]]) -> None:
    page = Confirms(first_tag=1)
    page.wrote(a_page(12))
    expected: dict[int, bool] = {}
    for tag, multiple, positive in answers:
        for each in range(1 if multiple else tag, tag + 1):
            expected.setdefault(each, positive)  # the first answer counts
        (page.acked if positive else page.nacked)(tag, multiple=multiple)
    assert page.confirmed == sorted(position for position, positive in expected.items() if positive)
    assert [message.position for message, _ in page.refused] == sorted(
        position for position, positive in expected.items() if not positive
    )
    assert [message.position for message in page.unanswered] == [each for each in range(1, 13) if each not in expected]
    assert page.answered == (len(expected) == 12)
