"""Every command that changes something is run by the one runner; below `ops` nothing knows of the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import postroad
from tests.command_line import command_line

READING = {
    "migrate", "relay", "consume", "config", "console", "demo", "status", "messages", "relays", "audit", "message show",
    "dead list", "dead show", "inbox dead list", "inbox dead show", "key list", "sink list", "schema",
    "doctor", "top", "why", "consumers", "health", "debezium",
}  # fmt: skip
SHARED = {"--dry-run", "--yes", "--reason", "--who", "--json"}


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{prefix}{name} ")
        else:
            found[f"{prefix}{name}"] = command
    return found


@pytest.mark.parametrize("name", sorted(set(commands(command_line())) - READING))
def test_every_change_can_be_previewed_and_has_a_reason(name: str) -> None:
    options = {option for parameter in commands(command_line())[name].params for option in parameter.opts}
    assert options >= SHARED


@pytest.mark.parametrize("name", sorted(READING))
def test_what_changes_nothing_does_not_ask(name: str) -> None:
    options = {option for parameter in commands(command_line())[name].params for option in parameter.opts}
    own = {"--who"} if name == "console" else set()  # the name that its changes are audited under
    assert options.isdisjoint(SHARED - {"--json"} - own)


def test_there_is_a_file_for_each_command() -> None:
    files = {path.stem for path in (Path(postroad.__file__).parent / "ops" / "commands").glob("[!_]*.py")}
    assert files == {name.split()[0] for name in commands(command_line())} - {"resume"}


def test_no_words_of_the_command_line_in_the_api_of_operators() -> None:
    for file in (Path(postroad.__file__).parent / "stores" / "admin").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"`postroad |\bpostroad (?:dead|key|sink|message|status)|(?<!# )--[a-z]", text) == [], (
            file.name
        )
