"""Spans, with OpenTelemetry's own SDK: which there are, what they are linked to, and that others cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from postroad import BrokerUnavailable, InvalidMessage, InvalidSetting, Outbox, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.otel import Tracing
from postroad.received import Received
from postroad.stores.memory import MemoryStore
from tests.destinations import stored


class Spans(InMemorySpanExporter):
    """A tracer provider's spans."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self))

    def names(self) -> list[str]:
        return [span.name for span in self.get_finished_spans()]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.get_finished_spans() if span.name == name]
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def traceparent(number: int, *, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def traced(number: int, *, flags: str = "01", **fields: Any) -> StoredMessage:
    return stored(number, headers={"traceparent": traceparent(number, flags=flags), "tracestate": "rojo=1"}, **fields)


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


# -- adding ----------------------------------------------------------------------------------------------------------


def test_a_span_for_each_message_that_is_added(spans: Spans) -> None:
    store, outbox = MemoryStore(), Outbox(source="/shop", tracing=Tracing(provider=spans.provider, create=True))
    with spans.provider.get_tracer("app").start_as_current_span("request") as request, store.begin() as transaction:
        id = outbox.add(transaction, "1", type="order.created")
    span = spans.one("create order.created")
    assert (span.kind, span.parent) == (SpanKind.PRODUCER, request.get_span_context())
    assert dict(span.attributes or {})["messaging.message.id"] == str(id)
    (message,) = store._log
    context = span.get_span_context()
    assert context is not None
    assert (
        message.headers["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    )


def test_without_create_an_outbox_makes_no_span(spans: Spans) -> None:
    outbox = Outbox(source="/shop", tracing=Tracing(provider=spans.provider))
    with MemoryStore().begin() as transaction:
        outbox.add(transaction, "1", type="t")
    assert spans.names() == []


def test_a_message_that_is_refused_ends_its_span_with_the_error(spans: Spans) -> None:
    outbox = Outbox(source="/shop", tracing=Tracing(provider=spans.provider, create=True))
    with MemoryStore().begin() as transaction, pytest.raises(InvalidMessage):
        outbox.add(transaction, "1", type="t", key="")
    assert spans.one("create").status.status_code is StatusCode.ERROR


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(InvalidSetting, match="process is 'linked'; it must be 'link' or 'child'"):
        Tracing(process="linked")  # type: ignore[arg-type]


# -- sending ---------------------------------------------------------------------------------------------------------


class Broker(MemoryBroker):
    """Knows in which span it was called."""

    name = "amqp://localhost/shop"
    called_in = 0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.called_in = get_current_span().get_span_context().span_id
        return await super().publish(messages)


async def test_a_send_span_with_links_to_what_is_sampled(spans: Spans) -> None:
    broker, messages = Broker(), [traced(1, topic="a"), traced(2, flags="00", topic="a"), stored(3, topic="a")]
    assert await Tracing(provider=spans.provider).publish(broker, messages, "audit") == []
    span = spans.one("send a")
    assert (span.kind, span.parent, linked(span)) == (SpanKind.CLIENT, None, [1])
    assert span.links[0].context.trace_state.to_header() == "rojo=1"
    assert span.links[0].context.is_remote
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "a",
        "messaging.batch.message_count": 3,
        "postroad.sink": "audit",
    }
    assert broker.messages == messages, "as they were"
    assert span.get_span_context().span_id == broker.called_in  # type: ignore[union-attr]


async def test_what_is_not_sampled_has_no_span(spans: Spans) -> None:
    broker, tricky = Broker(), {"note": '"traceparent": "' + traceparent(5) + '"', "traceparent": "no context"}
    messages = [traced(1, flags="00"), stored(2), stored(3, headers=tricky), stored(4, headers_json="")]
    await Tracing(provider=spans.provider, deliver=True).publish(broker, messages, "audit")
    assert (spans.names(), len(broker.messages), broker.called_in) == ([], 4, 0)


async def test_headers_that_another_program_wrote_wrongly_are_linked_as_far_as_they_can_be_read(spans: Spans) -> None:
    headers = f'{{"traceparent": "{traceparent(7)}", "tracestate": 5}}'
    await Tracing(provider=spans.provider).publish(Broker(), [stored(1, headers_json=headers)], "audit")
    assert linked(spans.get_finished_spans()[0]) == [7]


async def test_a_span_has_at_most_128_links(spans: Spans) -> None:
    messages = [traced(number, topic=f"t{number % 2}") for number in range(1, 201)]
    await Tracing(provider=spans.provider).publish(Broker(), messages, "audit")
    span = spans.one("send")  # of two topics, so it is named after none
    assert linked(span) == list(range(1, 129))
    assert "messaging.destination.name" not in dict(span.attributes or {})


async def test_a_delivery_is_a_child_of_what_added_the_message(spans: Spans) -> None:
    message = traced(1, topic="a", created_us=1_700_000_000_000_000)
    await Tracing(provider=spans.provider, deliver=True).publish(Broker(), [message, stored(2)], "audit")
    span, send = spans.one("deliver a"), spans.one("send")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id, span.get_span_context().trace_id) == (1, 1, 1)  # type: ignore[union-attr]
    assert span.start_time == 1_700_000_000_000_000_000
    assert span.end_time is not None
    assert span.end_time > span.start_time
    assert linked(span) == [send.get_span_context().trace_id]  # type: ignore[union-attr]
    assert dict(span.attributes or {})["messaging.message.id"] == str(message.id)


async def test_a_database_whose_clock_is_ahead(spans: Spans) -> None:
    message = traced(1, topic="a", created_us=4_000_000_000_000_000)
    await Tracing(provider=spans.provider, deliver=True).publish(Broker(), [message], "audit")
    span = spans.one("deliver a")
    assert span.start_time == span.end_time


@pytest.mark.parametrize(("in_order", "delivered"), [(False, [1, 3, 4]), (True, [1, 4])])
async def test_only_what_was_confirmed_is_delivered(spans: Spans, in_order: bool, delivered: list[int]) -> None:
    broker = MemoryBroker(in_order=in_order)
    broker.refuse(lambda message: "no" if message.position == 2 else None)
    messages = [traced(1, key="k"), traced(2, key="k"), traced(3, key="k"), traced(4, key=None)]
    refusals = await Tracing(provider=spans.provider, deliver=True).publish(broker, messages, "audit")
    assert [refusal.position for refusal in refusals] == [2]
    (send,) = [span for span in spans.get_finished_spans() if span.name.startswith("send")]
    assert dict(send.attributes or {})["postroad.refused"] == 1
    assert [span.parent.trace_id for span in spans.get_finished_spans() if span.parent] == delivered


async def test_an_outage_is_recorded_and_what_was_confirmed_before_is_delivered(spans: Spans) -> None:
    broker = MemoryBroker()
    broker.fail_after(1)
    with pytest.raises(BrokerUnavailable):
        await Tracing(provider=spans.provider, deliver=True).publish(broker, [traced(1), traced(2)], "audit")
    (send,) = [span for span in spans.get_finished_spans() if span.name.startswith("send")]
    assert send.status.status_code is StatusCode.ERROR
    assert [event.name for event in send.events] == ["exception"]
    assert [span.parent.trace_id for span in spans.get_finished_spans() if span.parent] == [1]


async def test_dead_letters_and_rewound_messages_did_not_wait_since_they_were_added(spans: Spans) -> None:
    headers = {"traceparent": traceparent(1), "postroad-rewind": "7"}
    await Tracing(provider=spans.provider, deliver=True).publish(Broker(), [stored(1, headers=headers)], "audit")
    assert [name.partition(" ")[0] for name in spans.names()] == ["send"]


# -- handling --------------------------------------------------------------------------------------------------------


def arrived(number: int, *, flags: str = "01", **fields: Any) -> Received:
    headers = {"traceparent": traceparent(number, flags=flags), "tracestate": "rojo=1"}
    return Received(id=f"m{number}", type="order.created", headers=headers, correlation_id="c", **fields)


def test_a_process_span_is_linked_to_the_message(spans: Spans) -> None:
    with Tracing(provider=spans.provider).process([arrived(1)], "stock", "amqp://localhost/ queue stock") as span:
        assert span is not None
        span.end_as("handled")
    made = spans.one("process order.created")
    assert (made.kind, made.parent, linked(made)) == (SpanKind.CONSUMER, None, [1])
    assert made.links[0].context.trace_state.to_header() == "rojo=1"
    assert dict(made.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "stock",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c",
        "postroad.inbox.outcome": "handled",
    }


def test_or_a_child_of_it(spans: Spans) -> None:
    with Tracing(provider=spans.provider, process="child").process([arrived(1)], "stock", "local"):
        pass
    made = spans.one("process order.created")
    assert made.parent is not None
    assert (made.parent.span_id, made.get_span_context().trace_id, linked(made)) == (1, 1, [])  # type: ignore[union-attr]
    assert dict(made.attributes or {})["postroad.inbox.outcome"] == "interrupted"


@pytest.mark.parametrize("process", ["link", "child"])
def test_a_group_has_one_span_with_links(spans: Spans, process: Any) -> None:
    group = [arrived(1), arrived(2, flags="00"), arrived(3)]
    with Tracing(provider=spans.provider, process=process).process(group, "stock", "local") as span:
        assert span is not None
        span.end_group([True, False, True])
    made = spans.one("process order.created")
    attributes = dict(made.attributes or {})
    assert (made.parent, linked(made), attributes["messaging.batch.message_count"]) == (None, [1, 3], 3)
    assert (attributes["postroad.inbox.outcome"], attributes["postroad.inbox.duplicates"]) == ("handled", 1)


def test_a_message_that_is_not_sampled_has_no_span_and_one_without_a_trace_has(spans: Spans) -> None:
    tracing = Tracing(provider=spans.provider)
    with tracing.process([arrived(1, flags="00")], "stock", "local") as span:
        assert span is None
        assert not get_current_span().get_span_context().is_valid
    assert spans.names() == []
    with tracing.process([Received(id="1", type="t")], "stock", "local"):
        assert get_current_span().get_span_context().is_valid
    assert spans.names() == ["process t"]


async def test_a_password_in_an_error_is_not_exported(spans: Spans) -> None:
    class Failing(MemoryBroker):
        async def publish(self, messages: Any) -> Any:
            raise ValueError("amqp://me:geheim@host")

    with pytest.raises(ValueError, match="geheim"):
        await Tracing(provider=spans.provider).publish(Failing(), [traced(1)], "audit")
    with Tracing(provider=spans.provider).process([arrived(1)], "stock", "local") as span:
        assert span is not None
        span.fail(LookupError("amqp://me:geheim@host"))
    finished = spans.get_finished_spans()
    assert [span.status.description for span in finished] == [
        "ValueError: amqp://me:***@host", "LookupError: amqp://me:***@host"
    ]  # fmt: skip
    assert not [span.name for span in finished if "geheim" in span.to_json()]
    assert all("amqp://me:***@host" in str((event.attributes or {})["exception.message"])
               for span in finished for event in span.events)  # fmt: skip


def test_a_failure_is_recorded(spans: Spans) -> None:
    with Tracing(provider=spans.provider).process([arrived(1)], "stock", "local") as span:
        assert span is not None
        span.fail(LookupError("no such order"))
    made = spans.one("process order.created")
    assert (made.status.status_code, made.status.description) == (StatusCode.ERROR, "LookupError: no such order")
    assert [event.name for event in made.events] == ["exception"]
    assert dict(made.attributes or {})["postroad.inbox.outcome"] == "failed"
