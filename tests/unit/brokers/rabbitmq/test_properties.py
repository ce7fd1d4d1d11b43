"""What a dead letter has beside its body is read with pamqp's decoder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from postroad.brokers.rabbitmq import properties as module
from postroad.brokers.rabbitmq.properties import LEFT_OUT, USER_ID, dead_letter

ROOM = 100_000
NOTES = {"postroad-reason": "it is bad", "postroad-consumer": "c"}

texts = st.text(st.characters(codec="utf-8"), max_size=40)
values = (
    texts | st.integers(-(2**40), 2**40) | st.booleans() | st.none() | st.binary().map(bytearray)
    | st.floats(width=32, allow_nan=False) | st.just(Decimal("1.5")) | st.just(datetime(2026, 1, 1, tzinfo=UTC))
)  # fmt: skip
nested = st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
properties: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "content_type": texts,
        "content_encoding": texts,
        "headers": st.dictionaries(texts, nested, max_size=4),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": texts,
        "reply_to": texts,
        "expiration": texts,
        "message_id": texts,
        "timestamp": st.just(datetime(2026, 1, 1, tzinfo=UTC)),
        "message_type": texts,
        "user_id": texts.filter(bool),
        "app_id": texts,
    },
)


def encoded(known: dict[str, Any]) -> bytes:
    return ContentHeader(properties=Basic.Properties(**known)).marshal()[12:]


def read(raw: bytes) -> dict[str, Any]:
    header = ContentHeader()
    header.unmarshal(b"\0" * 12 + raw)
    return dict(header.properties)


@given(properties)
def test_everything_is_kept_that_a_dead_letter_may_have(known: dict[str, Any]) -> None:
    before = read(encoded(known))
    letter = dead_letter(encoded(known), NOTES, room=ROOM)
    after = read(letter.properties)
    notes = {**NOTES, **({USER_ID: before["user_id"]} if before["user_id"] else {})}
    assert after == {
        **before,
        "headers": {**(before["headers"] or {}), **notes},
        "delivery_mode": 2,
        "expiration": None,
        "user_id": None,
        "message_id": before["message_id"] or letter.message_id,
    }
    assert after["message_id"] == letter.message_id
    assert dead_letter(letter.properties, notes, room=ROOM) == letter, "a dead letter that dies again"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x20\x00\x00\x00\x00\x09\x01aS\x00\x00\x00\x02\xff\xfe",  # a header that is no UTF-8
        b"\x00\x40" + b"\xff" * 8,  # a timestamp that no calendar has
        b"\x00\x04\x01x",  # a cluster id, which pamqp reads and does not write
        b"\x20\x00\x00\x00\x00\x0b\x01ad\x7e\x37\xe4\x3c\x88\x00\x75\x9c",  # a double that is no float
    ],
)
def test_what_pamqp_would_not_write_is_kept(raw: bytes) -> None:
    letter = dead_letter(raw, {}, room=ROOM)
    kept = raw[2:] if raw[0] != 0x20 else raw[6:]
    assert kept in letter.properties
    assert letter.properties.count(b"postroad") == 0


@pytest.mark.parametrize(
    "raw", [b"", b"\x80", b"\x80\x00", b"\x80\x00\x05abc", b"\x00\x00left", b"\x20\x00\x00\x00\x00\x03\x01a?"]
)
def test_what_makes_no_sense_is_left_out_and_named(raw: bytes) -> None:
    after = read(dead_letter(raw, NOTES, room=ROOM).properties)
    assert after["headers"] == {**NOTES, LEFT_OUT: "all properties, which can't be decoded"}


def test_the_largest_headers_make_room() -> None:
    headers = {"small": "x", "large": "x" * 3000, "larger": "x" * 5000, "middle": "x" * 500}
    letter = dead_letter(encoded({"headers": headers, "message_id": "m"}), NOTES, room=1000)
    after = read(letter.properties)
    assert len(letter.properties) <= 1000
    assert after["message_id"] == "m"
    assert after["headers"] == {
        "small": "x",
        "middle": "x" * 500,
        **NOTES,
        LEFT_OUT: "the headers larger, large, which are too large",
    }


def test_a_long_reason_is_cut_where_frames_are_small() -> None:
    """2,000 characters may be 8,000 bytes, and a broker may allow frames of 4,096."""
    reason = "\N{POSTAL HORN}" * 2000
    letter = dead_letter(encoded({"headers": {"mine": "x"}}), {**NOTES, "postroad-reason": reason}, room=4076)
    headers = read(letter.properties)["headers"]
    assert len(letter.properties) <= 4076
    assert reason.startswith(headers["postroad-reason"])
    assert headers["postroad-reason"]
    assert headers["postroad-consumer"] == NOTES["postroad-consumer"]


def test_the_work_grows_with_the_headers_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    for name in ("_encoded", "table"):
        monkeypatch.setattr(module, name, counting(getattr(module, name), written))
    headers = encoded({"headers": {f"h{number}": "" for number in range(12_000)}})
    assert len(headers) > 100_000
    letter = dead_letter(headers, NOTES, room=4096)
    assert len(letter.properties) <= 4096
    assert sum(written) < 2 * len(headers), "each header is written once at most"
    after = read(letter.properties)["headers"]
    assert after[LEFT_OUT].startswith("the headers h")
    assert len(after) > 200, "no more are left out than have to be"


def counting(write: Callable[..., bytes], written: list[int]) -> Callable[..., bytes]:
    def counted(*arguments: Any) -> bytes:
        result = write(*arguments)
        written.append(len(result))
        return result

    return counted
