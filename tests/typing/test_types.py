"""Both type checkers accept what is right and refuse what is wrong, line by line. `make check` runs this."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

Reported = dict[str, set[int]]
"""The lines that a checker reports, by file."""


def mypy() -> Reported:
    """As `make check` runs it."""
    files = [str(HERE / name) for name in ("accepts.py", "rejects.py")]
    command = [sys.executable, "-m", "mypy", "--cache-dir", ".mypy_cache/typing", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    reported: Reported = {}
    for path, line in re.findall(r"^(.+?):(\d+): error:", done.stdout, re.MULTILINE):
        reported.setdefault(Path(path).name, set()).add(int(line))
    return reported


def pyright() -> Reported:
    """basedpyright is pyright with its node from PyPI, so nothing has to be downloaded from elsewhere."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(HERE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    reported: Reported = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            reported.setdefault(Path(each["file"]).name, set()).add(each["range"]["start"]["line"] + 1)
    return reported


def marked(name: str) -> set[int]:
    lines = (HERE / name).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_marked_lines_are_refused_and_no_other(checker: Callable[[], Reported]) -> None:
    expected = marked("rejects.py")
    assert len(expected) > 20
    assert checker() == {"rejects.py": expected}
