"""What was written with an envelope is read back as it was; and what others write, as far as it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import Envelope, percent_decoded, unwrap, wrap
from postroad.message import Message, encode
from postroad.received import Unreadable, decoder_for, identity_of, is_readable, received
from tests.destinations import stored
from tests.unit.brokers.test_cloudevents_wrap import TRACE, everything


def delivered(body: bytes = b"", **fields: Any) -> Delivery:
    return Delivery(session=None, tag=1, body=body, **fields)


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", "cloudEvents_"])
def test_what_was_wrapped_is_opened(mode: Any, prefix: str) -> None:
    message = everything()
    wire = wrap(message, mode, prefix)
    found = unwrap(delivered(wire.body, content_type=wire.content_type, headers=wire.headers))
    assert (found.id, found.type, found.source, found.key) == (str(message.id), "order.created", "/tests", "order-1")
    assert (found.correlation_id, found.causation_id) == ("c-1", "b-1")
    assert (found.payload, found.content_type) == (b'{"number":1}', "application/json")
    assert found.headers == {"tenant": "acme", **TRACE}
    assert found.time == "2025-01-02T03:04:05.123456Z"


@pytest.mark.parametrize("payload", [b"\xff\x00", b"", "täxt".encode()])
@pytest.mark.parametrize("content_type", ["application/octet-stream", "text/plain; charset=utf-8"])
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_payloads_of_every_kind(mode: Any, content_type: str, payload: bytes) -> None:
    wire = wrap(stored(payload=payload, content_type=content_type), mode)
    found = unwrap(delivered(wire.body, content_type=wire.content_type, headers=wire.headers))
    assert (found.payload, found.content_type) == (payload, content_type)


def test_a_plain_message_is_known_by_its_properties() -> None:
    found = unwrap(
        delivered(b"x", message_id="7", type="note", correlation_id="c", headers={"n": 3, "b": b"y", "t": {"a": 1}})
    )
    assert (found.id, found.type, found.correlation_id, found.payload) == ("7", "note", "c", b"x")
    assert found.headers == {"n": "3", "b": "y", "t": "{'a': 1}"}


def test_extensions_of_others_are_headers() -> None:
    headers = {"ce-id": "1", "ce-type": "t", "ce-source": "/s", "ce-tenant": "acme"}
    assert unwrap(delivered(headers=headers)).headers == {"tenant": "acme"}
    body = b'{"id": "1", "type": "t", "source": "/s", "tenant": "acme", "data": {"a": 1}}'
    found = unwrap(delivered(body, content_type="application/cloudevents+json"))
    assert (found.headers, found.payload) == ({"tenant": "acme"}, b'{"a": 1}')


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no id"),
        ({"message_id": "x" * 256}, "longer than 255"),
        ({"message_id": "x", "type": "y" * 256}, "its type"),
        ({"content_type": "application/cloudevents+json", "body": b"{"}, "no CloudEvent"),
        ({"content_type": "application/cloudevents+json", "body": b"[]"}, "no CloudEvent"),
        ({"content_type": "application/cloudevents+json", "body": b'{"id":"1","data_base64":"?"}'}, "no CloudEvent"),
    ],
)
def test_what_can_t_be_read(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        unwrap(delivered(**fields))


def test_a_message_is_known_by_its_source_and_its_id() -> None:
    uuid = "01890a5d-ac96-774b-bcce-b302099a8057"
    assert unwrap(delivered(headers={"ce-id": uuid, "ce-source": "/s", "ce-type": "t"})).identity == f"/s {uuid}"
    assert unwrap(delivered(headers={"ce-id": "7", "ce-source": "/s", "ce-type": "t"})).identity == "/s 7"
    assert unwrap(delivered(message_id="7")).identity == "7"


def test_no_two_messages_are_known_by_the_same_text() -> None:
    pairs = [("b c", "a"), ("c", "a b"), ("c", "a%20b"), ("a b c", None), ("a b c", ""), (" a b c", None)]
    known = [identity_of(id, source) for id, source in pairs]
    assert len(set(known)) == 4
    assert known[1] == known[2], "a source is a URI, in which a space is written so"
    assert known[3] == known[4]


def test_a_message_from_the_log() -> None:
    message = everything()
    found = received(message)
    assert (found.id, found.source, found.correlation_id, found.causation_id) == (
        str(message.id), "/tests", "c-1", "b-1",
    )  # fmt: skip
    assert found.headers == {"tenant": "acme", **TRACE}


class Money(pydantic.BaseModel):
    amount: int


@dataclass
class ByDataclass:
    order: int
    total: Money


class ByStruct(msgspec.Struct):
    order: int


@attrs.define
class ByAttrs:
    order: int


@pytest.mark.parametrize(
    "event", [ByDataclass(1, Money(amount=3)), ByStruct(1), ByAttrs(1), Money(amount=1), {"order": 1}, b"\xff", "ä"]
)
def test_events_come_back_as_they_were(event: Any) -> None:
    payload = encode(Message(event, type="t"), "/s").payload
    assert is_readable(type(event))
    cls: Any = type(event)
    assert decoder_for(cls)(payload) == event


@pytest.mark.parametrize("cls", [ByDataclass, ByStruct, ByAttrs, Money, dict])
@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"order": "x"}', b"\xff"])
def test_payloads_that_are_something_else(cls: type, payload: bytes) -> None:
    if cls is dict and payload == b'{"order": "x"}':
        return
    with pytest.raises(Unreadable, match=f"no {cls.__name__}"):
        decoder_for(cls)(payload)


def test_classes_that_can_t_be_read() -> None:
    assert not is_readable(int)
    assert not is_readable(object)


@pytest.mark.parametrize("field", ["data", "extension", "id"])
def test_json_that_is_nested_too_deeply_is_unreadable(field: str) -> None:
    body = b'{"type": "t", "source": "/s", "%s": %s}' % (field.encode(), b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(Unreadable, match="nested too deeply"):
        unwrap(delivered(body, message_id="1", content_type="application/cloudevents+json"))


# -- what brokers add, and what transports do to headers -------------------------------------------------------------


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:"])
def test_a_tombstone_is_opened(mode: Any, prefix: str) -> None:
    message = stored(payload=b"", content_type="", key="7", headers={"tenant": "acme"})
    wire = wrap(message, mode, prefix)
    found = unwrap(delivered(wire.body, content_type=wire.content_type or None, headers=wire.headers))
    assert (found.is_tombstone, found.key, found.type) == (True, "7", "order.created")
    assert (found.payload, found.content_type, found.headers) == (b"", "", {"tenant": "acme"})
    assert b"data" not in wire.body


def test_only_what_has_no_content_is_a_tombstone() -> None:
    for body, content_type in [(b"", "text/plain"), (b"", "application/octet-stream"), (b"x", None)]:
        assert not unwrap(delivered(body, content_type=content_type, message_id="1")).is_tombstone
    document = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"%s}'
    for more in (b',"data":null', b',"data_base64":""', b',"datacontenttype":"application/json"'):
        found = unwrap(delivered(document % more, content_type="application/cloudevents+json"))
        assert not found.is_tombstone


def test_a_record_of_another_program_is_known_by_what_its_broker_tells() -> None:
    found = unwrap(delivered(b"x", key="k", message_id="topic/3/17", type="topic"))
    assert (found.id, found.type, found.key, found.source) == ("topic/3/17", "topic", "k", None)


def test_the_key_of_the_record_counts_unless_the_event_has_one() -> None:
    attributes = {"ce_id": "1", "ce_source": "/s", "ce_type": "t", "ce_subject": "about"}
    assert unwrap(delivered(headers=attributes, key="k")).key == "k"
    assert unwrap(delivered(headers=attributes)).key == "about"
    assert unwrap(delivered(headers={**attributes, "ce_partitionkey": "own"}, key="k")).key == "own"


@pytest.mark.parametrize("change", [str.upper, str.title, str.lower, str.swapcase])
@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", "cloudEvents_"])
def test_names_of_attributes_in_any_case(prefix: str, change: Any) -> None:
    message = everything()
    wire = wrap(message, "binary", prefix)
    headers = {change(name) if name.startswith(prefix) else name: value for name, value in wire.headers.items()}
    found = unwrap(delivered(wire.body, content_type=wire.content_type, headers=headers))
    assert found == unwrap(delivered(wire.body, content_type=wire.content_type, headers=wire.headers))
    assert found.headers == {"tenant": "acme", **TRACE}


VALUES = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.dictionaries(st.text("abc", min_size=1), VALUES), VALUES.filter(bool), st.sampled_from(["binary", "structured"])
)
def test_percent_encoded_values_are_printable_ascii_and_come_back(headers: Any, key: str, mode: Any) -> None:
    message = stored(headers=headers, key=key)
    wire = Envelope(mode, percent_encoded=True).wrap(message)
    for value in wire.headers.values():
        assert value.isascii()
        assert value.isprintable()
        assert not {" ", '"'} & set(value)
    plain = Envelope(mode).wrap(message)
    assert percent_decoded(wire.headers) == plain.headers
    assert (wire.body, wire.content_type) == (plain.body, plain.content_type)


def test_what_is_not_percent_encoded_stays_as_it_is() -> None:
    headers = {"a": "100%", "b": "%ff", "c": "%zz", "d": "Euro%20%E2%82%AC%20%F0%9F%98%80"}
    assert percent_decoded(headers) == {"a": "100%", "b": "%ff", "c": "%zz", "d": "Euro € 😀"}
