"""Where events go: a relay or a consumer hands each event to its listeners. Logging is one of them.

- A listener never costs a message: what it raises is logged, and the other listeners still get the event.
- Nothing is emitted per message of a healthy page. The events of a page are made only if a listener wants them.
- `on_event` is called in the event loop's thread and must return quickly.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from postroad.safe_text import without_passwords

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroad.events import Event

__all__ = ["Listener", "Listeners", "LogListener", "tell"]

_log = logging.getLogger("postroad.listeners")


class Listener(Protocol):
    """Gets events. A listener may also have `wants(event_type) -> bool`; without it, it gets every event."""

    def on_event(self, event: Event) -> None:
        """Something happened."""


class LogListener:
    """Writes events to the standard library's logging. The event's fields are the record's `extra`."""

    def wants(self, event_type: type[Event]) -> bool:
        """Whether the event's logger is enabled for its level."""
        return event_type.logger.isEnabledFor(event_type.level)

    def on_event(self, event: Event) -> None:
        """Write one record, with the event's text as its message."""
        fields = {name: _hidden(value) for name, value in msgspec.structs.asdict(event).items()}
        # Without arguments logging leaves percent signs alone, and a broker's words may hold some.
        event.logger.log(event.level, str(event), extra={"event": event.name()} | fields, stacklevel=3)


class Listeners:
    """The listeners of one relay or consumer, behind one call."""

    def __init__(self, listeners: Iterable[Listener] | None = None) -> None:
        """Without `listeners`, events are logged, and nothing else."""
        self._listeners = (LogListener(),) if listeners is None else tuple(listeners)

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


def _hidden(value: object) -> object:
    return without_passwords(value) if isinstance(value, str) else value


tell = Listeners().emit
"""Logs an event that belongs to no relay and no consumer, such as a warning of the command line."""
