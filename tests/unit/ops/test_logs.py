"""The log's two forms: one line per record, whatever is in it, and no password."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints
from uuid import UUID

import pytest

from postroad import events
from postroad.events import BrokerUnavailable, Event, LanesTaken
from postroad.listeners import tell
from postroad.ops.logs import JsonLines, Lines

OWNER = UUID(int=7)
RecordOf = Callable[[Event], logging.LogRecord]


def record(message: str = "hello", *, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "elsewhere", "levelno": 30, "levelname": "WARNING", "msg": message, **extra})
    made.exc_info = None if error is None else (type(error), error, error.__traceback__)
    return made


@pytest.fixture
def record_of(caplog: pytest.LogCaptureFixture) -> Callable[[Event], logging.LogRecord]:
    def made(event: Event) -> logging.LogRecord:
        caplog.set_level(logging.DEBUG, event.logger.name)
        tell(event)
        return caplog.records[-1]

    return made


def parsed(made: logging.LogRecord, *, debug: bool = False) -> dict[str, Any]:
    line = JsonLines(debug=debug).format(made)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_event_in_json(record_of: RecordOf) -> None:
    made = record_of(LanesTaken("audit", owner=OWNER, lanes=2, numbers=[0, 1], epochs=[3, 4]))
    found = parsed(made)
    at = datetime.fromisoformat(found.pop("time"))
    assert (at.utcoffset(), list(found)[:4]) == (timedelta(0), ["level", "logger", "event", "message"])
    assert abs(at - datetime.fromtimestamp(made.created, UTC)) <= timedelta(milliseconds=1)
    assert found == {
        "level": "info", "logger": "postroad.relay", "event": "lanes_taken", "message": "relay audit: took 2 lanes",
        "sink": "audit", "owner": str(OWNER), "lanes": 2, "numbers": [0, 1], "epochs": [3, 4],
    }  # fmt: skip


def test_an_event_in_text(record_of: RecordOf) -> None:
    line = Lines(debug=False).format(
        record_of(LanesTaken("audit", owner=OWNER, lanes=2, numbers=[0, 1], epochs=[3, 4]))
    )
    assert line.endswith(" INFO     relay audit: took 2 lanes")


def test_what_comes_from_elsewhere_has_no_event() -> None:
    found = parsed(record(answer=42, when=timedelta(seconds=1), time="theirs", ratio=1 / 3))
    assert "event" not in found
    assert (found["logger"], found["level"], found["message"]) == ("elsewhere", "warning", "hello")
    assert (found["answer"], found["when"], found["ratio"]) == (42, "0:00:01", 0.333)
    assert found["time"] != "theirs"


@pytest.mark.parametrize("text", ["a\nERROR forged", "\x1b[2Jgone", "tab\tbed", "\u2028", "bell\x07"])
def test_a_record_stays_one_harmless_line(text: str) -> None:
    line = Lines(debug=False).format(record(text))
    assert line.isprintable()
    assert line.endswith(ascii(text)[1:-1])
    assert parsed(record(text))["message"] == text


HOSTILE = "\nERROR forged\r\x1b[2J\u202egnp.exe\u2028 amqp://me:geheim@host/x"
EVERY = [
    each
    for name, each in vars(events).items()
    if inspect.isclass(each) and issubclass(each, Event) and each is not Event and not name.startswith("_")
]


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.name())
def test_an_events_text_is_one_harmless_line_for_any_formatter(event: type[Event], record_of: RecordOf) -> None:
    """An application that embeds a relay or a consumer has a formatter of its own."""
    given: dict[str, Any] = {
        name: hostile(hint)
        for name, hint in get_type_hints(event, localns={"UUID": UUID, "Sequence": Sequence}).items()
        if name in names(event)
    }
    made = record_of(event(**given))
    line = logging.Formatter("%(levelname)s %(message)s").format(made)
    assert line.isprintable()
    assert "geheim" not in f"{line} {vars(made)}"


def names(event: type[Event]) -> tuple[str, ...]:
    return event.__struct_fields__


def hostile(hint: Any) -> Any:
    """A value of this type, as hostile as it can be."""
    if hint in (int, float, bool):
        return hint(1)
    if hint is UUID:
        return OWNER
    return [1, 2] if hint in (Sequence[int], Sequence[UUID]) else HOSTILE


def test_the_fields_of_an_event_keep_what_they_were_given(record_of: RecordOf) -> None:
    made = record_of(BrokerUnavailable("audit", reason="two\nlines", retry_ms=1.0, waited_s=0.0, retries=0))
    assert vars(made)["reason"] == "two\nlines"


def test_words_in_other_alphabets_are_left_alone() -> None:
    assert Lines(debug=False).format(record("Grüße, 注文")).endswith("Grüße, 注文")


def test_what_is_no_unicode_is_escaped() -> None:
    assert parsed(record("a file \udcff", file="\udcff"))["file"] == "\\udcff"


def test_passwords_are_hidden_wherever_they_are(record_of: RecordOf) -> None:
    url = "amqp://me:geheim@host/x"
    made = record_of(BrokerUnavailable("audit", reason=f"{url} is out", retry_ms=1.0, waited_s=0.0, retries=0))
    for line in (Lines(debug=False).format(made), JsonLines(debug=False).format(made)):
        assert "geheim" not in line
        assert "amqp://me:***@host/x is out" in line
    assert "geheim" not in JsonLines(debug=False).format(record(url, error=ValueError(url), more=[{"url": (url,)}]))


def raised() -> ValueError:
    try:
        raise ValueError("amqp://me:geheim@host")
    except ValueError as error:
        return error


def test_an_exception_is_named_and_its_traceback_is_for_those_who_asked() -> None:
    quiet, loud = (parsed(record(error=raised()), debug=debug)["error"] for debug in (False, True))
    assert quiet == "ValueError: amqp://me:***@host"
    assert loud.startswith("Traceback")
    assert "geheim" not in loud
    line = Lines(debug=False).format(record(error=raised()))
    assert line.endswith(" WARNING  hello; ValueError: amqp://me:***@host")
    assert "\n" not in Lines(debug=False).format(record(error=ValueError("a\nb")))
    assert "Traceback" in Lines(debug=True).format(record(error=raised()))


def test_nothing_is_left_behind_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    from postroad.ops.logs import in_json, log_to_stderr

    root, ours = logging.getLogger(), logging.getLogger("postroad")
    before = root.handlers[:], root.level, ours.level
    root.handlers = []
    try:
        log_to_stderr("warning", "json")
        assert in_json()
        ours.info("not this")
        ours.warning("but this")
        logging.getLogger("driver").info("nor this")
        log_to_stderr("info")
        assert not in_json()
        ours.info("and this")
    finally:
        root.handlers, root.level, ours.level = before
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == "but this"
    assert second.endswith("INFO     and this")
