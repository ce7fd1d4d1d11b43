"""Where events go: a relay or a consumer hands each event to its listeners. Logging is one of them.

- A listener never costs a message: what it raises is logged, and the other listeners still get the event.
- Nothing is emitted per message of a healthy page. The events of a page are made only if a listener wants them.
- `on_event` is called in the event loop's thread and must return quickly.
- A listener that measures (`MeasuringListener`, such as `postroad.metrics.Metrics`) also gets durations and the times
  of messages, once per page or write; where there is none, nothing is measured.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from postroad.safe_text import without_passwords

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from postroad.events import Event

__all__ = ["Listener", "Listeners", "LogListener", "MeasuringListener", "tell"]

_log = logging.getLogger("postroad.listeners")


class Listener(Protocol):
    """Gets events. A listener may also have `wants(event_type) -> bool`; without it, it gets every event."""

    def on_event(self, event: Event) -> None:
        """Something happened."""


@runtime_checkable
class MeasuringListener(Listener, Protocol):
    """A listener that also measures. All calls are made in the event loop's thread."""

    def attach(self, subject: object) -> None:
        """Called once with the `Relay` or the `Consumer`, whose `stats()` may be read at any time."""

    def on_published(self, sink: str, messages: int, created_us: Sequence[int], seconds: float) -> None:
        """So many messages of a page, or of a claim of deferred ones, were confirmed. `created_us` are the times when
        they were added (microseconds since 1970, by the database's clock); of a long page those of a few, evenly
        spread. `seconds` is how long publishing took.
        """

    def on_settled(self, sink: str, seconds: float) -> None:
        """A cursor was saved, which took so long."""

    def on_processed(self, consumer: str, seconds: float, created: Sequence[str | None]) -> None:
        """An attempt with one message, or with a group, has ended. `created` are the times when the messages were added
        that took effect, as their producers wrote them (RFC 3339); empty when the attempt failed.
        """


class LogListener:
    """Writes events to the standard library's logging. The event's fields are the record's `extra`, and its exception
    is the record's `exc_info`.
    """

    def wants(self, event_type: type[Event]) -> bool:
        """Whether the event's logger is enabled for its level."""
        return event_type.logger.isEnabledFor(event_type.level)

    def on_event(self, event: Event) -> None:
        """Write one record, with the event's text as its message."""
        fields = {name: _hidden(value) for name, value in msgspec.structs.asdict(event).items()}
        extra = {"event": event.name()} | fields
        if (error := event.exception) is not None:
            _log_with_traceback(event, error, extra)
            return
        # Without arguments logging leaves percent signs alone, and a broker's words may hold some.
        event.logger.log(event.level, str(event), extra=extra, stacklevel=3)


class Listeners:
    """The listeners of one relay or consumer, behind one call."""

    def __init__(self, listeners: Iterable[Listener] | None = None) -> None:
        """Without `listeners`, events are logged, and nothing else."""
        self._listeners: tuple[Listener, ...] = (LogListener(),) if listeners is None else tuple(listeners)
        self._find_measuring()

    def add(self, listener: Listener) -> None:
        """Add another listener."""
        self._listeners = (*self._listeners, listener)
        self._find_measuring()

    def _find_measuring(self) -> None:
        self._measuring = [each for each in self._listeners if isinstance(each, MeasuringListener)]
        self.measure = bool(self._measuring)
        """Whether any listener measures. Asked before anything is measured."""

    def attach(self, subject: object) -> None:
        """Tell the listeners that measure what they listen to."""
        for listener in self._measuring:
            listener.attach(subject)

    def published(self, sink: str, messages: int, created_us: Sequence[int], seconds: float) -> None:
        """Hand the measurement of a page to the listeners that measure. Never raises."""
        for listener in self._measuring:
            try:
                listener.on_published(sink, messages, created_us, seconds)
            except (Exception, asyncio.CancelledError):
                _log.exception("listener %r failed on a measurement", listener)

    def settled(self, sink: str, seconds: float) -> None:
        """The same for a cursor that was saved."""
        for listener in self._measuring:
            try:
                listener.on_settled(sink, seconds)
            except (Exception, asyncio.CancelledError):
                _log.exception("listener %r failed on a measurement", listener)

    def processed(self, consumer: str, seconds: float, created: Sequence[str | None]) -> None:
        """The same for an attempt of a consumer."""
        for listener in self._measuring:
            try:
                listener.on_processed(consumer, seconds, created)
            except (Exception, asyncio.CancelledError):
                _log.exception("listener %r failed on a measurement", listener)

    def wants(self, event_type: type[Event]) -> bool:
        """Whether any listener wants such an event. Asked before an event is made that comes with every page."""
        for listener in self._listeners:
            try:
                if _wants(listener, event_type):
                    return True
            except (Exception, asyncio.CancelledError):
                return True  # `emit` asks again, and logs what it raises
        return False

    def emit(self, event: Event) -> None:
        """Hand the event to every listener that wants it. Never raises."""
        for listener in self._listeners:
            try:
                if _wants(listener, type(event)):
                    listener.on_event(event)
            except (Exception, asyncio.CancelledError):  # a CancelledError of its own must not stop a lane
                _log.exception("listener %r failed on %s", listener, event.name())


def _wants(listener: Listener, event_type: type[Event]) -> bool:
    wants = getattr(listener, "wants", None)
    return wants is None or bool(wants(event_type))


def _log_with_traceback(event: Event, error: BaseException, extra: dict[str, object]) -> None:
    logger = event.logger
    if not logger.isEnabledFor(event.level):
        return
    exc_info = (type(error), error, _from_users_code(error.__traceback__))
    path, line, function, _ = logger.findCaller(stacklevel=4)
    record = logger.makeRecord(
        logger.name, event.level, path, line, str(event), (), exc_info, func=function, extra=extra
    )
    # Formatters take this text, if it is there, and do not make their own, which could show a password.
    record.exc_text = without_passwords("".join(traceback.format_exception(*exc_info)).rstrip("\n"))
    logger.handle(record)


def _from_users_code(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without postroad's own calls at its beginning, if the exception was raised elsewhere."""
    inner = trace
    while inner is not None and _is_ours(inner.tb_frame.f_globals.get("__name__")):
        inner = inner.tb_next
    return inner or trace


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] in {"postroad", "asyncio", "concurrent", "contextlib"}


def _hidden(value: object) -> object:
    return without_passwords(value) if isinstance(value, str) else value


tell = Listeners().emit
"""Logs an event that belongs to no relay and no consumer, such as a warning of the command line."""
