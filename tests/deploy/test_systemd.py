"""deploy/systemd: systemd accepts every unit, finds little that it could do to the machine, and its command works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.ops.settings import Settings
from tests.deploy.tools import DEPLOY, of_the_system, run

PAGE = DEPLOY.parent / "docs" / "deployment.md"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MOST_EXPOSED = "15"  # tenths, of 10: what systemd calls OK ends at 5


def settings_of(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy whose program and folder exist on this machine."""
    original: Path = request.param
    program = Path(sys.executable).parent / "postroad"
    text = re.sub(r"/opt/\S+/bin/postroad", str(program), original.read_text(encoding="utf-8"))
    copy = tmp_path / original.name
    copy.write_text(text.replace("WorkingDirectory=/opt/shop", f"WorkingDirectory={tmp_path}"))
    return copy


def test_systemd_accepts_it(unit: Path) -> None:
    assert run(of_the_system("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", unit) == ""


def test_it_can_do_little_to_the_machine(unit: Path) -> None:
    options = ("--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager")
    run(of_the_system("systemd-analyze"), "security", *options, unit)


@pytest.mark.parametrize("name", ["migrate", "relay"])
def test_the_command_runs_with_its_credential(name: str, tmp_path: Path) -> None:
    """On SQLite, with the settings in a file where the unit expects them."""
    unit = DEPLOY / "systemd" / f"postroad-{name}.service"
    (command,) = settings_of(unit, "ExecStart")
    variables = dict(each.split("=", 1) for each in settings_of(unit, "Environment"))
    credentials = {f"%d/{each.split(':')[0]}" for each in settings_of(unit, "LoadCredential")}
    assert {value for variable, value in variables.items() if variable.endswith("_PASSWORD_FILE")} == credentials
    assert variables["POSTROAD_DATABASE_PASSWORD_FILE"] in credentials
    file = tmp_path / "postroad.toml"
    file.write_text(f'database = "sqlite:///{tmp_path}/log.sqlite"\nto = "null://"\n')
    for words in (["migrate"], [*shlex.split(command)[1:], *(["--until-empty"] if name == "relay" else [])]):
        subprocess.run(
            [sys.executable, "-m", "postroad", *words], env=os.environ | {"POSTROAD_CONFIG": str(file)}, cwd=tmp_path,
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def test_the_steps_of_the_page_make_every_file_that_the_units_need(tmp_path: Path) -> None:
    (section,) = re.findall(r"^## systemd$(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for kind, text in re.findall(r"^```(sh|toml)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
        if kind == "toml":
            file = re.match(r"# (/etc/postroad/\S+)\n", text)
            assert file, text
            (tmp_path / file[1].removeprefix("/")).write_text(text)
        for command in re.findall(r"^install .*$", text, re.MULTILINE) if kind == "sh" else ():
            inside = command.replace("/etc/", f"{tmp_path}/etc/")
            subprocess.run(shlex.split(inside), input="a password\n", text=True, check=True, timeout=60)
    units = [DEPLOY / "systemd" / f"postroad-{name}.service" for name in ("migrate", "relay")]
    needed = {each.split(":")[1] for unit in units for each in settings_of(unit, "LoadCredential")}
    needed |= {each.split("=")[1] for unit in units for each in settings_of(unit, "Environment") if "CONFIG" in each}
    assert {f"/{file.relative_to(tmp_path)}" for file in (tmp_path / "etc").rglob("*") if file.is_file()} == needed
    for each in needed:
        if each.endswith(".toml"):
            assert Settings.load(file=tmp_path / each.removeprefix("/")).needed("database")


def test_a_relay_has_longer_to_stop_than_it_waits_for_confirms() -> None:
    (seconds,) = settings_of(DEPLOY / "systemd" / "postroad-relay.service", "TimeoutStopSec")
    assert timedelta(seconds=int(seconds.removesuffix("s"))) > Settings().value("grace")


def test_wrong_settings_are_not_tried_again_and_again(tmp_path: Path) -> None:
    """Exit code 2 is that of wrong settings."""
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "relay", "--lanes", "0"], cwd=tmp_path, capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    for name in ("postroad-relay.service", "postroad-consume@.service"):
        assert settings_of(DEPLOY / "systemd" / name, "RestartPreventExitStatus") == [str(done.returncode)]
