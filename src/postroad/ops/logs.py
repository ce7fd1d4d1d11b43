"""The log on stderr: one line per record, as text or as JSON. Passwords are masked.

A record's own fields (`extra`) are keys of its JSON line; docs/logging.md names those of postroad's events. An event
about an exception, such as a handler's, has its traceback: in JSON as a field, in text below its line. Of other records
with an exception only a line is shown, unless `debug`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["JsonLines", "Lines", "in_json", "log_to_stderr"]

# The attributes that logging gives every record; all others were given as `extra`.
_EVERY_RECORD_HAS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_to_stderr(level: str = "info", format: Literal["text", "json"] = "text", *, debug: bool = False) -> None:
    """Log postroad's records from this level on, and warnings of other libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(debug=debug) if format == "json" else Lines(debug=debug))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("postroad").setLevel(level.upper())
    # It logs each lost connection, as we do, with a traceback; its other records contain payloads.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)


def in_json() -> bool:
    """Whether the log on stderr is JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


class _Careful(logging.Formatter):
    """Formats an exception in one line; with its traceback if it is an event's, or if `debug`."""

    def __init__(self, form: str | None = None, *, debug: bool) -> None:
        super().__init__(form)
        self._debug = debug

    def formatException(  # noqa: N802 - logging's own name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return super().formatException(ei) if self._debug else f"{type(ei[1]).__name__}: {ei[1]}"

    def traceback_of(self, record: logging.LogRecord) -> str | None:
        """The traceback of an event's exception, as its listener has made it."""
        return record.exc_text if record.exc_info and "event" in vars(record) else None


class Lines(_Careful):
    """Formats records as text."""

    def __init__(self, *, debug: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s", debug=debug)

    def format(self, record: logging.LogRecord) -> str:
        """One line, without control characters, whatever text of a broker is in it; a traceback is indented below."""
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        line = harmless(self.formatMessage(record))
        if (traceback := self.traceback_of(record)) is not None:
            line += "".join(f"\n    {harmless(each)}" for each in traceback.splitlines())
        elif record.exc_info:
            error = self.formatException(record.exc_info)
            line += f"\n{error}" if self._debug else f"; {harmless(error)}"
        return without_passwords(line)


class JsonLines(_Careful):
    """Formats records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, without passwords."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if "event" in vars(record):
            line["event"] = vars(record)["event"]
        line["message"] = record.getMessage()
        line |= {name: vars(record)[name] for name in vars(record) if name not in _EVERY_RECORD_HAS | line.keys()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if (traceback := self.traceback_of(record)) is not None:
            line["traceback"] = traceback
        return msgspec.json.encode(_plain(line)).decode()


def _plain(value: Any) -> Any:
    """The value as JSON types, with passwords masked. Text that UTF-8 can't encode is escaped."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return round(value, 3)
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(str(name)): _plain(each) for name, each in value.items()}
        case _:
            return without_passwords(str(value)).encode(errors="backslashreplace").decode()
