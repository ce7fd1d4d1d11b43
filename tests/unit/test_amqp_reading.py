"""Deliveries that pamqp has encoded are read here, in whatever pieces they come."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from postroad.brokers.amqp_reading import Arrival, BrokenFrame, FrameReader

CHANNEL = 1
BODY_MAX = 50

texts = st.text(st.characters(codec="utf-8"), max_size=40)
properties: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "content_type": texts,
        "headers": st.dictionaries(texts, texts | st.integers(-100, 100), max_size=3),
        "message_id": texts,
        "message_type": texts,
        "correlation_id": texts,
        "timestamp": st.integers(1, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    }
)
deliveries = st.tuples(
    st.integers(1, 2**63 - 1), st.booleans(), properties, st.binary(max_size=3 * BODY_MAX), st.booleans()
)


def frames(tag: int, redelivered: bool, known: dict[str, Any], body: bytes, heartbeat: bool) -> Iterator[bytes]:
    deliver = Basic.Deliver("consumer", tag, redelivered=redelivered, exchange="e", routing_key="k")
    yield pamqp.frame.marshal(deliver, CHANNEL)
    if heartbeat:
        yield pamqp.frame.marshal(Heartbeat(), 0)
    header = ContentHeader(body_size=len(body), properties=Basic.Properties(**known))
    yield pamqp.frame.marshal(header, CHANNEL)
    for begin in range(0, len(body), BODY_MAX):
        yield pamqp.frame.marshal(ContentBody(body[begin : begin + BODY_MAX]), CHANNEL)


def as_pamqp_reads(known: dict[str, Any]) -> dict[str, Any]:
    _, _, header = pamqp.frame.unmarshal(pamqp.frame.marshal(ContentHeader(properties=Basic.Properties(**known)), 1))
    assert isinstance(header, ContentHeader)
    return dict(header.properties)


@given(st.lists(deliveries, max_size=4), st.lists(st.integers(0, 4000), max_size=8))
def test_whatever_pieces_they_come_in(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(frame for delivery in sent for frame in frames(*delivery))
    reader = FrameReader()
    for begin, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
        reader.feed(data[begin:end])
    assert [(*arrival[:2], dict(arrival.properties), *arrival[3:]) for arrival in reader.arrived] == [
        (tag, redelivered, as_pamqp_reads(known), body, None) for tag, redelivered, known, body, _ in sent
    ]
    assert list(reader.others) == [pamqp.frame.marshal(Heartbeat(), 0)] * sum(delivery[4] for delivery in sent)


def test_properties_that_can_t_be_read_are_one_delivery_s_only() -> None:
    data = b"".join(frames(7, False, {"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}, b"body", False))
    seconds = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()).to_bytes(8, "big")
    assert data.count(seconds) == 1
    good = b"".join(frames(8, True, {"message_id": "x"}, b"", False))
    reader = FrameReader()
    reader.feed(data.replace(seconds, b"\xff" * 8) + good)
    bad, fine = reader.arrived
    assert bad.body == b"body"
    assert bad.unreadable is not None
    assert "ff" * 8 in bad.unreadable
    assert dict(bad.properties) == dict(Basic.Properties())
    assert fine == Arrival(8, True, fine.properties, b"")
    assert fine.properties.message_id == "x"


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"\x08\x00\x00\x00\x00\x00\x00\x00", "does not end where it should"),
        (b"AMQP\x00\x00\x09\x01", "bytes was announced"),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x3c\x05\xce", "too short"),
    ],
)
def test_what_is_no_amqp_is_refused(data: bytes, wrong: str) -> None:
    with pytest.raises(BrokenFrame, match=wrong):
        FrameReader().feed(data)
