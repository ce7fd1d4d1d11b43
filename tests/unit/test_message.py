"""What a message is: types, ids, slots, payloads, headers, and every way to get one wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import InvalidMessage, Message, StoredMessage, Tombstone, correlated, correlation_id, event
from postroad.message import NewRow, encode, new_id, slot_of, type_name

VECTORS = json.loads((Path(__file__).parent.parent / "slot_vectors.json").read_text())


@dataclass
class OrderCreated:
    order: int
    total: Decimal = Decimal("1.50")


class StructPlaced(msgspec.Struct):
    order: int


class ModelPlaced(pydantic.BaseModel):
    order: int


@attrs.define
class AttrsPlaced:
    order: int


@event("order.paid.v2")
@dataclass
class Paid:
    order: int


class PaidLate(Paid):
    """Says no type of its own."""


def encoded(event: Any, **fields: Any) -> NewRow:
    return encode(Message(event, **fields), "/orders")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TicketStatusChangedEvent", "ticket.status.changed"),
        ("OrderCreated", "order.created"),
        ("HTTPRequestReceived", "http.request.received"),
        ("OrderV2Created", "order.v2.created"),
        ("Event", "event"),
        ("EventRaised", "event.raised"),
        ("order_created", "order.created"),
    ],
)
def test_a_type_is_the_class_name_in_dotted_words(name: str, expected: str) -> None:
    assert type_name(type(name, (), {})) == expected


def test_event_names_the_type_of_that_class_alone() -> None:
    assert encoded(Paid(1)).type == "order.paid.v2"
    assert encoded(PaidLate(1)).type == "paid.late"


@pytest.mark.parametrize(
    ("body", "payload", "content_type"),
    [
        (OrderCreated(7), b'{"order":7,"total":"1.50"}', "application/json"),
        (StructPlaced(7), b'{"order":7}', "application/json"),
        (ModelPlaced(order=7), b'{"order":7}', "application/json"),
        (AttrsPlaced(7), b'{"order":7}', "application/json"),
        ({"order": 7, "inner": ModelPlaced(order=8)}, b'{"order":7,"inner":{"order":8}}', "application/json"),
        ("sieben", b"sieben", "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        (bytearray(b"7"), b"7", "application/octet-stream"),
    ],
)
def test_an_event_becomes_bytes(body: Any, payload: bytes, content_type: str) -> None:
    row = encoded(body, type="order.placed")
    assert (row.payload, row.content_type) == (payload, content_type)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\x02\xff", "application/avro"),
        (b"\x08\x01", 'application/protobuf; messageType="shop.Order"'),
        (bytearray(b"x"), "application/x-protobuf"),
        ("<order/>", "application/xml"),
        (b'{"order":1}', "application/json"),
        (OrderCreated(1), "application/vnd.shop.order+json"),
    ],
)
def test_bytes_have_the_content_type_that_they_are_given(body: Any, content_type: str) -> None:
    assert encoded(body, type="a", content_type=content_type).content_type == content_type


def test_the_topic_is_the_type_unless_given() -> None:
    assert encoded(OrderCreated(1)).topic == "order.created"
    assert encoded(OrderCreated(1), topic="orders").topic == "orders"
    assert encoded({}, type="a.b", topic="orders").type == "a.b"


def test_headers_carry_the_source_and_the_ids() -> None:
    row = encoded(OrderCreated(1), headers={"tenant": "t1"}, correlation_id="c", causation_id="b")
    assert json.loads(row.headers) == {"source": "/orders", "correlation_id": "c", "causation_id": "b", "tenant": "t1"}


def test_the_correlation_id_comes_from_the_context_unless_given() -> None:
    assert correlation_id() is None
    with correlated("request-1"):
        assert correlation_id() == "request-1"
        assert json.loads(encoded(OrderCreated(1)).headers)["correlation_id"] == "request-1"
        assert json.loads(encoded(OrderCreated(1), correlation_id="mine").headers)["correlation_id"] == "mine"
    assert "correlation_id" not in json.loads(encoded(OrderCreated(1)).headers)


@pytest.mark.parametrize(("key", "kept"), [("o-1", "o-1"), (7, "7"), (UUID(int=7), str(UUID(int=7)))])
def test_a_key_is_text_a_number_or_a_uuid(key: Any, kept: str) -> None:
    assert encoded(OrderCreated(1), key=key).key == kept


def test_without_a_key_the_id_decides_the_slot() -> None:
    id = new_id()
    row = encoded(OrderCreated(1), id=id)
    assert row.key is None
    assert row.slot == slot_of(str(id), new_id())


@pytest.mark.parametrize("vector", VECTORS)
def test_slots_are_the_same_in_every_language(vector: dict[str, Any]) -> None:
    assert slot_of(vector["key"], new_id()) == vector["slot"]


def test_new_ids_are_version_7_and_tell_the_time() -> None:
    before = datetime.now(UTC)
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    for id in ids:
        assert (id.version, id.variant) == (7, "specified in RFC 4122")
        assert abs((id.int >> 80) / 1000 - before.timestamp()) < 3600


class Unwritable:
    """No kind of event."""


@dataclass
class Broken:
    inner: Any


@pytest.mark.parametrize(
    ("body", "fields", "complaint"),
    [
        (OrderCreated(1), {"topic": ""}, "topic is empty"),
        (OrderCreated(1), {"topic": "t" * 256}, "topic has 256 bytes and the limit is 255"),
        (OrderCreated(1), {"topic": 7}, "topic is 7; it must be a str"),
        (OrderCreated(1), {"type": ""}, "type is empty"),
        (OrderCreated(1), {"type": "ü" * 128}, "type has 256 bytes"),
        (OrderCreated(1), {"key": ""}, "key is empty"),
        (OrderCreated(1), {"key": "k" * 1025}, "key has 1,025 bytes and the limit is 1,024"),
        (OrderCreated(1), {"key": None}, "key is None, which usually is an id that the database has not assigned yet"),
        (OrderCreated(1), {"key": 1.5}, "key is 1.5; it must be a str, an int or a uuid.UUID"),
        (OrderCreated(1), {"key": True}, "key is True; it must be a str, an int or a uuid.UUID"),
        (OrderCreated(1), {"key": "a\0b"}, "NUL"),
        (OrderCreated(1), {"key": "\ud800"}, "no valid Unicode"),
        (OrderCreated(1), {"id": "7"}, "id is '7'; it must be a uuid.UUID"),
        (OrderCreated(1), {"headers": {"a": 1}}, "header 'a' is 1; it must be a str"),
        (OrderCreated(1), {"headers": {1: "a"}}, "a header's name is 1"),
        (OrderCreated(1), {"headers": {"source": "x"}}, "header 'source' is postroad's own"),
        (OrderCreated(1), {"headers": "a=b"}, "headers is 'a=b'; it must be a mapping"),
        (OrderCreated(1), {"correlation_id": 5}, "correlation_id is 5"),
        (OrderCreated(1), {"causation_id": ""}, "causation_id is empty"),
        (OrderCreated(1), {"correlation_id": "c" * 256}, "correlation_id has 256 bytes and the limit is 255"),
        ({"a": 1}, {}, "dict has no type of its own"),
        (b"x", {}, "bytes has no type of its own"),
        (Unwritable(), {}, "Unwritable can't be added"),
        ([1], {"type": "a"}, "list can't be added"),
        (Broken(Unwritable()), {}, "Broken could not be encoded as JSON"),
        ({"a": {1j}}, {"type": "a"}, "could not be encoded"),
        (b"x" * (1024 * 1024 + 1), {"type": "big"}, "has 1,048,577 bytes and the limit is 1,048,576"),
        ("\ud800", {"type": "a"}, "the event is"),
        (b"x", {"type": "a", "content_type": "avro"}, "content_type is 'avro'; it must be a media type"),
        (b"x", {"type": "a", "content_type": "a/b\r\nX-Evil: 1"}, "it must be a media type"),
        (b"x", {"type": "a", "content_type": ""}, "content_type is empty"),
        (b"x", {"type": "a", "content_type": 7}, "content_type is 7; it must be a str"),
        (b"x", {"type": "a", "content_type": f"a/{'b' * 254}"}, "content_type has 256 bytes and the limit is 255"),
        (b"{}", {"type": "a", "content_type": "application/cloudevents+json"}, "take the payload for a CloudEvent"),
        (OrderCreated(1), {"content_type": "application/avro"}, "OrderCreated is encoded as JSON; encode it yourself"),
        (Tombstone(), {"type": "a", "key": 1, "content_type": "text/plain"}, "a Tombstone has no content"),
    ],
)
def test_what_is_wrong_is_named(body: Any, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encoded(body, **fields)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_event_type_is_checked_where_it_is_declared() -> None:
    with pytest.raises(InvalidMessage, match="type is empty"):
        event("")


@given(st.text(min_size=1, max_size=200).filter(lambda text: "\0" not in text and text.isprintable()))
def test_any_text_can_be_a_key_and_has_a_slot(key: str) -> None:
    assert 0 <= encoded({}, type="a", key=key).slot < 1024


def test_a_stored_message_decodes_when_asked() -> None:
    row = encoded(OrderCreated(1), key="k", headers={"tenant": "t"}, correlation_id="c", causation_id="b")
    stored = row.stored(position=1, created_at=datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC))
    assert isinstance(stored, StoredMessage)
    assert (stored.position, stored.id, stored.key, stored.payload) == (1, row.id, "k", row.payload)
    assert stored.headers == {"tenant": "t"}
    assert (stored.source, stored.correlation_id, stored.causation_id) == ("/orders", "c", "b")
    assert stored.created_at == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
