"""How messages look on the wire, read with the official CloudEvents SDK."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from hypothesis import given
from hypothesis import strategies as st

from postroad import InvalidSetting, StoredMessage
from postroad.brokers.cloudevents import CannotEncode, Envelope, Wire, wrap
from tests.destinations import stored

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "rojo=1"}


def read(wire: Wire) -> CloudEvent:
    return rabbitmq.from_rabbitmq_event(rabbitmq.RabbitMQMessage(wire.headers, wire.content_type, wire.body))


def everything() -> StoredMessage:
    return stored(headers={"tenant": "acme", "correlation_id": "c-1", "causation_id": "b-1", **TRACE})


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_sdk_reads_every_attribute(mode: Any) -> None:
    message = everything()
    event = read(wrap(message, mode))
    assert event.get_attributes() == {
        "specversion": "1.0",
        "id": str(message.id),
        "source": "/tests",
        "type": "order.created",
        "time": datetime(2025, 1, 2, 3, 4, 5, 123456, UTC),
        "datacontenttype": "application/json",
        "subject": "order-1",
        "partitionkey": "order-1",
        "correlationid": "c-1",
        "causationid": "b-1",
        **TRACE,
    }
    assert event.get_data() == {"number": 1}


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_a_message_does_not_have_is_left_out(mode: Any) -> None:
    event = read(wrap(stored(key=None), mode))
    assert set(event.get_attributes()) == {"specversion", "id", "source", "type", "time", "datacontenttype"}


@pytest.mark.parametrize("mode", ["binary", "structured", "plain"])
def test_the_users_headers_are_headers_in_every_mode(mode: Any) -> None:
    headers = wrap(everything(), mode).headers
    assert {"tenant": "acme", **TRACE}.items() <= headers.items()
    assert not {"source", "correlation_id", "causation_id"} & set(headers)


def test_a_user_cannot_overwrite_an_attribute() -> None:
    message = stored(headers={"ce-id": "forged", "ce-colour": "red"})
    event = read(wrap(message))
    assert event.get_id() == str(message.id)
    assert event.get_extension("colour") == "red"  # an extension of the user's own is welcome


def test_plain_is_the_payload_and_nothing_else() -> None:
    message = stored(payload=b"\x00", content_type="image/png")
    assert wrap(message, "plain") == Wire("image/png", {}, b"\x00")


def test_each_prefix_is_read_by_the_binding_that_defines_it() -> None:
    message = everything()
    colon, underscore = Envelope(prefix="cloudEvents:").wrap(message), Envelope(prefix="cloudEvents_").wrap(message)
    for wire in (colon, underscore):
        event = amqp.from_amqp_event(amqp.AMQPMessage({"content-type": wire.content_type}, {**wire.headers}, wire.body))
        assert event.get_id() == str(message.id)
    web = Envelope(prefix="ce-").wrap(message)
    headers = {**web.headers, "content-type": web.content_type}
    assert http.from_http_event(http.HTTPMessage(headers, web.body)).get_id() == str(message.id)
    log = Envelope(prefix="ce_").wrap(message)
    encoded = {name: value.encode() for name, value in log.headers.items()} | {"content-type": b"application/json"}
    assert kafka.from_kafka_event(kafka.KafkaMessage(encoded, b"order-1", log.body)).get_id() == str(message.id)


@pytest.mark.parametrize(
    ("payload", "content_type", "field", "data"),
    [
        (b'{"a": [1, null]}', "application/json", "data", {"a": [1, None]}),
        (b'"text"', "application/vnd.acme+json; charset=utf-8", "data", "text"),
        ("grüß".encode(), "text/plain; charset=utf-8", "data", "grüß"),
        (b"a,b", "text/csv", "data", "a,b"),
        (b"\x00\xff", "application/octet-stream", "data_base64", "AP8="),
        (b"\xff", "text/plain", "data_base64", "/w=="),
        ("ü".encode("latin-1"), "text/plain; charset=iso-8859-1", "data_base64", "/A=="),
        (b"", "application/octet-stream", "data_base64", ""),
        (b"{broken", "application/json", "data_base64", "e2Jyb2tlbg=="),
        (b'"\xff"', "application/json", "data_base64", "Iv8i"),
        (b"1 2", "application/json", "data_base64", "MSAy"),
        (b"", "application/json", "data_base64", ""),
    ],
)
def test_structured_data(payload: bytes, content_type: str, field: str, data: Any) -> None:
    wire = wrap(stored(payload=payload, content_type=content_type), "structured")
    document = msgspec.json.decode(wire.body)
    assert {name: value for name, value in document.items() if name.startswith("data_") or name == "data"} == {
        field: data
    }
    assert document["datacontenttype"] == content_type
    assert wire.content_type.startswith("application/cloudevents+json")


@given(st.binary(), st.sampled_from(["application/json", "text/plain", "application/octet-stream"]))
def test_no_payload_is_lost_in_structured_mode(payload: bytes, content_type: str) -> None:
    event = read(wrap(stored(payload=payload, content_type=content_type), "structured"))
    data = event.get_data()
    if isinstance(data, bytes):
        assert data == payload
    elif content_type == "application/json":
        assert data == msgspec.json.decode(payload)
    else:
        assert isinstance(data, str)
        assert data.encode() == payload


@pytest.mark.parametrize(
    ("microseconds", "time"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_735_787_045_000_007, "2025-01-02T03:04:05.000007Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
    ],
)
def test_time(microseconds: int, time: str) -> None:
    assert wrap(stored(created_us=microseconds)).headers["ce-time"] == time


@pytest.mark.parametrize("headers", ["{}", '{"source": ""}', '{"source": 1}', "[]", "{"])
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_without_a_source_there_is_no_event(headers: str, mode: Any) -> None:
    with pytest.raises(CannotEncode):
        wrap(stored(headers_json=headers), mode)


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidSetting, match="mode is 'xml'; it must be one of binary, structured, plain"):
        Envelope("xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="prefix is 'x-'; it must be one of ce-, "):
        Envelope(prefix="x-")


def test_json_that_is_nested_too_deeply_is_refused_by_name() -> None:
    message = stored(payload=b"[" * 100_000 + b"]" * 100_000)
    assert wrap(message, "binary").body == message.payload
    with pytest.raises(CannotEncode, match="nested too deeply for the envelope 'structured'; publish it as 'binary'"):
        wrap(message, "structured")
