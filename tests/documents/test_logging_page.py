"""docs/logging.md has every event that the code can emit and every field it has, and none besides.

When the table differs, the right one is in the failure: it is made of the classes in `events`.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
from pathlib import Path

import pytest

from postroad import events
from postroad.events import Event

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
ALWAYS = {"time", "level", "logger", "event", "message", "error", "traceback"}
EVENTS = [
    each
    for each in vars(events).values()
    if inspect.isclass(each) and issubclass(each, Event) and each is not Event and not each.__name__.startswith("_")
]


def fields_of(event: type[Event]) -> list[str]:
    return list(event.__struct_fields__)


def table() -> str:
    rows = [
        f"| `{event.name()}` | {logging.getLevelName(event.level).lower()} | {inspect.getdoc(event)} | "
        f"{', '.join(f'`{name}`' for name in fields_of(event))} |"
        for event in EVENTS
    ]
    return "\n".join(["| event | level | what happened | fields |", "|---|---|---|---|", *rows]) + "\n"


def test_the_page_has_the_table_that_the_code_makes() -> None:
    assert table() in PAGE, f"the table should be:\n\n{table()}"


def test_a_row_is_one_line() -> None:
    assert [event.name() for event in EVENTS if "\n" in (inspect.getdoc(event) or "")] == []


def test_every_field_is_explained_and_no_other() -> None:
    explained = re.findall(r"^- `(\w+)`: ", PAGE, re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert set(explained) == ALWAYS | {name for event in EVENTS for name in fields_of(event)}


def test_every_event_is_emitted_somewhere() -> None:
    called = {
        ast.unparse(node.func).removeprefix("events.")
        for file in (ROOT / "src" / "postroad").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert {event.__name__ for event in EVENTS} <= called


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name())
def test_no_field_has_a_name_that_logging_keeps_for_itself(event: type[Event]) -> None:
    taken = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"} | ALWAYS
    assert taken.isdisjoint(fields_of(event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name())
def test_every_text_names_only_fields_that_are_there(event: type[Event]) -> None:
    assert set(re.findall(r"\{e\.(\w+)", event.subject + event.text)) <= set(fields_of(event))
    assert "{" not in re.sub(r"\{e\.\w+(:[^{}]*)?\}", "", event.subject + event.text)


def test_names_are_unique() -> None:
    assert len({event.name() for event in EVENTS}) == len(EVENTS)
