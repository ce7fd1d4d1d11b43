"""A process in a terminal of its own: its size, its keys, and what it shows now."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["SECONDS", "Terminal"]

SECONDS = 60
HOME = "\x1b[H"
"""What a picture begins with."""
# The terminal becomes the controlling one, so that Ctrl-C and changes of its size are signals.
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'postroad', *sys.argv[1:]])"
)


class Terminal:
    """Runs a command of `postroad`; ends it at the end of the block at the latest."""

    def __init__(self, *arguments: str, folder: Path, columns: int = 80, rows: int = 24) -> None:
        self._main, self._there = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self._there)
        hidden = ("POSTROAD_", "COLUMNS", "LINES", "NO_COLOR")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *arguments],
            stdin=self._there, stdout=self._there, stderr=self._there, cwd=folder, start_new_session=True,
            env=environment | {"TERM": "xterm-256color", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )  # fmt: skip
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._main)
        os.close(self._there)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    @property
    def picture(self) -> str:
        """The newest whole picture, or the newest part of it."""
        return self.output.rpartition(HOME)[2]

    def until(self, shown: Callable[[str], Any] | str) -> str:
        """Read until a picture contains a text, or fulfils a condition."""
        end = time.monotonic() + SECONDS
        while not (shown in self.picture if isinstance(shown, str) else shown(self.picture)):
            assert time.monotonic() < end, self.output[-3000:]
            assert self.process.poll() is None, self.output[-3000:]
            self._read()
        return self.picture

    def ended(self) -> int:
        """Wait for the end, and read all that is left."""
        code = self.process.wait(SECONDS)
        while self._read():
            pass
        return code

    @property
    def is_as_before(self) -> bool:
        """Whether keys are read and shown as before the command, and its screen and cursor are given back."""
        return (
            termios.tcgetattr(self._there) == self.before
            and self.output.count("\x1b[?1049h") == self.output.count("\x1b[?1049l")
            and self.output.count("\x1b[?25l") <= self.output.count("\x1b[?25h")
        )

    def _read(self) -> bool:
        if not select.select([self._main], [], [], 0.2)[0]:
            return False
        self.output += self._decoder.decode(os.read(self._main, 65536))
        return True
