"""What a server sends, in whatever pieces it arrives: the same frames that nats-py's parser finds."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from postroad.brokers.nats.reading import (
    Arrival,
    Failure,
    Info,
    Ping,
    Pong,
    ProtocolError,
    Reader,
    header_in,
    headers_of,
    status_of,
)

words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=10).map(str.encode)
values = st.text(st.characters(codec="ascii", min_codepoint=32, exclude_characters="\x7f"), max_size=20)
blocks = st.dictionaries(words, values, max_size=3).map(
    lambda headers: b"NATS/1.0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % (n, v.encode()) for n, v in headers.items())
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    confirms = st.sampled_from([b"{}", b'{"stream":"s","seq":1}', b"{}\r\n", b"{\r\n}", b"{}\r\nMSG a 1 2\r\n{}"])
    subject, reply, body = draw(words), draw(st.none() | words), draw(st.binary(max_size=60) | confirms)
    place = b"%b 7" % subject if reply is None else b"%b 7 %b" % (subject, reply)
    if draw(st.booleans()):
        block = draw(blocks)
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (place, len(block), len(block) + len(body), block, body)
    return b"MSG %b %d\r\n%b\r\n" % (place, len(body), body)


others = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow consumer'\r\n", b'INFO {"a":1}\r\n'])
streams = st.lists(messages() | others, max_size=8).map(b"".join)


class Kept:
    """What nats-py's parser calls its client with."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.found.append(Arrival(bytes(subject), b"%d" % sid, bytes(reply), bytes(headers or b""), bytes(data)))

    async def _process_ping(self) -> None:
        self.found.append(Ping())

    async def _process_pong(self) -> None:
        self.found.append(Pong())

    async def _process_err(self, text: str) -> None:
        self.found.append(Failure(text.strip("'")))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.found.append(Info(b'{"a":1}'))


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(places)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_the_frames_are_those_that_nats_py_finds(stream: bytes, cuts: list[int]) -> None:
    kept = Kept()
    with suppress(StopIteration):  # it waits for nothing, so no loop is needed
        Parser(kept).parse(stream).send(None)
    reader = Reader()
    found = [frame for piece in pieces(stream, cuts) for frame in reader.feed(piece)]
    assert [type(each) for each in found] == [type(each) for each in kept.found]
    assert found == kept.found


def test_a_large_message_is_put_together_once() -> None:
    body = bytes(range(256)) * 4096
    frame = b"MSG a 1 %d\r\n%b\r\n" % (len(body), body)
    reader, found = Reader(), []
    for start in range(0, len(frame), 10_000):
        found += reader.feed(frame[start : start + 10_000])
    assert found == [Arrival(b"a", b"1", b"", b"", body)]


@pytest.mark.parametrize(
    "stream",
    [
        b"HELLO\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 3\r\nabcd\r\n",
        b"MSG a 1 1\r\n{}\r\n",
        b"HMSG a 1 5 3\r\nabc\r\n",
        b"HMSG a 1 3\r\nabc\r\n",
        b"MSG a 1 99999999999999\r\n",
        b"x" * (1 << 20) + b"xx",
    ],
)
def test_what_no_server_sends(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(stream)


def test_statuses() -> None:
    assert status_of(b"NATS/1.0 503\r\n\r\n") == (503, "")
    assert status_of(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n\r\n") == (408, "Request Timeout")
    assert status_of(b"NATS/1.0\r\na: b\r\n\r\n") == (0, "")
    assert status_of(b"") == (0, "")


def test_headers() -> None:
    assert headers_of(b"NATS/1.0\r\nA: x\r\nb:y \r\nA: z\r\nc: d: e\r\nno-colon\r\n\r\n") == {
        "A": "z",
        "b": "y",
        "c": "d: e",
    }
    assert headers_of(b"") == {}
    with pytest.raises(UnicodeDecodeError):
        headers_of(b"NATS/1.0\r\na: \xff\r\n\r\n")


def test_one_header_whatever_the_others_are() -> None:
    block = b"NATS/1.0\r\na: \xff\r\nPin: forged\r\nPin: x\r\n\r\n"
    assert (header_in(block, b"Pin"), header_in(block, b"in"), header_in(b"", b"Pin")) == ("x", None, None)
