"""One order through application → PostgreSQL → relay → RabbitMQ → consumer → outbox, as OpenTelemetry sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from postroad import Backoff, Consumer, LocalPublisher, Outbox, Received, Relay, RelaySettings
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.otel import Tracing
from tests.logs import PostgreSQLLog, connected
from tests.services.postgresql import PostgreSQL

SETTINGS = RelaySettings(lanes=1)
OUTBOX = Outbox(source="/shop")


class Spans(InMemorySpanExporter):
    def __init__(self) -> None:
        super().__init__()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self))
        self.app = self.provider.get_tracer("app")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def log(postgresql15: PostgreSQL) -> AsyncIterator[PostgreSQLLog]:
    log = await PostgreSQLLog.fresh(postgresql15)
    yield log
    await log.close()


def begin_on(url: str) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with connected(url) as connection, connection.transaction():
            yield connection

    return begin


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def ids(context: SpanContext | None) -> tuple[int, int]:
    assert context is not None
    return context.trace_id, context.span_id


def traceparent_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


REMOTE = SpanContext(
    0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState.from_header(["rojo=1"])
)


async def add(log: PostgreSQLLog, spans: Spans, *numbers: int) -> SpanContext:
    """What a request adds, in its span, which another service's span with a state is the parent of."""
    parent = set_span_in_context(NonRecordingSpan(REMOTE))
    with spans.app.start_as_current_span("request", parent) as request:
        async with log.connected() as connection, connection.transaction():
            for number in numbers:
                await OUTBOX.add(connection, {"n": number}, type="order.created", key=number, correlation_id="c7")
        return request.get_span_context()


async def relayed(log: PostgreSQLLog, publisher: Any, tracing: Tracing | None) -> None:
    async with asyncio.timeout(60):
        await Relay(log.another_store(), publisher, settings=SETTINGS, tracing=tracing).run_until_empty()


async def consumed(consumer: Consumer[Any]) -> Any:
    async with asyncio.timeout(60):
        return await consumer.run_until_empty()


@pytest.fixture
async def bound(vhost: str, log: PostgreSQLLog) -> str:
    """A queue for the consumer `stock`, made before anything is published."""
    nothing: Consumer[Any] = Consumer(vhost, name="stock", begin=begin_on(log.url), bindings=["order.#"])

    @nothing.on(dict, type="order.created")
    async def handle(event: dict[str, int], tx: Any, message: Received) -> None: ...

    publisher = RabbitMQPublisher(vhost)
    await publisher.open()
    await publisher.close()
    await consumed(nothing)
    return vhost


@pytest.mark.parametrize("envelope", ["binary", "structured"])
@pytest.mark.parametrize("process", ["link", "child"])
async def test_the_whole_way(log: PostgreSQLLog, bound: str, spans: Spans, envelope: Any, process: Any) -> None:
    tracing = Tracing(provider=spans.provider, deliver=True, process=process)
    request = await add(log, spans, 1)
    publisher = RabbitMQPublisher(bound, PublisherSettings(envelope=envelope))
    await relayed(log, publisher, tracing)
    consumer: Consumer[Any] = Consumer(
        bound, name="stock", begin=begin_on(log.url), bindings=["order.#"], tracing=tracing
    )
    got: list[Received] = []

    @consumer.on(dict, type="order.created")
    async def handle(event: dict[str, int], tx: Any, message: Received) -> None:
        got.append(message)
        await OUTBOX.add(tx, event, type="stock.reserved")

    assert (await consumed(consumer)).handled == 1

    # The message's own context is that of the request, from the log to the handler.
    (message,) = got
    assert message.headers["traceparent"] == traceparent_of(request)
    assert message.headers["tracestate"] == "rojo=1"
    assert request.trace_id == REMOTE.trace_id

    send = spans.one("send order.created")
    assert (send.kind, send.parent) == (SpanKind.CLIENT, None)
    assert [ids(link.context) for link in send.links] == [ids(request)]
    assert send.links[0].context.trace_state.to_header() == "rojo=1"
    assert attributes(send)["messaging.system"] == "rabbitmq"
    assert attributes(send)["messaging.batch.message_count"] == 1

    deliver = spans.one("deliver order.created")
    assert ids(deliver.parent) == ids(request)
    assert context_of(deliver).trace_id == request.trace_id
    assert attributes(deliver)["messaging.message.id"] == message.id

    handled = spans.one("process order.created")
    assert handled.kind is SpanKind.CONSUMER
    if process == "child":
        assert (ids(handled.parent), list(handled.links)) == (ids(request), [])
        assert context_of(handled).trace_state.to_header() == "rojo=1"
    else:
        assert handled.parent is None
        assert [ids(link.context) for link in handled.links] == [ids(request)]
    wanted = {
        "messaging.system": "rabbitmq",
        "messaging.message.id": message.id,
        "messaging.message.conversation_id": "c7",
        "messaging.consumer.group.name": "stock",
        "postroad.inbox.outcome": "handled",
    }
    assert attributes(handled) | wanted == attributes(handled)

    # What the handler added carries the handler's span.
    (row,) = await log.execute("select headers from postroad.outbox where type = 'stock.reserved'")
    assert traceparent_of(context_of(handled)) in str(row["headers"])


async def test_what_is_not_sampled_has_no_span_and_is_not_sampled_later(
    log: PostgreSQLLog, bound: str, spans: Spans
) -> None:
    tracing = Tracing(provider=spans.provider, deliver=True)
    traceparent = f"00-{0xABC:032x}-{0xDEF:016x}-00"
    async with log.connected() as connection, connection.transaction():
        await OUTBOX.add(connection, {"n": 1}, type="order.created", headers={"traceparent": traceparent})
    await relayed(log, RabbitMQPublisher(bound), tracing)
    consumer: Consumer[Any] = Consumer(
        bound, name="stock", begin=begin_on(log.url), bindings=["order.#"], tracing=tracing
    )

    @consumer.on(dict, type="order.created")
    async def handle(event: dict[str, int], tx: Any, message: Received) -> None:
        await OUTBOX.add(tx, event, type="stock.reserved")

    assert (await consumed(consumer)).handled == 1
    assert spans.get_finished_spans() == ()
    (row,) = await log.execute("select headers from postroad.outbox where type = 'stock.reserved'")
    assert traceparent in str(row["headers"])


async def test_a_handler_that_fails_and_a_message_that_comes_again(
    log: PostgreSQLLog, bound: str, spans: Spans
) -> None:
    tracing = Tracing(provider=spans.provider)
    await add(log, spans, 1, 2)
    await relayed(log, RabbitMQPublisher(bound), tracing)
    retry = Backoff(max_attempts=2, first=timedelta(milliseconds=1), jitter=0)
    consumer: Consumer[Any] = Consumer(
        bound, name="stock", begin=begin_on(log.url), bindings=["order.#"], tracing=tracing, retry=retry
    )

    @consumer.on(dict, type="order.created")
    async def handle(event: dict[str, int], tx: Any, message: Received) -> None:
        if event["n"] == 1:
            raise LookupError("no such order")

    summary = await consumed(consumer)
    assert (summary.handled, summary.failed, summary.dead) == (1, 2, 1)
    of_first = [span for span in spans.named("process order.created") if span.status.status_code is StatusCode.ERROR]
    assert [attributes(span)["postroad.inbox.outcome"] for span in of_first] == ["failed", "dead"]
    assert {attributes(span)["error.type"] for span in of_first} == {"LookupError"}
    assert all("no such order" in str(span.events[0].attributes) for span in of_first)

    # The same messages once more, as after a lost ack.
    spans.clear()
    await log.execute("delete from postroad.lanes")
    await log.execute("delete from postroad.sinks")
    await relayed(log, RabbitMQPublisher(bound), tracing)
    await consumed(consumer)
    outcomes = [attributes(span)["postroad.inbox.outcome"] for span in spans.named("process order.created")]
    assert outcomes.count("duplicate") == 1


@pytest.mark.parametrize("kind", ["async", "sync", "shared", "batch"])
async def test_handlers_in_a_relay(log: PostgreSQLLog, spans: Spans, kind: str) -> None:
    """In threads too; a group has one span, with a link to each of its messages."""
    tracing = Tracing(provider=spans.provider)
    request = await add(log, spans, 1, 2, 3)

    @contextmanager
    def begin_sync() -> Iterator[Any]:
        with psycopg.connect(log.url) as connection, connection.transaction():
            yield connection

    begin: Any = begin_sync if kind == "sync" else begin_on(log.url)
    together = 10 if kind == "shared" else 1
    consumer: Consumer[Any] = Consumer(name="stock", begin=begin, messages_per_transaction=together, tracing=tracing)

    async def handle(event: dict[str, int], tx: Any, message: Received) -> None:
        await OUTBOX.add(tx, event, type="stock.reserved")

    def handle_sync(event: dict[str, int], tx: Any, message: Received) -> None:
        OUTBOX.add(tx, event, type="stock.reserved")

    async def handle_batch(pairs: Any, tx: Any) -> None:
        for event, _ in pairs:
            await OUTBOX.add(tx, event, type="stock.reserved")

    if kind == "batch":
        consumer.on_batch(dict, type="order.created")(handle_batch)
    else:
        consumer.on(dict, type="order.created")(handle_sync if kind == "sync" else handle)
    await relayed(log, consumer.publisher(), tracing)
    handled = spans.named("process order.created")
    links = [ids(link.context) for span in handled for link in span.links]
    assert links == [ids(request)] * 3
    assert len(handled) == (1 if kind in {"shared", "batch"} else 3)
    rows = await log.execute("select headers from postroad.outbox where type = 'stock.reserved'")
    carried = {str(row["headers"]).partition('"00-')[2][33:49] for row in rows}
    assert carried == {f"{context_of(span).span_id:016x}" for span in handled}
    assert len(spans.named("send order.created")) == 1


async def test_a_function_as_a_destination_is_called_in_the_send_span(log: PostgreSQLLog, spans: Spans) -> None:
    await add(log, spans, 1)
    called: list[str] = []

    async def destination(message: Any) -> None:
        with spans.app.start_as_current_span("called"):
            called.append(message.headers["tracestate"])

    await relayed(log, LocalPublisher(destination), Tracing(provider=spans.provider))
    assert called == ["rojo=1"]
    assert ids(spans.one("called").parent) == ids(context_of(spans.one("send order.created")))


async def test_without_tracing_the_context_passes_through(log: PostgreSQLLog, bound: str, spans: Spans) -> None:
    request = await add(log, spans, 1)
    await relayed(log, RabbitMQPublisher(bound), None)
    consumer: Consumer[Any] = Consumer(bound, name="stock", begin=begin_on(log.url), bindings=["order.#"])

    @consumer.on(dict, type="order.created")
    async def handle(event: dict[str, int], tx: Any, message: Received) -> None:
        await OUTBOX.add(tx, event, type="stock.reserved")

    await consumed(consumer)
    assert [span.name for span in spans.get_finished_spans()] == ["request"]
    (row,) = await log.execute("select headers from postroad.outbox where type = 'stock.reserved'")
    assert traceparent_of(request) in str(row["headers"])
    assert "rojo=1" in str(row["headers"])
