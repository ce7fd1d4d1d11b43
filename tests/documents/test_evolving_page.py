"""docs/evolving.md says what works: its files are written, and its commands print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.documents.test_links import ROOT

PAGE = (ROOT / "docs" / "evolving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def ran(command: str, folder: Path) -> str:
    """What a command prints, and then its exit code."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, text=True, check=False, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return f"{done.stdout}{done.returncode}\n"


def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    commands, code = 0, ""
    for kind, text in BLOCKS:
        if kind == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            if command == "echo $?":
                assert code == shown, "of the command before it"
                continue
            printed = ran(command, tmp_path).splitlines(keepends=True)
            code = printed.pop()
            assert "".join(printed) == shown, command
            commands += 1
    assert commands == 5
    assert (tmp_path / "asyncapi.json").exists()
    assert ran("python -c 'import printing, labels'", tmp_path) == "0\n"
