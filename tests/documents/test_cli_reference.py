"""docs/cli.md describes every command and option that exists, with its default, and none that does not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from postroad.config import RelaySettings
from postroad.ops.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SECTION = re.compile(r"^## `(postroad[^`]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(--[a-z-]+)(?: ([^`]+))?` \| (?:`([^`]+)`)? ?\| (.+) \|$", re.MULTILINE)


class Option(NamedTuple):
    name: str
    value: str | None
    default: str | None


def commands() -> dict[str, Any]:
    group: Any = get_command(app)
    return {"postroad": group} | {f"postroad {name}": command for name, command in group.commands.items()}


def documented() -> dict[str, str]:
    return dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))


def default_of(parameter: Any) -> str | None:
    if isinstance(parameter.show_default, str):  # a setting's default is the library's own
        return parameter.show_default
    return None if parameter.default in (None, False) else str(parameter.default)


def options(command: Any) -> set[Option]:
    return {Option(each.opts[0], each.metavar, default_of(each)) for each in command.params}


def documented_options(section: str) -> set[Option]:
    return {
        Option(name, value.replace("\\|", "|") or None, default or None)
        for name, value, default, _ in ROW.findall(section)
    }


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(documented()) == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_is_documented_with_its_value_and_default(name: str) -> None:
    assert documented_options(documented()[name]) == options(commands()[name])


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_environment_variable_is_documented(name: str) -> None:
    for parameter in commands()[name].params:
        if parameter.envvar:
            assert f"`{parameter.envvar}" in documented()[name]


def test_every_setting_of_a_relay_is_an_option() -> None:
    settings = {f"--{field.name.replace('_', '-')}" for field in fields(RelaySettings)}
    assert settings <= {option.name for option in options(commands()["postroad relay"])}


def test_every_option_has_its_help() -> None:
    for name, command in commands().items():
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
