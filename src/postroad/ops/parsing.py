"""Arguments and options of the operators' commands, and how their texts are parsed: ids, times, ages, filters.

A text that can't be parsed is refused before the database is connected to. Times are UTC unless they name a zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Filter
from postroad.errors import InvalidSetting
from postroad.kinds import duration
from postroad.lifecycle import State
from postroad.stores.admin.names import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

__all__ = [
    "AsJson",
    "AtSink",
    "DryRun",
    "Key",
    "Limit",
    "MessageId",
    "OfKey",
    "OfSink",
    "OfTopic",
    "OfType",
    "OlderThan",
    "Reason",
    "SinkName",
    "Who",
    "WithError",
    "WithPattern",
    "WithPayload",
    "Yes",
    "parse_age",
    "parse_filter",
    "parse_id_digits",
    "parse_seconds",
    "parse_state",
    "parse_text",
    "parse_time",
    "parse_time_or_position",
]

# -- options ---------------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Show at most this many.")]
MessageId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, or its last digits.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
SinkName = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]
OfSink = Annotated[str | None, typer.Option("--sink", metavar="NAME", help="Only at this sink; default: at all sinks.")]
AtSink = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="The sink. May be omitted if there is only one.")
]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]
OfType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only messages of this type.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages with this topic.")]
WithError = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only messages whose last error contains this text, ignoring case."),
]
WithPattern = Annotated[
    str | None,
    typer.Option(
        "--error-pattern",
        metavar="TEXT",
        help="Only messages whose last error is this, with <id>, <n>, <value>, <address>, <url>, <email> for values.",
    ),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Only messages added at least this long ago.")
]
WithPayload = Annotated[bool, typer.Option("--payload", help="Show the payload as well.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for `postroad audit`.")]
Who = Annotated[
    str | None, typer.Option("--who", metavar="NAME", help="Who, for `postroad audit`; default: the user who runs it.")
]

# -- parsing ---------------------------------------------------------------------------------------------------------

_A_TIME = "a time such as '2026-03-01 04:30' (UTC) or '2026-03-01T04:30+02:00', or an age such as '2h'"
_LARGEST_POSITION = 2**63 - 1


def parse_id_digits(text: str) -> str:
    """The hexadecimal digits of a message id, or of its beginning or its end."""
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{4,32}", digits):
        raise InvalidSetting(
            f"ID is {text!r}; it must be a message id, such as '01a1e1a4-b273-7de5-a691-9ab476c02dc7', "
            "or at least 4 digits from its end or its beginning, such as '2dc7'"
        )
    return digits


def parse_text(option: str, text: str) -> str:
    """A text that every database can store."""
    if not text.strip():
        raise InvalidSetting(f"{option} is empty; give a text, or omit it")
    try:
        text.encode()
    except UnicodeEncodeError:  # the bytes on the command line were not UTF-8
        raise InvalidSetting(f"{option} is {text!r}, which is not valid text") from None
    if "\0" in text:
        raise InvalidSetting(f"{option} is {text!r}; it must not contain a NUL character")
    return text


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """A time, or how long ago."""
    time = _time(text, now)
    if time is None:
        raise InvalidSetting(f"{option} is {text!r}; it must be {_A_TIME}")
    return time


def parse_time_or_position(option: str, text: str, now: datetime) -> datetime | int:
    """A time, how long ago, or a position, which is a whole number."""
    number = text.strip()
    if re.fullmatch(r"[0-9]{1,19}", number) and int(number) <= _LARGEST_POSITION:
        return int(number)
    time = _time(text, now)
    if time is None:
        raise InvalidSetting(f"{option} is {text!r}; it must be a position, which is a whole number, or {_A_TIME}")
    return time


def _time(text: str, now: datetime) -> datetime | None:
    try:
        return now - duration("ago", text)
    except InvalidSetting:
        pass
    except OverflowError:
        return None
    try:
        time = datetime.fromisoformat(text.strip())
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_age(text: str) -> timedelta:
    return duration("--older-than", text)


def parse_seconds(option: str, text: str) -> float:
    """An interval: a number of seconds, or a duration such as 500ms; 2 seconds if the text is empty."""
    wanted = f"{option} is {text!r}; it must be seconds from 0.1 to 3600, or a duration such as 500ms or 1m"
    try:
        seconds = float(text) if re.fullmatch(r"[0-9.]+", text) else duration(option, text or "2s").total_seconds()
    except (ValueError, OverflowError, InvalidSetting):
        raise InvalidSetting(wanted) from None
    if not 0.1 <= seconds <= 3600:
        raise InvalidSetting(wanted)
    return seconds


def parse_state(text: str) -> State:
    try:
        return State(text.strip().lower())
    except ValueError:
        raise InvalidSetting(
            f"--state is {text!r}; {suggestion(text.lower(), [state.value for state in State])}"
        ) from None


def parse_filter(
    *,
    sink: str | None = None,
    state: State | None = None,
    ids: Sequence[UUID] = (),
    key: str | None = None,
    type: str | None = None,
    topic: str | None = None,
    error: str | None = None,
    pattern: str | None = None,
    since: str | None = None,
    older: str | None = None,
) -> Filter:
    texts = {"--key": key, "--type": type, "--topic": topic, "--error": error, "--error-pattern": pattern}
    for option, value in texts.items():
        if value is not None:
            parse_text(option, value)
    now = datetime.now(UTC)
    return Filter(
        sink=sink,
        state=state,
        ids=tuple(ids),
        key=key,
        type=type,
        topic=topic,
        error=error,
        error_pattern=pattern,
        since=None if since is None else parse_time("--since", since, now),
        before=None if older is None else now - parse_age(older),
    )
