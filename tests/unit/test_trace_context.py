"""Which trace a message belongs to: the current span's, else the one that came with the request."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from postroad import LocalPublisher, Outbox, Received, Relay, RelaySettings, correlated
from postroad.brokers.memory import MemoryQueue
from postroad.stores.memory import MemoryStore
from postroad.trace_context import NO_CONTEXT, TraceContext, current_context, trusted_context
from tests.consumers import Numbered, consumed, consumer, put
from tests.logs import MemoryLog, numbered
from tests.places import on_sqlite

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def span(state: str = "", *, flags: int = 1) -> NonRecordingSpan:
    context = SpanContext(
        0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(flags), trace_state=TraceState.from_header([state])
    )
    return NonRecordingSpan(context)


def added(**fields: object) -> dict[str, str]:
    store = MemoryStore()
    with store.begin() as transaction:
        Outbox(source="/shop").add(transaction, "1", type="t", **fields)  # type: ignore[call-overload]
    (message,) = store._log
    return dict(message.headers)


def test_without_a_span_there_is_no_context() -> None:
    assert current_context() is NO_CONTEXT
    assert added() == {}


def test_a_message_carries_the_current_span() -> None:
    with use_span(span("congo=t61rcWkgMzE,rojo=1")):
        assert added() == {
            "traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01",
            "tracestate": "congo=t61rcWkgMzE,rojo=1",
        }
    with use_span(span(flags=0)):
        assert added() == {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-00"}


def test_the_span_of_a_real_sdk() -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("request") as current:
        context = current.get_span_context()
        assert added()["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert context.trace_flags & 1


def test_the_span_wins_over_the_request_and_the_message_over_both() -> None:
    with correlated("c", traceparent=PARENT, tracestate="rojo=1"):
        assert added() == {"traceparent": PARENT, "tracestate": "rojo=1"}
        with use_span(span()):
            assert added() == {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
        with use_span(span("congo=1")):
            assert added(headers={"traceparent": "its own"}) == {"traceparent": "its own"}
        assert added(headers={"traceparent": "x", "tracestate": "y"}) == {"traceparent": "x", "tracestate": "y"}


def test_without_opentelemetry_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    with use_span(span()):
        assert current_context() is NO_CONTEXT
    assert "opentelemetry.trace" not in sys.modules


def test_a_module_that_is_being_imported_has_no_span_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", sys)
    assert current_context() is NO_CONTEXT


async def test_what_a_relay_or_consumer_does_is_no_part_of_the_span_that_started_it(tmp_path: Path) -> None:
    place, queue, log = on_sqlite("aiosqlite", tmp_path / "app.sqlite"), MemoryQueue(), MemoryLog()
    found: list[tuple[TraceContext, dict[str, str]]] = []

    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        found.append((current_context(), added()))

    it = consumer(place, queue)
    it.on(Numbered)(handle)
    put(queue, 1, headers={"traceparent": PARENT, "tracestate": "rojo=1"})

    async def destination(message: Any) -> None:
        found.append((current_context(), added()))

    with use_span(span()):
        await consumed(it)
        broker = LocalPublisher(destination)
        await log.add(*numbered(1))
        async with Relay(log.store, broker, settings=RelaySettings(lanes=1)):
            async with asyncio.timeout(60):
                while len(found) < 2:  # noqa: ASYNC110 - of what has no event
                    await asyncio.sleep(0.01)
    assert found == [(NO_CONTEXT, {"traceparent": PARENT, "tracestate": "rojo=1"}), (NO_CONTEXT, {})]


@pytest.mark.parametrize(
    ("tracestate", "kept"),
    [
        ("rojo=1", "rojo=1"),
        (" rojo=1\t", "rojo=1"),
        ("x" * 512, "x" * 512),
        ("x" * 513, None),
        ("a=\x00", None),
        ("a=\n", None),
        ("a=é", None),
        ("", None),
        (None, None),
    ],
)
def test_a_state_is_kept_only_if_it_is_well_formed(tracestate: str | None, kept: str | None) -> None:
    assert trusted_context(PARENT, tracestate) == TraceContext(PARENT, kept)


def test_a_state_without_a_parent_is_nothing() -> None:
    assert trusted_context("malformed", "rojo=1") is NO_CONTEXT
    assert trusted_context(None, "rojo=1") is NO_CONTEXT


def test_a_state_of_the_span_that_is_too_long_is_left_out() -> None:
    with use_span(span(",".join(f"k{n}={'v' * 100}" for n in range(10)))):
        assert "tracestate" not in added()
