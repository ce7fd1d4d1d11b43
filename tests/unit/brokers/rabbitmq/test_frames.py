"""Frames that are written here are read with pamqp's decoder."""

from __future__ import annotations

from datetime import UTC, datetime

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.rabbitmq.frames import Properties, publish_frames, short_string

SMALLEST_FRAME_MAX = 4096
EXCHANGE = short_string("exchange", "postroad")

texts = st.text(st.characters(codec="utf-8"), max_size=60)
properties = st.builds(
    Properties,
    content_type=texts,
    headers=st.dictionaries(texts, texts, max_size=5),
    message_id=texts,
    timestamp=st.integers(0, 4_000_000_000),
    type=texts,
    correlation_id=st.none() | texts,
)
PLAIN = Properties("text/plain", {}, "id", 0, "type")


def decoded(data: bytes) -> list[tuple[int, pamqp.frame.FrameTypes, int]]:
    """The channel, frame and size of each."""
    frames = []
    while data:
        size, channel, frame = pamqp.frame.unmarshal(data)
        frames.append((channel, frame, size))
        data = data[size:]
    return frames


@given(
    channel=st.integers(1, 65535),
    exchange=texts,
    routing_key=texts,
    properties=properties,
    body=st.binary(max_size=3 * SMALLEST_FRAME_MAX),
)
def test_pamqp_reads_what_is_written(
    channel: int, exchange: str, routing_key: str, properties: Properties, body: bytes
) -> None:
    data = publish_frames(
        channel, short_string("exchange", exchange), routing_key, properties, body, frame_max=SMALLEST_FRAME_MAX
    )
    (_, publish, _), (_, header, _), *bodies = frames = decoded(data)
    assert isinstance(publish, Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory, publish.immediate) == (
        exchange,
        routing_key,
        True,
        False,
    )
    assert isinstance(header, ContentHeader)
    assert header.body_size == len(body)
    assert read_back(header) == properties
    assert header.properties.delivery_mode == 2
    assert b"".join(frame.value for _, frame, _ in bodies if isinstance(frame, ContentBody)) == body
    assert {each for each, _, _ in frames} == {channel}
    assert all(size <= SMALLEST_FRAME_MAX for _, _, size in frames)


def read_back(header: ContentHeader) -> Properties:
    found = header.properties
    assert isinstance(found.timestamp, datetime)
    assert isinstance(found.headers, dict)
    return Properties(
        content_type=found.content_type or "",
        headers={str(name): str(value) for name, value in found.headers.items()},
        message_id=str(found.message_id),
        timestamp=int(found.timestamp.astimezone(UTC).timestamp()),
        type=str(found.message_type),
        correlation_id=found.correlation_id,
    )


@pytest.mark.parametrize(
    ("size", "frame_max", "bodies"),
    [(0, 4096, 0), (4088, 4096, 1), (4089, 4096, 2), (8176, 4096, 2), (8177, 4096, 3), (100_000, 0, 1)],
)
def test_a_body_is_split_where_a_frame_is_full(size: int, frame_max: int, bodies: int) -> None:
    data = publish_frames(1, EXCHANGE, "key", PLAIN, b"x" * size, frame_max=frame_max)
    assert len(decoded(data)) == 2 + bodies


def test_as_much_header_as_a_frame_holds() -> None:
    def encode(length: int) -> bytes:
        return publish_frames(1, EXCHANGE, "key", PLAIN._replace(headers={"h": "x" * length}), b"", frame_max=4096)

    most = next(length for length in range(4096, 0, -1) if fits(encode, length))
    assert max(size for _, _, size in decoded(encode(most))) == 4096
    with pytest.raises(CannotEncode, match="headers and properties take"):
        encode(most + 1)


def fits(encode: object, length: int) -> bool:
    assert callable(encode)
    try:
        encode(length)
    except CannotEncode:
        return False
    return True


@pytest.mark.parametrize(
    ("routing_key", "properties", "words"),
    [
        ("k" * 256, PLAIN, "the routing key has 256 bytes"),
        ("ü" * 128, PLAIN, "the routing key has 256 bytes"),
        ("k", PLAIN._replace(content_type="c" * 256), "the content type"),
        ("k", PLAIN._replace(type="c" * 256), "the type"),
        ("k", PLAIN._replace(correlation_id="c" * 256), "the correlation id"),
        ("k", PLAIN._replace(headers={"n" * 256: ""}), "the name of a header"),
        ("k", PLAIN._replace(timestamp=-1), "can't be encoded"),
        ("\ud800", PLAIN, "can't be encoded"),
        ("k", PLAIN._replace(headers={"n": "\ud800"}), "can't be encoded"),
    ],
)
def test_what_the_protocol_has_no_room_for(routing_key: str, properties: Properties, words: str) -> None:
    with pytest.raises(CannotEncode, match=words):
        publish_frames(1, EXCHANGE, routing_key, properties, b"", frame_max=131_072)
