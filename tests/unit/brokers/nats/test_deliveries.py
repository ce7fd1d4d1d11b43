"""Messages of a stream as deliveries: CloudEvents in both modes, other messages, and their places."""

from __future__ import annotations

import pytest

from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import unwrap
from postroad.brokers.nats.dead_letters import letters
from postroad.brokers.nats.deliveries import Place, Received, delivery_of, place_of, type_of
from postroad.brokers.nats.reading import Arrival, headers_of
from postroad.received import Unreadable

PLACE = Place("S", 7, 1, 123)


def received(headers: bytes = b"", body: bytes = b"{}", place: Place = PLACE) -> Received:
    block = b"NATS/1.0\r\n%b\r\n" % headers if headers else b""
    return Received(Arrival(b"orders", b"1", b"$JS.ACK.S.d.1.7.7.123.0", block, body), place)


def delivery(headers: bytes = b"", body: bytes = b"{}", place: Place = PLACE, *, foreign: bool = True) -> Delivery:
    return delivery_of(received(headers, body, place), None, foreign=foreign)


def test_places() -> None:
    assert place_of(b"$JS.ACK.S.d.3.7.9.123.0") == Place("S", 7, 3, 123)
    assert place_of(b"$JS.ACK.hub.ACC.S.d.3.7.9.123.0") == Place("S", 7, 3, 123)
    assert place_of(b"$JS.ACK.hub.ACC.S.d.3.7.9.123.0.rnd") == Place("S", 7, 3, 123)
    for odd in (b"", b"_INBOX.x", b"$JS.ACK.S.d.x.7.9.123.0", b"a.b.c.d.e.f.g.h.i"):
        assert place_of(odd) is None


def test_a_cloud_event_in_binary_mode() -> None:
    found = delivery(
        b"ce-id: 1\r\nce-source: /s\r\nce-type: t%20x\r\nce-datacontenttype: application/json\r\n"
        b"ce-partitionkey: %C3%BC\r\nmine: a%20b\r\nNats-Msg-Id: 1\r\nNats-Pin-Id: p\r\n"
    )
    message = unwrap(found)
    assert (message.identity, message.type, message.key, message.content_type) == (
        "/s 1",
        "t x",
        "ü",
        "application/json",
    )
    assert message.headers == {"mine": "a b"}
    assert (type_of(found), found.tag, found.redelivered) == ("t x", 7, False)


def test_a_cloud_event_in_structured_mode() -> None:
    document = b'{"specversion":"1.0","id":"2","source":"/s","type":"t","data":{"a":1}}'
    found = delivery(b"Content-Type: application/cloudevents+json; charset=utf-8\r\n", document)
    assert (unwrap(found).identity, unwrap(found).payload, type_of(found)) == ("/s 2", b'{"a":1}', "t")
    assert type_of(delivery(b"Content-Type: application/cloudevents+json\r\n", b"{")) is None


def test_messages_that_are_no_cloud_events() -> None:
    plain, named = unwrap(delivery()), unwrap(delivery(b"type: clicked\r\nNats-Msg-Id: mine\r\n"))
    assert (plain.id, plain.type, plain.source, plain.key) == ("S/7@123", "orders", "nats://S", None)
    assert (named.id, named.type) == ("mine", "clicked")
    with pytest.raises(Unreadable, match="no CloudEvent"):
        unwrap(delivery(foreign=False))
    with pytest.raises(Unreadable, match="no UTF-8"):
        unwrap(delivery(b"a: \xff\r\n"))


def test_it_is_known_whether_a_message_was_delivered_before() -> None:
    assert delivery(place=Place("S", 7, 2, 123)).redelivered is True


def test_a_dead_letter_is_the_message_with_notes() -> None:
    original = received(b"ce-id: 1\r\nmine: a%20b\r\nNats-Expected-Stream: S\r\n", b"body")
    block, body = letters(original, {"postroad-reason": "it is bad"}, "d", 1000)
    headers = headers_of(block)
    assert body == b"body"
    assert headers == {
        "ce-id": "1",
        "mine": "a%20b",
        "postroad-reason": "it%20is%20bad",
        "postroad-stream": "S",
        "postroad-subject": "orders",
        "postroad-sequence": "7",
        "postroad-deliveries": "1",
        "Nats-Msg-Id": "d/S/7@123",
    }


@pytest.mark.parametrize(("room", "kept"), [(2000, {"small"}), (400, set()), (60, set())])
def test_a_dead_letter_has_the_headers_that_there_is_room_for(room: int, kept: set[str]) -> None:
    original = received(b"large: %b\r\nsmall: x\r\n" % (b"x" * 3000), b"body")
    block, body = letters(original, {"postroad-reason": "y" * 3000}, "d", room)
    assert body == b"body"
    assert len(block) + len(body) <= max(room, 60)
    assert kept <= set(headers_of(block))
    assert "large" not in headers_of(block)
