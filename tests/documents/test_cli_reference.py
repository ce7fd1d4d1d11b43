"""docs/cli.md describes every command and option that exists, with its default, and none that does not.

What a setting's option does is written in the words of its declaration in `config`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad.ops.settings import all_settings
from tests.command_line import command_line

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SECTION = re.compile(r"^## `(postroad[^`]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(--[a-z-]+)(?: ([^`]+))?` \| (?:`([^`]+)`)? ?\| (.+) \|$", re.MULTILINE)


SETTINGS = {setting.option for setting in all_settings().values() if setting.option}
OUTPUT = re.compile(
    r"^\$ ((?:POSTROAD_\w+=\w+ )*)postroad (config[^|\n]*) \| head -(\d+)\n(.*?)^```", re.MULTILINE | re.DOTALL
)


FOR_ANY_DATABASE = {"--config", "--database", "--database-password-file", "--schema", "--log-level", "--log-format"}


class Option(NamedTuple):
    name: str
    value: str | None
    default: str | None
    help: str | None
    """For a setting."""


def commands() -> dict[str, Any]:
    group: Any = command_line()
    return {"postroad": group} | dict(below("postroad", group))


def below(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group, and those of the groups in it."""
    for each, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from below(f"{name} {each}", command)
        else:
            yield f"{name} {each}", command


def arguments(command: Any) -> str:
    """What stands behind a command's name in its heading."""
    shown = [
        f" [{each.metavar}]..." if each.nargs == -1 else f" {each.metavar}"
        for each in command.params
        if each.param_type_name == "argument"
    ]
    return "".join(shown)


def documented() -> dict[str, str]:
    """Sections, by their commands' names."""
    sections: dict[str, str] = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
    headings = {name + arguments(command): name for name, command in commands().items()}
    return {str(headings.get(heading, heading)): section for heading, section in sections.items()}


def default_of(parameter: Any) -> str | None:
    if isinstance(parameter.show_default, str):  # a setting's default is the library's own
        return parameter.show_default
    return None if parameter.default in (None, False) else str(parameter.default)


def options(command: Any) -> set[Option]:
    return {
        Option(each.opts[0], each.metavar, default_of(each), each.help if each.opts[0] in SETTINGS else None)
        for each in command.params
        if each.param_type_name == "option"
    }


def documented_options(section: str) -> set[Option]:
    return {
        Option(name, value.replace("\\|", "|") or None, default or None, says if name in SETTINGS else None)
        for name, value, default, says in ROW.findall(section)
    }


OPERATORS = set(commands()) - {
    "postroad", "postroad migrate", "postroad relay", "postroad consume", "postroad status", "postroad config",
    "postroad demo", "postroad health", "postroad console", "postroad schema",
}  # fmt: skip


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(documented()) == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_is_documented_with_its_value_and_default(name: str) -> None:
    there = documented_options(documented()[name])
    if name == "postroad config":  # which takes the same as a relay
        relays = documented_options(documented()["postroad relay"])
        there |= {option for option in relays if option.name != "--until-empty"}
    elif name in OPERATORS:  # the page says once that they take these
        of_status = documented_options(documented()["postroad status"])
        there |= {option for option in of_status if option.name in FOR_ANY_DATABASE}
    assert there == options(commands()[name])


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_environment_variable_is_documented(name: str) -> None:
    for parameter in commands()[name].params:
        if parameter.envvar:
            assert f"`{parameter.envvar}" in documented()[name]


def test_every_setting_is_an_option_of_the_relay_unless_it_is_secret() -> None:
    relays = {option.name for option in options(commands()["postroad relay"])}
    assert relays - {"--config", "--until-empty", "--help-all"} == SETTINGS
    assert {
        f"--{setting.name.replace('_', '-').replace('.', '-')}"
        for setting in all_settings().values()
        if setting.kind.secrecy != "all"
    } == SETTINGS


def test_no_option_takes_a_password() -> None:
    for name, command in commands().items():
        for option in options(command):
            assert "password" not in option.name.removesuffix("-password-file"), f"{name} {option.name}"


def test_the_output_that_is_shown_is_real(tmp_path: Path) -> None:
    ((variables, arguments, lines, expected),) = OUTPUT.findall(PAGE.read_text(encoding="utf-8"))
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *arguments.split()],
        env=dict(each.split("=") for each in variables.split()),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "".join(done.stdout.splitlines(keepends=True)[: int(lines)]) == expected


def test_every_option_has_its_help() -> None:
    for name, command in commands().items():
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
