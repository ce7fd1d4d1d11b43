"""docs/settings.md has every setting that the code declares, with its default and its own words, and no other.

When a table differs, the right one is in the failure: it is made of the declarations in `config`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.brokers.registry import all_brokers
from postroad.ops.settings import Settings, all_settings, tables
from postroad.ops.sink_settings import VARIABLES, variable_of
from postroad.relay import Relay
from postroad.setting import markdown_table

if TYPE_CHECKING:
    from postroad.setting import Setting

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
EXAMPLE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages_tables() -> dict[str, str]:
    """Each table that the page must have: of the file, and of the keyword arguments of a consumer."""
    made = {
        name: markdown_table(each for group in groups for each in group.declared(name))
        for name, groups in tables().items()
    }
    for broker in all_brokers():
        if declared := broker.subscriber_settings.declared():
            made[f"subscriber of {broker.name}"] = markdown_table(declared)
    return made


@pytest.mark.parametrize("name", pages_tables())
def test_the_page_has_the_table_that_the_code_makes(name: str) -> None:
    table = pages_tables()[name]
    assert table in PAGE.read_text(encoding="utf-8"), f"the table should be:\n\n{table}"


def test_the_page_has_no_other_settings() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    rows = "\n".join(pages_tables().values())
    assert sorted(documented) == sorted(re.findall(r"^\| `([a-z_]+)` \|", rows, re.MULTILINE))


def test_the_page_explains_every_word_for_a_value() -> None:
    page = PAGE.read_text(encoding="utf-8")
    words = {setting.kind.metavar for setting in all_settings().values()}
    for word in words - {"N"} - {word for word in words if "|" in word}:
        assert f"- `{word}`: " in page


def test_the_examples_are_right(tmp_path: Path) -> None:
    examples = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert examples
    for example in examples:
        file = tmp_path / "example.toml"
        file.write_text(example)
        assert Settings.load(file=file, environment={}).file == file


def test_the_program_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("POSTROAD_")]:
        monkeypatch.delenv(name)
    (tmp_path / "postroad.toml").write_text(EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))[0])
    monkeypatch.setenv("POSTROAD_DATABASE", "sqlite:///x.sqlite")
    monkeypatch.setenv("POSTROAD_TO", "null://")
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    exec(program, found)  # the page's own words
    assert isinstance(found["relay"], Relay)
    assert (found["settings"].relay.lanes, found["settings"].brokers["rabbitmq"].exchange) == (8, "orders")


@pytest.mark.parametrize("variable", re.findall(r"\bPOSTROAD_[A-Z_]+[A-Z]\b", PAGE.read_text(encoding="utf-8")))
def test_every_variable_on_the_page_is_one(variable: str) -> None:
    known = {setting.variable for setting in all_settings().values()} | {"POSTROAD_CONFIG", "POSTROAD_DEBUG"}
    assert variable in known or (variable.startswith(VARIABLES) and variable_of(variable, ["orders"])[0] == "orders")


@pytest.mark.parametrize("setting", [each for each in all_settings().values() if not each.table], ids=lambda s: s.key)
def test_what_is_marked_as_not_used_yet_is_read_nowhere_and_all_else_somewhere(setting: Setting) -> None:
    source = Path(__file__).parents[2] / "src" / "postroad"
    text = "\n".join(file.read_text(encoding="utf-8") for file in source.rglob("*.py") if file.name != "config.py")
    reads = rf'(settings|filter)\.(command\.)?{setting.key}\b|(seconds|needed)\("{setting.key}"\)'
    assert bool(re.search(reads, text)) == setting.used
