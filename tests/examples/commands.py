"""Runs the one command of an example, as its page says, and looks at what all examples have in common."""

from __future__ import annotations

import subprocess
import sys

from examples.printing import WIDTH
from examples.running import ROOT


def printed_by(example: str, *options: str) -> str:
    """What the command prints; it must succeed, and fit into 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if len(line) > WIDTH] == []
    return done.stdout


def words_of(printed: str) -> str:
    """The text without what the width of the screen has put between its words."""
    return " ".join(printed.replace("|", " ").split())


def assert_page_is_whole(example: str) -> None:
    """The page names every file, and the command that make has for it."""
    folder = ROOT / "examples" / example
    page = (folder / "README.md").read_text(encoding="utf-8")
    for file in (*folder.glob("*.py"), *folder.glob("*.sql")):
        assert f"`{file.name}`" in page
    assert f"$ make {example} " in page
    assert f"\n{example}: servers ##" in (ROOT / "Makefile").read_text(encoding="utf-8")
