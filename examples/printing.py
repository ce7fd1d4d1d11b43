"""What an example prints, at most 80 columns wide; and how it fails if what it shows has not happened."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

from examples.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 80
LABEL = 12


class NotShown(Exception):
    """The example did not do what it says."""


def expect(happened: object, what: str) -> None:
    """Go on if this has happened; otherwise the example has failed."""
    if not happened:
        raise NotShown(f"this did not happen: {what}")


def run(main: Callable[[], None]) -> None:
    """Run an example. If it does not show what it should, it ends with one line about that, and exit code 1."""
    try:
        main()
    except (NotShown, TimeoutError) as failure:
        sys.exit(f"FAILED: {failure}")


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def say(text: str) -> None:
    print(textwrap.fill(text, WIDTH), flush=True)


def quote(who: str, *lines: str) -> None:
    """Print lines of a program's log, or facts, beside a name. What does not fit into a line is indented."""
    for line in lines:
        first, *rest = textwrap.wrap(line, WIDTH - LABEL - 7) or [""]
        for text in (first, *(f"  {part}" for part in rest)):
            print(f"  {who:{LABEL}} | {text}")
            who = ""
    sys.stdout.flush()


def postroad(*arguments: str, **environment: str) -> None:
    """Type a command, and print it with what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "utf-8", "LOGNAME": "anna"} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    for line in (f"$ postroad {shlex.join(arguments)}", *done.stdout.splitlines()):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        print(textwrap.fill(line, WIDTH, subsequent_indent=indent) if len(line) > WIDTH else line)
    sys.stdout.flush()
    expect(done.returncode == 0, f"postroad {arguments[0]} succeeds")
