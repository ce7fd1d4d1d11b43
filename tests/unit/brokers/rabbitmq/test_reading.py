"""Deliveries that pamqp has encoded are read here, in whatever pieces they come."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pamqp.frame
import pytest
from aiormq.exceptions import AMQPConnectionError
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from postroad.brokers.rabbitmq.decoding import Known
from postroad.brokers.rabbitmq.deliveries import _Receiver
from postroad.brokers.rabbitmq.reading import Arrival, BrokenFrame, FrameReader

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


def as_pamqp_reads(known: dict[str, Any]) -> Known:
    _, _, header = pamqp.frame.unmarshal(pamqp.frame.marshal(ContentHeader(properties=Basic.Properties(**known)), 1))
    assert isinstance(header, ContentHeader)
    its = header.properties
    return Known(its.content_type, its.headers, its.correlation_id, its.message_id, its.message_type)


@given(st.lists(deliveries, max_size=4), st.lists(st.integers(0, 4000), max_size=8))
def test_whatever_pieces_they_come_in(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(frame for delivery in sent for frame in frames(*delivery))
    reader = FrameReader(CHANNEL)
    for begin, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
        reader.feed(data[begin:end])
    assert [
        (arrival.tag, arrival.redelivered, arrival.properties, arrival.body, arrival.unreadable)
        for arrival in reader.arrived
    ] == [(tag, redelivered, as_pamqp_reads(known), body, None) for tag, redelivered, known, body, _ in sent]
    assert list(reader.others) == [pamqp.frame.marshal(Heartbeat(), 0)] * sum(delivery[4] for delivery in sent)


def test_properties_that_can_t_be_read_are_one_delivery_s_only() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    data = b"".join(frames(7, False, {"message_id": "mine", "timestamp": when}, b"body", False))
    seconds = int(when.timestamp()).to_bytes(8, "big")
    assert data.count(seconds) == 1
    good = b"".join(frames(8, True, {"message_id": "x"}, b"", False))
    reader = FrameReader(CHANNEL)
    reader.feed(data.replace(seconds, b"\xff" * 8) + good)
    bad, fine = reader.arrived
    assert bad.body == b"body"
    assert bad.unreadable is not None
    assert bad.raw == b"\x00\xc0\x04mine" + b"\xff" * 8
    assert bad.properties.message_id == "mine", "what comes before can be read"
    assert fine == Arrival(8, True, fine.properties, b"\x00\x80\x01x", b"")
    assert fine.properties.message_id == "x"


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


DELIVER, HEADER, BODY, MORE = frames(1, False, {}, b"x" * (BODY_MAX + 1), False)


def test_what_is_for_another_channel_is_not_ours() -> None:
    reader = FrameReader(CHANNEL)
    other = DELIVER[:1] + b"\x00\x07" + DELIVER[3:]
    reader.feed(other + DELIVER + HEADER + BODY + MORE)
    assert (len(reader.arrived), list(reader.others)) == (1, [other])


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"\x08\x00\x00\x00\x00\x00\x00\x00", "does not end where it should"),
        (b"AMQP\x00\x00\x09\x01", "bytes was announced"),
        (frame(1, b"\x00\x3c\x00\x3c\x05") + DELIVER, "too short"),
        (DELIVER + frame(2, b"\x00\x3c"), "too short"),
        (DELIVER + DELIVER, "before the one before it has ended"),
        (DELIVER + HEADER + HEADER, "two headers"),
        (DELIVER + BODY, "a longer body than was announced"),
        (DELIVER + HEADER + BODY + BODY, "a longer body than was announced"),
    ],
)
def test_what_is_no_amqp_is_refused(data: bytes, wrong: str) -> None:
    with pytest.raises(BrokenFrame, match=wrong):
        FrameReader(CHANNEL).feed(data)


def test_a_body_that_is_too_large_is_not_held_in_memory() -> None:
    body = bytes(range(256)) * 2
    large, small = (
        b"".join(frames(tag, False, {"message_id": "x"}, each, False)) for tag, each in ((1, body), (2, b"y"))
    )
    reader = FrameReader(CHANNEL, largest=len(body) - 1)
    reader.feed(large + small)
    spooled, fine = reader.arrived
    assert (spooled.body, spooled.body_size, spooled.held) == (b"", len(body), len(spooled.raw))
    assert spooled.unreadable == "its body has 512 bytes, and max_message_size is 511"
    for _ in range(2):  # it may have to be published again
        assert [len(piece) for piece in spooled.pieces(300)] == [300, 212]
        assert b"".join(spooled.pieces(300)) == body
    assert (fine.body, fine.unreadable, b"".join(fine.pieces(1))) == (b"y", None, b"y")
    reader = FrameReader(CHANNEL, largest=len(body))
    reader.feed(large)
    assert reader.arrived[0].body == body


@pytest.mark.parametrize("size", [(1 << 30) + 1, 1 << 63, (1 << 64) - 1])
def test_an_announcement_that_no_broker_makes_is_refused_before_anything_is_kept(size: int) -> None:
    header = bytearray(HEADER)
    header[11:19] = size.to_bytes(8, "big")
    with pytest.raises(BrokenFrame, match=f"a body of {size:,} bytes was announced"):
        FrameReader(CHANNEL).feed(DELIVER + header)


async def always() -> bool:
    return True


async def test_a_message_that_takes_long_is_a_sign_of_life_all_the_time() -> None:
    """aiormq takes a connection for stuck from which it gets no frames."""
    stream, arrived = asyncio.StreamReader(), list[Arrival]()
    receiver = _Receiver(stream, FrameReader(CHANNEL), arrived.extend, always)
    for piece in (DELIVER, HEADER, BODY):
        stream.feed_data(piece)
        _, channel, found = await receiver.get_frame()
        assert (channel, type(found), arrived) == (0, Heartbeat, [])
    stream.feed_data(MORE + pamqp.frame.marshal(Basic.Cancel("consumer"), CHANNEL))
    _, _, found = await receiver.get_frame()
    assert (isinstance(found, Basic.Cancel), len(arrived)) == (True, 1)
    stream.feed_data(DELIVER[:9])
    stream.feed_eof()
    await receiver.get_frame()
    with pytest.raises(AMQPConnectionError, match=r"^the broker closed the connection and gave no reason$"):
        await receiver.get_frame()
