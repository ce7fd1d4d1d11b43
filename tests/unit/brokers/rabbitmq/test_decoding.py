"""Properties are decoded as pamqp decodes them, whatever their bytes are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from postroad.brokers.rabbitmq import decoding
from postroad.brokers.rabbitmq.decoding import Known, decoded

AT = 12
texts = st.text(st.characters(codec="utf-8"), max_size=40)
values = texts | st.integers(-100, 100) | st.booleans() | st.none() | st.lists(texts, max_size=2)
properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": texts,
        "content_encoding": texts,
        "headers": st.dictionaries(texts, texts, max_size=4) | st.dictionaries(texts, values, max_size=4),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": texts,
        "message_id": texts,
        "timestamp": st.integers(1, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
        "message_type": texts,
        "app_id": texts,
    },
)


def encoded(known: dict[str, Any]) -> bytes:
    return ContentHeader(body_size=1, properties=Basic.Properties(**known)).marshal()


def by_pamqp(frame: bytes) -> tuple[Known, str | None]:
    header = ContentHeader()
    problem = None
    try:
        header.unmarshal(frame)
    except Exception as error:  # whatever it is: the reason is compared
        problem = f"{type(error).__name__}: {error}"
    its = header.properties
    return Known(its.content_type, its.headers, its.correlation_id, its.message_id, its.message_type), problem


@given(properties)
def test_whatever_the_properties_are(known: dict[str, Any]) -> None:
    frame = encoded(known)
    assert decoded(frame, AT) == by_pamqp(frame)


@given(properties, st.integers(0, 400), st.binary(max_size=6), st.integers(0, 6))
@example({"headers": {"a": "b"}}, 14, b"\x00\x00\x00\xff", 4)
@example({"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}, 14, b"\xff" * 6, 6)
def test_broken_properties_are_reported_as_pamqp_does(
    known: dict[str, Any], at: int, bad: bytes, replaced: int
) -> None:
    frame = encoded(known)
    at = AT + at % max(1, len(frame) - AT + 1)
    frame = frame[:at] + bad + frame[at + replaced :]
    assert decoded(frame, AT) == by_pamqp(frame)


def test_the_form_that_postroad_publishes_is_decoded_without_pamqp(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "content_type": "application/json",
        "headers": {"ce-id": "1", "ce-source": "/shop", "tenant": "ä"},
        "delivery_mode": 2,
        "correlation_id": "c",
        "message_id": "1",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "message_type": "order.created",
    }
    frame = encoded(known)
    expected = by_pamqp(frame)
    monkeypatch.setattr(decoding, "ContentHeader", None)
    assert decoded(frame, AT) == expected
