"""The measuring side of a measured process: start it, give the word, and read what it says of itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

import msgspec

REPOSITORY = Path(__file__).resolve().parent.parent


class Broken(Exception):
    """A measured process did not do its work; its complaint is the message."""


class Outcome(msgspec.Struct, frozen=True):
    """What a measured process reported."""

    messages: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    settings: str
    starting_cpu_seconds: float = 0.0
    """Of the processor time, what had been used when the word was given; 0 from those who do not tell."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Process:
    """A process that follows benchmarks/subject.py. Leaving the `with` block ends it, whatever it is doing."""

    def __init__(self, module: str, *arguments: str, python: Path = Path(sys.executable)) -> None:
        self._module = module
        # A pipe that is not read would fill up.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.{module}", *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self._line()  # it is ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def say(self) -> None:
        """Give the word: begin, or stop."""
        stdin: IO[str] = self._process.stdin  # type: ignore[assignment]
        stdin.write("go\n")
        stdin.flush()

    def outcome(self) -> Outcome:
        """Wait for its report."""
        return msgspec.json.decode(self._line(), type=Outcome)

    def figures(self) -> dict[str, float]:
        """Wait for the next figures that it has to tell."""
        return msgspec.json.decode(self._line(), type=dict[str, float])

    def _line(self) -> str:
        stdout: IO[str] = self._process.stdout  # type: ignore[assignment]
        line = stdout.readline()
        if not line:
            self._process.wait()
            self._complaints.seek(0)
            raise Broken(f"{self._module} ended with {self._process.returncode}:\n{self._complaints.read()}")
        return line
