"""Spans of OpenTelemetry for an outbox, a relay and a consumer. Only its API is needed; the SDK is the application's.

- A message carries the context of the span in which it was added, which is never rewritten. Spans of a relay and of a
  consumer refer to that context, as links or as a parent.
- Only sampled messages have spans: if the application decided not to sample a request, no later step samples it.
- A relay or a consumer without a `Tracing` pays one comparison for each call of the publisher, or of a handler.
"""

from __future__ import annotations

import re
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from postroad.errors import BrokerUnavailable, InvalidSetting, MissingExtra
from postroad.safe_text import without_passwords
from postroad.trace_context import STATE_HEADER, TRACE_HEADER, trusted_context
from postroad.version import __version__

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TraceState,
        get_tracer,
        set_span_in_context,
        use_span,
    )
except ImportError as error:
    raise MissingExtra("postroad.otel", "otel") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span, TracerProvider

    from postroad.brokers.base import Publisher
    from postroad.errors import Refusal
    from postroad.message import NewRow, StoredMessage
    from postroad.received import Received

__all__ = ["ProcessSpan", "Tracing"]

MOST_LINKS: Final = 128
"""A span has no more links; that is also the SDK's own limit unless it is set to another one."""
SAMPLED: Final = 1
# In the headers as they are stored. A value that contains the same text has backslashes before its quotes.
_SAMPLED: Final = re.compile(
    rf'"{TRACE_HEADER}":\s*"([0-9a-f]{{2}}-[0-9a-f]{{32}}-[0-9a-f]{{16}}-[0-9a-f][13579bdf](?:-[^"\\]*)?)"'
)
_HAS_TRACE: Final = f'"{TRACE_HEADER}"'
_DERIVED: Final = '"postroad-'
"""In the headers of dead letters and of rewound messages: they were not waiting in the outbox since they were added."""
_SYSTEMS: Final = {"amqp": "rabbitmq", "amqps": "rabbitmq"}


class Tracing:
    """Makes spans: for `Relay(tracing=…)`, `Consumer(tracing=…)` and, with `create`, for `Outbox(tracing=…)`.

    A relay makes a `send` span for each call of its publisher that has a sampled message, with links to those messages.
    A consumer makes a `process` span for each sampled message that it handles, or for each group.
    """

    def __init__(
        self,
        *,
        provider: TracerProvider | None = None,
        create: bool = False,
        deliver: bool = False,
        process: Literal["link", "child"] = "link",
    ) -> None:
        """`provider` is the application's tracer provider; unless given, the one that is set globally.

        With `create`, an outbox makes a span for each message that it adds, and the message carries that one. With
        `deliver`, a relay makes a span for each sampled message, from when it was added until the broker has confirmed
        it: a child of the message's own span, so that the request's trace shows the time in the outbox. With `process`
        "link", the span of a handler begins a trace of its own with a link to the message; with "child" it is a child
        of the message's span, so that all is one trace.
        """
        if process not in {"link", "child"}:
            raise InvalidSetting(f"process is {process!r}; it must be 'link' or 'child'")
        self._tracer = get_tracer("postroad", __version__, provider)
        self.creates = create
        self._delivers = deliver
        self._links = process == "link"

    # -- adding ------------------------------------------------------------------------------------------------------

    def create(self, encode: Callable[[], NewRow]) -> NewRow:
        """Make the row of a message inside a span of its own, whose context the message then carries."""
        with self._tracer.start_as_current_span("create", kind=SpanKind.PRODUCER) as span:
            row = encode()
            span.update_name(f"create {row.topic}")
            span.set_attributes(
                {
                    "messaging.system": "postroad",
                    "messaging.operation.name": "create",
                    "messaging.operation.type": "create",
                    "messaging.destination.name": row.topic,
                    "messaging.message.id": str(row.id),
                }
            )
        return row

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, publisher: Publisher, messages: Sequence[StoredMessage], sink: str) -> Sequence[Refusal]:
        """Call the publisher; in a `send` span, if a message is sampled."""
        sampled = {message.position: context for message in messages if (context := _stored_context(message))}
        if not sampled:
            return await publisher.publish(messages)
        span = self._send_span(publisher, messages, list(sampled.values())[:MOST_LINKS], sink)
        in_order = getattr(publisher, "in_order", False) is True
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                refusals = await publisher.publish(messages)
            except Exception as error:
                if isinstance(error, BrokerUnavailable):
                    self._deliver([each for each in messages if each.position in error.confirmed], sampled, sink, span)
                _record(span, error)
                raise
            refused = {refusal.position for refusal in refusals or ()}
            if refused:
                span.set_attribute("postroad.refused", len(refused))
            self._deliver(_confirmed(messages, refused, in_order=in_order), sampled, sink, span)
            return refusals

    def _send_span(
        self, publisher: Publisher, messages: Sequence[StoredMessage], contexts: Iterable[SpanContext], sink: str
    ) -> Span:
        topics = {message.topic for message in messages}
        attributes: dict[str, Any] = {
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(messages),
            "postroad.sink": sink,
        } | _system(publisher.name)
        name = "send"
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topic = topics.pop()
            name = f"send {topic}"
        # In no context: a relay may have been started inside a span, of which its waves are no part.
        return self._tracer.start_span(
            name, Context(), kind=SpanKind.CLIENT, attributes=attributes, links=[Link(context) for context in contexts]
        )

    def _deliver(
        self, confirmed: Iterable[StoredMessage], sampled: Mapping[int, SpanContext], sink: str, send: Span
    ) -> None:
        if not self._delivers:
            return
        now, links = time.time_ns(), [Link(send.get_span_context())]
        for message in confirmed:
            context = sampled.get(message.position)
            if context is None or _DERIVED in message.headers_json:
                continue
            # By the database's clock, which may be ahead of this one.
            began = min(message.created_us * 1000, now)
            attributes: dict[str, Any] = {
                "messaging.destination.name": message.topic,
                "messaging.message.id": str(message.id),
                "postroad.sink": sink,
            }
            self._tracer.start_span(
                f"deliver {message.topic}", _in(context), attributes=attributes, links=links, start_time=began
            ).end(now)

    # -- handling ----------------------------------------------------------------------------------------------------

    @contextmanager
    def process(self, messages: Sequence[Received], consumer: str, source: str) -> Iterator[ProcessSpan | None]:
        """Make a `process` span current for this block, if the message, or one of a group, is sampled. A message
        without a trace has a span, too: the SDK decides whether that is sampled.
        """
        found = [_received_context(message) for message in messages]
        contexts = [context for context in found if context is not None]
        sampled = [context for context in contexts if context.trace_flags & SAMPLED]
        if len(contexts) == len(messages) and not sampled:
            yield None
            return
        span = self._process_span(messages, sampled, consumer, source)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield ProcessSpan(span)
        finally:
            span.end()

    def _process_span(
        self, messages: Sequence[Received], sampled: Sequence[SpanContext], consumer: str, source: str
    ) -> Span:
        types = {message.type for message in messages}
        attributes: dict[str, Any] = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": consumer,
            "postroad.inbox.outcome": "interrupted",  # unless it ends as something else
        } | _system(source)
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].id
            if (correlation := messages[0].correlation_id) is not None:
                attributes["messaging.message.conversation_id"] = correlation
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        context, links = Context(), [Link(each) for each in sampled[:MOST_LINKS]]
        if len(messages) == 1 and sampled and not self._links:
            context, links = _in(sampled[0]), []
        return self._tracer.start_span(
            f"process {types.pop()}" if len(types) == 1 else "process",
            context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )


class ProcessSpan:
    """The span of a message, or a group, that is being handled."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end_as(self, outcome: str) -> None:
        """Say what became of the message; the last call counts."""
        self._span.set_attribute("postroad.inbox.outcome", outcome)

    def fail(self, error: BaseException, outcome: str = "failed") -> None:
        """The handler has failed."""
        _record(self._span, error)
        self.end_as(outcome)

    def end_group(self, new: Sequence[bool]) -> None:
        """A group was committed; for each message whether it was new."""
        self.end_as("handled" if any(new) else "duplicate")
        if duplicates := len(new) - sum(new):
            self._span.set_attribute("postroad.inbox.duplicates", duplicates)


def _record(span: Span, error: BaseException) -> None:
    """The span has failed. Its exporter must not send passwords, so the SDK's own texts are replaced."""
    text = without_passwords(f"{type(error).__name__}: {error}")
    trace = without_passwords("".join(traceback.format_exception(error)))
    hidden = {"exception.message": without_passwords(str(error)), "exception.stacktrace": trace}
    span.record_exception(error, attributes=hidden)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, text))


# -- contexts --------------------------------------------------------------------------------------------------------


def _stored_context(message: StoredMessage) -> SpanContext | None:
    """Where a message of the log was added, if that was sampled. Its headers are decoded only then."""
    if _HAS_TRACE not in message.headers_json or (found := _SAMPLED.search(message.headers_json)) is None:
        return None
    try:
        state = message.all_headers.get(STATE_HEADER)
    except msgspec.MsgspecError:  # another program than postroad wrote them, and the publisher refuses the message
        state = None
    return _context(found[1], state)


def _received_context(message: Received) -> SpanContext | None:
    return _context(message.headers.get(TRACE_HEADER), message.headers.get(STATE_HEADER))


def _context(traceparent: str | None, tracestate: str | None) -> SpanContext | None:
    trusted = trusted_context(traceparent, tracestate)
    if trusted.traceparent is None:
        return None
    _, trace_id, span_id, flags, *_ = trusted.traceparent.split("-")
    state = TraceState.from_header([trusted.tracestate]) if trusted.tracestate is not None else None
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )


def _in(context: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(context), Context())


def _system(name: str) -> dict[str, Any]:
    """The attribute for the kind of broker, from the name of a publisher or subscriber, which begins with a URL."""
    scheme, colon, _ = name.partition("://")
    return {"messaging.system": _SYSTEMS.get(scheme, scheme)} if colon else {"messaging.system": "postroad"}


def _confirmed(
    messages: Sequence[StoredMessage], refused: Collection[int], *, in_order: bool
) -> Iterable[StoredMessage]:
    """What the publisher has confirmed. If it is in order, what is behind a refused message of its key was not sent."""
    if not refused:
        return messages
    stopped: set[Any] = set()
    confirmed: list[StoredMessage] = []
    for message in messages:
        if message.position in refused:
            stopped.add(message.key)
        elif not in_order or message.key is None or message.key not in stopped:
            confirmed.append(message)
    return confirmed
