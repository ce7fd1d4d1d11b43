from typing import Any

import hiredis
import pytest

from postroad.brokers.redis.answers import Answers, is_outage, refusal
from postroad.brokers.redis.entries import Entry
from postroad.message import StoredMessage
from tests.destinations import stored


def entry(*positions: int, key: str = "k") -> Entry:
    """The first of these, followed by the others."""
    first, *followers = [Entry("orders", stored(position, key=key), b"", 0) for position in positions]
    first.followers = followers or None
    return first


def messages(entry: Entry) -> list[StoredMessage]:
    return [each.message for each in entry.all]


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        ("READONLY You can't write against a read only replica.", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("MOVED 3999 127.0.0.1:6381", True),
        ("NOPERM User relay has no permissions to run the 'eval' command", True),
        ("ERR unknown command 'XADD', with args beginning with: ", True),
        ("NOPERM No permissions to access a key", False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ERR something new", False),
    ],
)
def test_what_is_an_outage(error: str, outage: bool) -> None:
    assert is_outage(error) is outage


@pytest.mark.parametrize(
    ("error", "route", "unroutable", "permanent"),
    [
        ("WRONGTYPE Operation against a key", "orders", False, False),
        ("NOPERM No permissions to access a key", "orders", False, False),
        ("NOSTREAM", "orders", True, False),
        ("ERR something new", None, False, False),
        ("ERR Protocol error: invalid bulk length", None, False, True),
    ],
)
def test_refusals(error: str, route: str | None, unroutable: bool, permanent: bool) -> None:
    found = refusal(stored(7), "orders", error)
    assert (found.position, found.route, found.unroutable, found.permanent) == (7, route, unroutable, permanent)


@pytest.mark.parametrize(
    ("reply", "confirmed", "refused"),
    [
        ([3], [1, 2, 3], []),
        ([1, b"WRONGTYPE it is a text"], [1], [2]),
        ([1, b"-WRONGTYPE it is a text"], [1], [2]),
        ([0, b"NOSTREAM"], [], [1]),
        (hiredis.ReplyError("NOPERM No permissions to access a key"), [], [1]),
    ],
)
def test_a_script_stops_at_the_first_that_is_refused(reply: Any, confirmed: list[int], refused: list[int]) -> None:
    several = entry(1, 2, 3)
    answers = Answers(messages(several))
    assert answers.note(several, reply) is None
    answers.confirm_taken()
    assert sorted(answers.confirmed) == confirmed
    assert [each.position for each in answers.refusals()] == refused
    assert list(answers.missing()) == []


def test_what_was_taken_is_confirmed_only_when_it_is_safe() -> None:
    one = entry(1)
    answers = Answers(messages(one))
    assert answers.note(one, b"1-0") is None
    assert answers.confirmed == set()
    answers.confirm_taken()
    assert answers.confirmed == {1}


def test_an_outage_refuses_nothing() -> None:
    several = entry(1, 2, 3)
    answers = Answers(messages(several))
    assert answers.note(several, [1, b"OOM command not allowed"]) == "OOM command not allowed"
    answers.confirm_taken()
    assert (answers.confirmed, answers.refusals()) == ({1}, [])
    assert [message.position for message in answers.missing()] == [2, 3]


def test_a_refusal_ends_its_key_only() -> None:
    page = [stored(1, key="k"), stored(2, key="k"), stored(3, key="l"), stored(4, key=None)]
    answers = Answers(page)
    answers.note(Entry("orders", page[0], b"", 0), None)
    assert [message.position for message in answers.missing()] == [3, 4]
