from __future__ import annotations

from typing import Any

import pytest

from postroad.brokers.cloudevents import unwrap
from postroad.brokers.kafka.reading import Reader
from postroad.received import Unreadable


class Record:
    """What the client's Message has."""

    def __init__(
        self, value: bytes | None = b"{}", *, key: bytes | None = None, headers: Any = None, offset: int = 7
    ) -> None:
        self._value, self._key, self._headers, self._offset = value, key, headers, offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_763_413_200_000


def event(**attributes: str) -> list[tuple[str, bytes]]:
    known = {"id": "1", "source": "/s", "type": "t"} | attributes
    return [(f"ce_{name}", value.encode()) for name, value in known.items()]


def read(record: Record, **reader: Any) -> Any:
    return unwrap(Reader(**reader).delivery(record, object(), redelivered=False))


def test_a_foreign_record_gets_what_an_event_needs() -> None:
    reader = Reader()
    reader.cluster = "c1"
    found = unwrap(reader.delivery(Record(key=b"k"), object(), redelivered=False))
    assert (found.id, found.source, found.type) == ("orders/3/7@1763413200000", "kafka://c1", "orders")
    assert (found.key, found.headers) == ("k", {})


@pytest.mark.parametrize(
    ("key", "text"), [(None, None), (b"", ""), ("ä".encode(), "ä"), (b"\xff", "ff"), (b"a\0", "6100")]
)
def test_a_key_becomes_text(key: bytes | None, text: str | None) -> None:
    assert Reader().delivery(Record(key=key), object(), redelivered=False).key == text


def test_an_event_keeps_its_own_key_type_and_id() -> None:
    found = read(Record(key=b"record", headers=event(partitionkey="own")))
    assert (found.id, found.source, found.type, found.key) == ("1", "/s", "t", "own")
    assert read(Record(key=b"record", headers=event())).key == "record"


@pytest.mark.parametrize("name", ["content-type", "Content-Type"])
def test_the_content_type_is_a_header(name: str) -> None:
    found = read(Record(headers=[*event(), (name, b"text/plain"), ("mine", b"\xff"), ("none", None), ("mine", b"2")]))
    assert (found.content_type, found.headers) == ("text/plain", {"mine": "2", "none": ""})


@pytest.mark.parametrize("headers", [None, [*event(), ("content-type", b"application/json")]])
def test_a_record_without_a_value_is_a_tombstone_and_an_empty_one_is_not(headers: Any) -> None:
    assert read(Record(None, key=b"k", headers=headers)).is_tombstone
    assert not read(Record(b"", key=b"k", headers=[*event(), ("content-type", b"text/plain")])).is_tombstone


def test_headers_that_can_t_be_read_make_a_dead_letter() -> None:
    bad = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    with pytest.raises(Unreadable, match=r"names of its headers are no UTF-8"):
        read(Record(headers=bad))


def test_foreign_records_may_be_unwanted() -> None:
    with pytest.raises(Unreadable, match="it is no CloudEvent, and foreign is 'dead_letter'"):
        read(Record(), foreign=False)
    assert read(Record(headers=event()), foreign=False).id == "1"


@pytest.mark.parametrize(
    ("record", "skipped"),
    [
        (Record(headers=event(type="mine")), None),
        (Record(headers=event(type="other")), "other"),
        (Record(), "orders"),
        (Record(headers=[("type", b"mine")]), None),
        (Record(b'{"type":"other"}', headers=[("content-type", b"application/cloudevents+json")]), "other"),
        (Record(b'{"type":"mine"}', headers=[("content-type", b"application/cloudevents+json")]), None),
        (Record(b"{", headers=[("content-type", b"application/cloudevents+json")]), None),  # becomes a dead letter
        (Record(headers=[("ce_id", b"1")]), None),  # so do these
        (Record(b'{"type":"\xff"}', headers=[("content-type", b"application/cloudevents+json")]), None),
        (Record(b'{"x":' + b"[" * 100_000, headers=[("content-type", b"application/cloudevents+json")]), None),
    ],
)
def test_types_that_no_handler_takes(record: Record, skipped: str | None) -> None:
    reader = Reader(["mine"])
    assert reader.skipped_type(reader.delivery(record, object(), redelivered=False)) == skipped
    assert Reader().skipped_type(reader.delivery(record, object(), redelivered=False)) is None
