"""Messages as NATS frames: nats-py's parser reads them back, whatever is in them, and they are what `wrap` makes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.protocol.parser import Parser

from postroad import InvalidSetting
from postroad.brokers.cloudevents import MODES, CannotEncode, Envelope, percent_decoded
from postroad.brokers.nats.frames import Frames, ack, check_subject, publish, wildcard
from postroad.message import StoredMessage
from tests.destinations import stored

LARGE = 1 << 20
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
names = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters=":\x7f"), min_size=1, max_size=20)
attributes = st.sampled_from(["ce-id", "ce-time", "ce-subject", "ce-partitionkey", "ce-type", "ce-specversion"])
own_headers = st.dictionaries(
    names.filter(lambda name: not name.lower().startswith("nats-")) | attributes, texts, max_size=4
)


class Unconnected(Client):
    """nats-py's client, without a connection: it keeps what its parser finds."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[bytes, bytes, bytes, dict[str, str]]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        found: Any = await self._process_headers(headers) or {}
        self.found.append((bytes(subject), bytes(reply), bytes(data), found))


def read(*frames: bytes) -> list[tuple[bytes, bytes, bytes, dict[str, str]]]:
    """What nats-py reads, if a server passes these frames on."""

    client = Unconnected()
    for frame in frames:
        line, _, rest = frame.partition(b"\r\n")
        _, subject, *others = line.split(b" ")
        parsing = Parser(client).parse(b" ".join([b"HMSG", subject, b"1", *others]) + b"\r\n" + rest)
        with suppress(StopIteration):  # it waits for nothing, so no loop is needed
            parsing.send(None)
    return client.found


@given(st.none() | texts.filter(bool), own_headers, st.binary(max_size=200), st.sampled_from(MODES), texts)
def test_nats_py_reads_what_was_meant(
    key: str | None, own: dict[str, str], payload: bytes, mode: Any, content_type: str
) -> None:
    message = stored(1, key=key, headers=own, payload=payload, content_type=content_type)
    frame = Frames("{topic}", mode).encoded(message, "reply.1", LARGE)
    ((subject, reply, body, headers),) = read(frame)
    wire = Envelope(mode, "ce-").wrap(message)
    wanted = {name: value.strip() for name, value in wire.headers.items()} | {"Nats-Msg-Id": str(message.id)}
    if wire.content_type:
        wanted["ce-datacontenttype" if mode == "binary" else "content-type"] = wire.content_type.strip()
    assert (subject, reply, body) == (b"order.created", b"reply.1", wire.body)
    decoded = percent_decoded({name: str(value) for name, value in headers.items()})
    assert {name: value.strip() for name, value in decoded.items()} == wanted


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_frames_of_a_page_do_not_run_into_each_other(payloads: list[bytes]) -> None:
    frames = Frames("{topic}", "binary")
    page = [stored(number, payload=payload) for number, payload in enumerate(payloads, 1)]
    written = b"".join(frames.encoded(message, "r", LARGE) for message in page)
    assert written.count(b"HPUB ") >= len(page)
    assert [each[2] for each in read(*(frames.encoded(message, "r", LARGE) for message in page))] == payloads


def test_remembered_headers_are_those_of_each_message() -> None:
    frames = Frames("{topic}", "binary")
    for key in ("a", None, "ü"):
        ((_, _, _, headers),) = read(frames.encoded(stored(1, key=key), "r", LARGE))
        assert percent_decoded(headers).get("ce-subject") == key


def test_a_rewound_message_has_an_id_of_its_own() -> None:
    message = stored(1, headers={"postroad-rewind": "r1"})
    ((_, _, _, headers),) = read(Frames("{topic}", "binary").encoded(message, "r", LARGE))
    assert headers["Nats-Msg-Id"] == f"{message.id}:r1"


@pytest.mark.parametrize("mode", MODES)
def test_the_id_of_a_rewind_is_no_header_of_its_own(mode: Any) -> None:
    message = stored(1, headers={"postroad-rewind": "r1\r\nNats-Rollup: all"})
    ((_, _, _, headers),) = read(Frames("{topic}", mode).encoded(message, "r", LARGE))
    assert "Nats-Rollup" not in headers
    assert headers["Nats-Msg-Id"] == f"{message.id}:r1%0D%0ANats-Rollup:%20all"


def test_a_template_of_its_own_is_part_of_the_id() -> None:
    """Two sinks may publish one message to one stream, by two subjects; the second must not be dropped."""
    message = stored(1, key="k ü")
    ids = set()
    for template in ("{topic}", "a.{topic}", "b%.{topic}"):
        ((_, _, _, headers),) = read(Frames(template, "binary").encoded(message, "r", LARGE))
        ids.add(headers["Nats-Msg-Id"])
    assert ids == {str(message.id), f"{message.id}/a.order.created", f"{message.id}/b%25.order.created"}


def test_the_stream_is_named_if_there_is_one() -> None:
    for mode in MODES:
        frame = Frames("{topic}", mode, "ORDERS%d").encoded(stored(1, topic="a%b"), "r", LARGE)
        ((subject, _, _, headers),) = read(frame)
        assert (subject, headers["Nats-Expected-Stream"]) == (b"a%b", "ORDERS%d")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("own", "wrong"),
    [
        ({"Nats-Expected-Last-Sequence": "1"}, "a command to itself"),
        ({"nats-rollup": "all"}, "a command to itself"),
        ({"a b": "x"}, "printable ASCII"),
        ({"a:b": "x"}, "printable ASCII"),
        ({"a\r\nNats-Rollup": "all"}, "printable ASCII"),
        ({"ä": "x"}, "printable ASCII"),
    ],
)
def test_headers_that_are_refused(mode: Any, own: dict[str, str], wrong: str) -> None:
    with pytest.raises(CannotEncode, match=wrong):
        Frames("{topic}", mode).encoded(stored(1, headers=own), "r", LARGE)


@pytest.mark.parametrize("headers_json", ["{}", "[]", "{", '{"source": 1}'])
def test_headers_that_cannot_be_encoded(headers_json: str) -> None:
    with pytest.raises(CannotEncode):
        Frames("{topic}", "binary").encoded(stored(1, headers_json=headers_json), "r", LARGE)


def test_the_limit_counts_headers_too() -> None:
    frames, message = Frames("{topic}", "binary"), stored(1, payload=b"x" * 100)
    sizes = frames.encoded(message, "r", LARGE).partition(b"\r\n")[0].split(b" ")
    frames.encoded(message, "r", int(sizes[-1]))
    with pytest.raises(CannotEncode, match="max_payload"):
        frames.encoded(message, "r", int(sizes[-1]) - 1)


@pytest.mark.parametrize("subject", ["orders", "a.b", "ü.ö", "a*b", "a>b", "x" * 2048, "a.$b"])
def test_legal_subjects(subject: str) -> None:
    assert check_subject(subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        *["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB x 0\r\n", "*", "a.*", "a.*.b", ">", "a.>", "a.>.b"],
        *["x" * 2049, "$JS.API.STREAM.DELETE.orders", "$SYS.x", "_INBOX.a", "a\n"],
    ],
)
def test_illegal_subjects(subject: str) -> None:
    assert check_subject(subject) is not None
    with pytest.raises(CannotEncode, match="subject would be"):
        Frames("{topic}", "binary").encoded(stored(1, topic=subject), "r", LARGE)


@pytest.mark.parametrize("template", ["a b", "$JS.API.{topic}", "a..{topic}", "orders.*", "{a}.>"])
def test_templates_that_no_message_fits(template: str) -> None:
    with pytest.raises(InvalidSetting, match="subject is"):
        Frames(template, "binary")


@pytest.mark.parametrize(
    ("template", "pattern"), [("{topic}", ">"), ("a.{topic}", "a.>"), ("a.b-{key}.c", "a.>"), ("a.b", "a.b")]
)
def test_what_a_template_can_make(template: str, pattern: str) -> None:
    assert wildcard(template) == pattern


def test_commands() -> None:
    assert publish("a", b"x") == b"PUB a 1\r\nx\r\n"
    assert publish("a", b"x", reply="r", headers=b"HH") == b"HPUB a r 2 3\r\nHHx\r\n"
    assert ack(b"$JS.ACK.x", b"+ACK") == b"PUB $JS.ACK.x 4\r\n+ACK\r\n"


def test_a_tombstone_has_no_content_type() -> None:
    message = stored(1, payload=b"", content_type="")
    assert isinstance(message, StoredMessage)
    assert message.is_tombstone
    ((_, _, body, headers),) = read(Frames("{topic}", "binary").encoded(message, "r", LARGE))
    assert (body, headers.get("ce-datacontenttype")) == (b"", None)
    ((_, _, body, headers),) = read(Frames("{topic}", "structured").encoded(message, "r", LARGE))
    assert "data" not in json.loads(body)
