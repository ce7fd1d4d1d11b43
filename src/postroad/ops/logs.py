"""The log on stderr: a line per record, for people or as JSON for programs. No password gets past here.

A record's own fields (`extra`) are keys of its JSON line; docs/logging.md names those of postroad's events.
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

# What logging itself puts into every record; all else was given as `extra`.
_EVERY_RECORD_HAS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_to_stderr(level: str = "info", format: Literal["text", "json"] = "text", *, debug: bool = False) -> None:
    """Show postroad's log from this level on, and everybody else's warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(debug=debug) if format == "json" else Lines(debug=debug))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("postroad").setLevel(level.upper())
    # It says of each lost connection what we say of it, with a traceback; its other lines have payloads in them.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)


def in_json() -> bool:
    """Whether stderr belongs to programs, who read nothing but JSON there."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


class _Careful(logging.Formatter):
    """An exception is named; its traceback is only for those who asked for it."""

    def __init__(self, form: str | None = None, *, debug: bool) -> None:
        super().__init__(form)
        self._debug = debug

    def formatException(  # noqa: N802 - logging's own name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """What was raised."""
        return super().formatException(ei) if self._debug else f"{type(ei[1]).__name__}: {ei[1]}"


class Lines(_Careful):
    """For people."""

    def __init__(self, *, debug: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s", debug=debug)

    def format(self, record: logging.LogRecord) -> str:
        """The line. Whatever a broker said, it stays one, and does nothing to a terminal."""
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        line = harmless(self.formatMessage(record))
        if record.exc_info:
            error = self.formatException(record.exc_info)
            line += f"\n{error}" if self._debug else f"; {harmless(error)}"
        return without_passwords(line)


class JsonLines(_Careful):
    """For programs: one JSON object per line."""

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
        return msgspec.json.encode(_plain(line)).decode()


def _plain(value: Any) -> Any:
    """The value without passwords, made of what JSON has; text that is no UTF-8, as file names may be, is escaped."""
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
