"""What the examples need to show themselves: processes that end with a block, and a look until something is so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 60

T = TypeVar("T")


class Processes:
    """Programs that were started, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        """Run `python -m <arguments>`."""
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """End a program in good order, as SIGTERM asks it to."""
        process = self._running.pop(name)
        process.terminate()
        process.wait(TIMEOUT_SECONDS)

    def freeze(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)

    def names(self) -> list[str]:
        return list(self._running)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def lines(self, name: str, *words: str) -> list[str]:
        """The whole lines of its log that have one of these texts in them."""
        written = self.log(name).rpartition("\n")[0].splitlines()
        return [line for line in written if any(word in line for word in words)]

    def check(self) -> None:
        """Raise an error with the output of a program that has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended:\n{self.log(name)}")

    def end(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    running = Processes(folder)
    try:
        yield running
    finally:
        running.end()


def until(look: Callable[[], T], running: Processes, seconds: float = TIMEOUT_SECONDS) -> T:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        running.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {seconds:g} seconds")
        time.sleep(0.005)
    return seen
