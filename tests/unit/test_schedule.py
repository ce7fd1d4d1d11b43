"""When a message is to be delivered, and every way to say it wrong; and what canceling answers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import Cancellation, InvalidMessage, Message, Outbox
from postroad.message import encode
from postroad.schedule import Later, later
from postroad.stores.memory import MemoryStore


def scheduled(**when: Any) -> Later:
    message = Message("x", type="t", **when)
    return later(message, encode(message, "/tests"))


class Nowhere(tzinfo):
    """A time zone that does not know where it is."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


def test_a_moment_is_microseconds_since_1970_in_any_zone() -> None:
    east = datetime(1970, 1, 1, 3, 0, 0, 7, tzinfo=timezone(timedelta(hours=2)))
    assert scheduled(deliver_at=east)[1:] == (3_600_000_007, None)
    assert scheduled(deliver_at=datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))[1:] == (-1_000_000, None)


@given(
    st.datetimes(
        datetime.fromisoformat("1900-01-02"),
        datetime.fromisoformat("9998-12-30"),
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=-12)), timezone(timedelta(hours=14))]),
    )
)
def test_every_moment_is_kept_to_the_microsecond(moment: datetime) -> None:
    at = scheduled(deliver_at=moment).at
    assert at is not None
    assert timedelta(microseconds=at) == moment - datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "kept"), [("0001-01-01", "1900-01-01T00:00:00"), ("9999-12-31", "9998-12-31T23:59:59")]
)
def test_a_moment_outside_what_databases_keep_becomes_the_nearest_one_inside(moment: str, kept: str) -> None:
    at = scheduled(deliver_at=datetime.fromisoformat(f"{moment}T00:00:00-12:00")).at
    assert at is not None
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at) == datetime.fromisoformat(f"{kept}+00:00")


@pytest.mark.parametrize(
    ("wait", "microseconds"),
    [
        (timedelta(seconds=1.5), 1_500_000),
        ("10m", 600_000_000),
        ("50 ms", 50_000),
        ("0", 0),
        (timedelta(0), 0),
        ("7d", 604_800_000_000),
    ],
)
def test_a_wait_is_a_timedelta_or_a_text(wait: Any, microseconds: int) -> None:
    assert scheduled(deliver_in=wait)[1:] == (None, microseconds)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"deliver_at": datetime(2030, 1, 1)}, r"deliver_at is datetime.datetime\(2030, 1, 1.*time zone.*now\(UTC\)"),  # noqa: DTZ001
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=Nowhere())}, "deliver_at is .*time zone"),
        ({"deliver_at": date(2030, 1, 1)}, r"deliver_at is datetime.date\(2030, 1, 1\); it must be a datetime with"),
        ({"deliver_at": "2030-01-01T00:00:00Z"}, "deliver_at is '2030-01-01T00:00:00Z'; it must be a datetime"),
        ({"deliver_at": 1893456000}, "deliver_at is 1893456000; it must be a datetime"),
        ({"deliver_in": timedelta(seconds=-1)}, r"deliver_in is datetime.timedelta\(days=-1.*from 0 to"),
        ({"deliver_in": "-5s"}, "deliver_in is '-5s'; it must be"),
        ({"deliver_in": "10"}, "deliver_in is '10'; it must be .*a number with its unit, such as"),
        ({"deliver_in": 10}, "deliver_in is 10; it must be"),
        ({"deliver_in": timedelta(days=40_000)}, "36,500 days"),
        (
            {"deliver_in": "5s", "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "deliver_at is .* and deliver_in is '5s'; give one of them, not both",
        ),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_added(when: dict[str, Any], words: str) -> None:
    outbox = Outbox(source="/tests")
    store = MemoryStore()
    with store.begin() as transaction:
        with pytest.raises(InvalidMessage, match=words):
            outbox.add(transaction, "x", type="t", **when)
        with pytest.raises(InvalidMessage, match=words):
            outbox.add_many(transaction, [Message("x", type="t"), Message("x", type="t", **when)])
        assert (transaction.rows, transaction.later) == ([], [])


def test_only_what_was_canceled_is_true() -> None:
    assert [bool(each) for each in Cancellation] == [True, False, False]


@pytest.mark.parametrize("id", ["0190", None, 7])
def test_an_id_that_is_none_is_named(id: Any) -> None:
    with MemoryStore().begin() as transaction, pytest.raises(InvalidMessage, match="must be a uuid.UUID"):
        Outbox(source="/tests").cancel(transaction, id)
