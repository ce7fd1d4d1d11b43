"""docs/settings.md has every setting that the code declares, with its default and its own words, and no other.

When a table differs, the right one is in the failure: it is made of the declarations in `config`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroad.config import TABLES, all_settings
from postroad.ops.settings import Settings
from postroad.relay import Relay

if TYPE_CHECKING:
    from postroad.config import Setting

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
EXAMPLE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def table(name: str) -> str:
    rows = [row(setting) for setting in all_settings().values() if setting.table == name]
    return "\n".join(["| name | value | default | what it does |", "|---|---|---|---|", *rows]) + "\n"


def row(setting: Setting) -> str:
    value = setting.kind.right.removeprefix("a whole number from ") if setting.kind.metavar == "N" else None
    value = value or "`" + setting.kind.metavar.replace("|", "\\|") + "`"
    default = "" if setting.default is None else f"`{setting.default}` "
    says = setting.says if setting.used else f"{setting.says} **Checked, not used yet.**"
    return f"| `{setting.key}` | {value} | {default}| {says} |"


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table_that_the_code_makes(name: str) -> None:
    assert table(name) in PAGE.read_text(encoding="utf-8"), f"the table should be:\n\n{table(name)}"


def test_the_page_has_no_other_settings() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(setting.key for setting in all_settings().values())


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
    assert (found["settings"].relay.lanes, found["settings"].rabbitmq.exchange) == (8, "orders")


@pytest.mark.parametrize("variable", re.findall(r"\bPOSTROAD_[A-Z_]+[A-Z]\b", PAGE.read_text(encoding="utf-8")))
def test_every_variable_on_the_page_is_one(variable: str) -> None:
    known = {setting.variable for setting in all_settings().values()} | {"POSTROAD_CONFIG", "POSTROAD_DEBUG"}
    assert variable in known


@pytest.mark.parametrize("setting", [each for each in all_settings().values() if not each.table], ids=lambda s: s.key)
def test_what_is_marked_as_not_used_yet_is_read_nowhere_and_all_else_somewhere(setting: Setting) -> None:
    source = Path(__file__).parents[2] / "src" / "postroad"
    text = "\n".join(file.read_text(encoding="utf-8") for file in source.rglob("*.py") if file.name != "config.py")
    reads = rf'settings\.(command\.)?{setting.key}\b|(seconds|needed)\("{setting.key}"\)'
    assert bool(re.search(reads, text)) == setting.used
