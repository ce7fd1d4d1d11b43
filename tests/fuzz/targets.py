"""What outsiders can send, and the one error that each reader may raise for it.

A target takes Hypothesis' `data`, draws hostile input from it and feeds it to one reader. Any exception that is not in
the reader's contract, and any broken statement about its result, is a finding. Add a target by adding a function to
`TARGETS`.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pamqp.frame
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from postroad import InvalidSetting
from postroad.brokers import publisher_for
from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import MODES, PREFIXES, CannotEncode, unwrap, wrap
from postroad.brokers.http.answers import Answer, Verdict, seconds_to_wait, verdict_on
from postroad.brokers.http.receiving import messages_in
from postroad.brokers.http.signatures import NotVerified, Verified, keys_for_verifying, verified
from postroad.brokers.nats.dead_letters import letters
from postroad.brokers.nats.deliveries import Place, delivery_of, place_of, type_of
from postroad.brokers.nats.deliveries import Received as NATSReceived
from postroad.brokers.nats.reading import Arrival as NATSArrival
from postroad.brokers.nats.reading import ProtocolError, Reader, status_of
from postroad.brokers.null import NullPublisher
from postroad.brokers.rabbitmq.confirms import Confirms
from postroad.brokers.rabbitmq.frames import Properties, publish_frames, short_string
from postroad.brokers.rabbitmq.properties import dead_letter
from postroad.brokers.rabbitmq.reading import BrokenFrame, FrameReader
from postroad.brokers.redis.reading import Entry
from postroad.brokers.redis.reading import Reader as EntryReader
from postroad.message import StoredMessage
from postroad.ops.rendering.text import one_line
from postroad.ops.settings import Settings
from postroad.otel import Tracing
from postroad.payload_view import payload_view
from postroad.received import Received, Unreadable, decoder_for, received
from postroad.stores import store_for
from tests.destinations import stored

Target = Callable[[st.DataObject], None]

CHANNEL = 1
KEYS = keys_for_verifying("secrets", ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"])
TRACING = Tracing(provider=TracerProvider(), deliver=True)

nats_pieces = st.binary(max_size=60) | st.sampled_from(
    [
        b"MSG a 1 2\r\nab\r\n",
        b"HMSG a 1 $JS.ACK.S.d.1.7.7.123.0 19 19\r\nNATS/1.0\r\na: %ff\r\n\r\n",
        b"HMSG a 1 16 20\r\nNATS/1.0 503 x\r\n{}xx\r\n",
        b"HMSG a 1 22 24\r\nNATS/1.0\r\nce-id: 1\r\n\r\n{}\r\n",
        b"MSG a 1 999\r\n",
        b"HMSG a 1 ",
        b"PING\r\n",
        b"-ERR 'x'\r\n",
        b"INFO {}\r\n",
    ]
)
texts = st.text(max_size=60) | st.text(st.sampled_from('{}[]":,\\\n\r\t\0\x1b\u202e\ud800é€😀0 a'), max_size=200)
encodable = st.text(st.characters(codec="utf-8"), max_size=300)
blobs = st.binary(max_size=300)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)
deep_json = st.integers(1, 5000).map(lambda depth: b'{"data":' + b"[" * depth + b"]" * depth + b"}")
members = st.sampled_from(["id", "data", "data_base64", "type", "source"])
json_like = (
    st.recursive(
        st.sampled_from(["null", "true", "1", "-1e999", "NaN", '"a"', '"\\ud800"', "01", "", "{", "]"]),
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
            | st.lists(st.tuples(members, inner), max_size=6).map(
                lambda items: "{" + ",".join(f'"{name}":{value}' for name, value in items) + "}"
            )
        ),
    ).map(str.encode)
    | deep_json
)
bodies = blobs | json_like
header_values = encodable | st.integers() | st.binary(max_size=20) | st.none() | st.booleans() | st.floats()
attributes = st.sampled_from(
    [prefix + name for prefix in PREFIXES for name in ("id", "type", "source", "time", "subject", "partitionkey")]
)


@dataclass
class Order:
    """An event as a handler wants it."""

    order: int
    lines: list[dict[str, float]]
    note: str | None = None


# -- what a broker sends ---------------------------------------------------------------------------------------------


def frames_from_a_broker(data: st.DataObject) -> None:
    """Frames, whole, cut, damaged or made up, in any pieces: BrokenFrame, or the same result whatever the pieces."""
    stream = data.draw(_streams())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    at_once, in_pieces = FrameReader(CHANNEL), FrameReader(CHANNEL)
    assert _fed(at_once, [stream]) == _fed(in_pieces, [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])])


def confirms_from_a_broker(data: st.DataObject) -> None:
    """Acks, nacks and returns of any tag: no answer is made up, and none costs more than the page is long."""
    page = Confirms(data.draw(st.integers(1, 2**40)))
    messages = [stored(number) for number in range(1, data.draw(st.integers(1, 5)) + 1)]
    page.wrote(messages)
    for _ in range(data.draw(st.integers(0, 6))):
        tag = data.draw(st.integers(0, 2**64 - 1) | st.integers(page.next_tag - 6, page.next_tag + 1))
        answer = data.draw(st.sampled_from([page.acked, page.nacked]))
        answer(tag, multiple=data.draw(st.booleans()))
        page.returned(data.draw(st.none() | texts | st.just(str(messages[0].id))), "no route")
    refused = {message.position for message, _ in page.refused}
    unanswered = {message.position for message in page.unanswered}
    confirmed = set(page.confirmed)
    assert refused | unanswered | confirmed == {message.position for message in messages}
    assert not confirmed & (refused | unanswered)


def frames_from_nats(data: st.DataObject) -> None:
    """Whatever the bytes are, and however they are cut: frames, or ProtocolError; and each message is a delivery."""
    pieces = data.draw(st.lists(nats_pieces, max_size=8))
    reader = Reader()
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                if isinstance(frame, NATSArrival):
                    status_of(frame.headers)
                    place = place_of(frame.reply) or Place("S", 1, 1, 1)
                    found = delivery_of(NATSReceived(frame, place), None, foreign=data.draw(st.booleans()))
                    type_of(found)
                    letters(found.original, {"postroad-reason": "x"}, "d", 1 << 20)
                    with suppress(Unreadable):
                        unwrap(found)
    except ProtocolError:
        pass


def deliveries(data: st.DataObject) -> None:
    """A delivery with any properties and any body: Unreadable, or a message whose identity the inbox can keep."""
    delivery = Delivery(
        session=None,
        tag=1,
        redelivered=data.draw(st.booleans()),
        body=data.draw(bodies),
        headers=data.draw(st.dictionaries(attributes | encodable, header_values, max_size=6)),
        content_type=data.draw(
            st.none() | encodable | st.sampled_from(["application/json", "application/cloudevents+json"])
        ),
        message_id=data.draw(st.none() | encodable),
        correlation_id=data.draw(st.none() | encodable),
        type=data.draw(st.none() | encodable),
    )
    try:
        found = unwrap(delivery)
    except Unreadable:
        return
    assert isinstance(found, Received)
    assert 0 < len(found.identity.encode()) <= 1024
    assert "\0" not in found.identity


def payloads(data: st.DataObject) -> None:
    """Any payload, read as the event that a handler wants: Unreadable, or that event."""
    wanted = data.draw(st.sampled_from([Order, dict, str, bytes]))
    try:
        assert isinstance(decoder_for(wanted)(data.draw(bodies)), wanted)
    except Unreadable:
        return


def dead_letters(data: st.DataObject) -> None:
    """Any properties, of which those that can be told apart stay byte by byte: the result fits into the frame, is
    persistent, has an id, and says why the message died.
    """
    room = data.draw(st.integers(600, 2000))
    letter = dead_letter(data.draw(blobs | _properties()), {"postroad-reason": data.draw(encodable)}, room=room)
    assert b"postroad-reason" in letter.properties
    assert letter.message_id
    header = ContentHeader()
    try:
        header.unmarshal(struct.pack(">HHQ", 60, 0, 0) + letter.properties)
    except (ValueError, OverflowError, OSError, struct.error):
        return  # it had bytes that pamqp can't read, and has them still
    assert len(letter.properties) <= room
    assert header.properties.delivery_mode == 2


# -- what an application wrote into the log --------------------------------------------------------------------------


def rows_of_the_log(data: st.DataObject) -> None:
    """A row with anything in it, in every form: CannotEncode, or frames that pamqp can read."""
    message = _row(data)
    try:
        wire = wrap(message, data.draw(st.sampled_from(MODES)))
        properties = Properties(
            wire.content_type, wire.headers, str(message.id), 1, message.type, message.all_headers.get("correlation_id")
        )
        written = publish_frames(
            CHANNEL, short_string("the exchange", "e"), message.topic, properties, wire.body, frame_max=4096
        )
    except CannotEncode:
        return
    while written:
        size, _, frame = pamqp.frame.unmarshal(written)
        assert frame is not None
        written = written[size:]


def traces(data: st.DataObject) -> None:
    """Whatever stands in the two headers of a trace, a message of it gets spans, or none, and no error."""
    parents = st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,9})?\Z") | encodable
    states = st.from_regex(r"\A[a-z]{1,3}=[a-z0-9]{0,9}(,[a-z]{1,3}=[a-z0-9]{0,9}){0,40}\Z") | encodable
    headers = {"traceparent": data.draw(parents), "tracestate": data.draw(states)}
    logging.disable(logging.WARNING)  # OpenTelemetry warns about a state that is malformed
    try:
        message = stored(1, headers_json=data.draw(st.just(json.dumps(headers)) | encodable))
        with TRACING.process([Received(id="1", type="t", headers=headers), received(stored(1))], "fuzz", "x"):
            run(TRACING.publish(NullPublisher(), [message], "fuzz"))
    finally:
        logging.disable(logging.NOTSET)


def run(publishing: Any) -> None:
    """Run what waits for nothing."""
    try:
        publishing.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


# -- what a person looks at, and writes into settings ----------------------------------------------------------------


def screens(data: st.DataObject) -> None:
    """Nothing that is shown can move a cursor, begin a line or turn the text around."""
    lines = [one_line(data.draw(texts), data.draw(st.none() | st.integers(10, 80)))]
    lines += payload_view(data.draw(bodies), data.draw(st.sampled_from(["application/json", "text/plain", "x"]))).lines
    for line in lines:
        assert line.isprintable(), ascii(line)
        line.encode()


def settings(data: st.DataObject) -> None:
    """Any value of any setting, from any place: InvalidSetting, or settings that can be used."""
    url = data.draw(st.sampled_from(["", "postgresql://", "sqlite:///", "amqp://", "amqps://", "null://"]))
    value = url + data.draw(encodable)
    environment = {
        data.draw(st.sampled_from(["POSTROAD_DATABASE", "POSTROAD_TO", "POSTROAD_LANES", "POSTROAD_RETAIN"])): value
    }
    logger = logging.getLogger("postroad")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        loaded = Settings.load({}, file=None, environment=environment)
        if "POSTROAD_TO" in environment:
            publisher_for(loaded.needed("to"), loaded.for_broker(loaded.needed("to")))
        if "POSTROAD_DATABASE" in environment:
            store_for(loaded.needed("database"))
    except InvalidSetting:
        return
    finally:
        logger.setLevel(before)


def webhooks(data: st.DataObject) -> None:
    """A request with any headers and body: NotVerified, Unreadable, or messages whose identity the inbox can keep."""
    names = st.sampled_from(["content-type", "ce-id", "ce-type", "ce-source", "webhook-id", "webhook-timestamp"])
    types = st.sampled_from(["application/cloudevents+json", "application/cloudevents-batch+json; charset=utf-8"])
    latin = st.text(st.characters(max_codepoint=255), max_size=60) | st.sampled_from(
        ["%00", "%ff", "%ed%a0%80", "v1,A"]
    )
    headers = data.draw(st.dictionaries(names | st.just("webhook-signature") | latin, types | latin, max_size=8))
    body = data.draw(bodies | json_like.map(lambda each: b"[" + each + b"]"))
    id = data.draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255))
    with suppress(NotVerified):
        verified({None: KEYS}, headers, body, now=0, tolerance=1e12)
        raise AssertionError("no request here is signed")
    sources: list[str | None] = [None] if data.draw(st.booleans()) else ["/shop", "/tests"]
    with suppress(Unreadable, NotVerified):
        for message in messages_in(Verified(id, sources), headers, body):
            assert None in sources or message.source in sources
            assert "\0" not in message.identity
            assert len(message.identity.encode()) <= 1024


def answers_to_webhooks(data: st.DataObject) -> None:
    """Any status and any headers of an answer: a verdict, a finite time to wait, and a reason."""
    answer = Answer(data.draw(st.integers(0, 9999)), data.draw(st.none() | texts), data.draw(texts), data.draw(texts))
    assert isinstance(verdict_on(answer), Verdict)
    assert 0 <= seconds_to_wait(answer.retry_after, data.draw(st.floats(0, 1e11))) <= 86_400
    assert len(answer.reason) < 1000


def redis_entries(data: st.DataObject) -> None:
    """Whatever another program has added to a stream is a delivery, which can be read or can't."""
    names = st.sampled_from([b"data", b"content-type", b"ce_id", b"ce_type", b"type", b"key", b"Ce-Id"]) | blobs
    pairs = data.draw(st.lists(st.tuples(names, blobs | bodies), min_size=1, max_size=6))
    entry = Entry("orders", "5-1", [each for pair in pairs for each in pair])
    reader = EntryReader(data.draw(st.just(()) | st.just(("order.created",))), foreign=data.draw(st.booleans()))
    delivery = reader.delivery(entry, None, 1, redelivered=False)
    reader.skipped_type(delivery)
    with suppress(Unreadable):
        unwrap(delivery)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        frames_from_a_broker, confirms_from_a_broker, deliveries, payloads, dead_letters, rows_of_the_log, screens,
        settings, traces, frames_from_nats, webhooks, answers_to_webhooks, redis_entries,
    )
}  # fmt: skip


# -- input -----------------------------------------------------------------------------------------------------------


@st.composite
def _streams(draw: st.DrawFn) -> bytes:
    """Some deliveries as a broker writes them, of which some bytes may be damaged."""
    pieces: list[bytes] = []
    for tag in range(1, draw(st.integers(1, 3)) + 1):
        body = draw(blobs)
        pieces.append(pamqp.frame.marshal(Basic.Deliver("c", tag, exchange="e", routing_key="k"), CHANNEL))
        header = struct.pack(">HHQ", 60, 0, draw(st.just(len(body)) | st.integers(0, 2**64 - 1))) + draw(_properties())
        pieces.append(struct.pack(">BHI", 2, CHANNEL, len(header)) + header + b"\xce")
        if body:
            pieces.append(pamqp.frame.marshal(ContentBody(body), CHANNEL))
    if draw(st.booleans()):
        pieces = draw(st.permutations(pieces))
    stream = bytearray(b"".join(pieces))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(stream) - 1), st.integers(0, 255)), max_size=3)):
        stream[at] = byte
    return bytes(stream) + draw(st.binary(max_size=20))


@st.composite
def _properties(draw: st.DrawFn) -> bytes:
    """Properties as they are encoded, of which some bytes may be damaged."""
    headers = draw(st.dictionaries(encodable, encodable, max_size=3))
    known: dict[str, Any] = {
        "headers": {name[:20]: value for name, value in headers.items()},
        "message_id": draw(st.none() | st.text(st.characters(codec="ascii"), max_size=40)),
        "content_type": draw(st.none() | st.text(st.characters(codec="ascii"), max_size=40)),
    }
    encoded = bytearray(ContentHeader(properties=Basic.Properties(**known)).marshal()[12:])
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(encoded) - 1), st.integers(0, 255)), max_size=3)):
        encoded[at] = byte
    return bytes(encoded)


def _fed(reader: FrameReader, pieces: list[bytes]) -> Any:
    """What a reader makes of these bytes. What stood before broken ones may or may not have been given out."""
    try:
        for piece in pieces:
            reader.feed(piece)
    except BrokenFrame:
        return "broken"
    arrived = [(each.tag, each.redelivered, each.raw, each.body, each.unreadable) for each in reader.arrived]
    return arrived, list(reader.others)


def _row(data: st.DataObject) -> StoredMessage:
    return stored(
        payload=data.draw(bodies),
        key=data.draw(st.none() | encodable),
        topic=data.draw(encodable),
        type=data.draw(encodable),
        content_type=data.draw(encodable | st.sampled_from(["application/json", "text/plain", "x/y+json"])),
        headers_json=data.draw(
            json_like.map(lambda text: text.decode(errors="replace"))
            | st.dictionaries(encodable, encodable, max_size=4).map(
                lambda headers: json.dumps({"source": "/fuzz", **headers})
            )
        ),
    )
