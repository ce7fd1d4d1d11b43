"""Ends the servers of a test process that was killed, and removes their folders: it can't do that itself any more.

The test process writes the folders of its servers to the guardian's stdin. When it has ended, however that happened,
its end of the pipe is closed. All processes of a server work in its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_guardians: dict[int, subprocess.Popen[bytes]] = {}
"""By the process that they belong to: a forked one has its own."""


def guard(folder: Path) -> None:
    """From now on, this folder and the processes in it do not outlive the calling process."""
    guardian = _guardians.get(os.getpid())
    if guardian is None or guardian.poll() is not None:
        # In a session of its own: what ends the test process, such as Ctrl-C, must not end the guardian.
        guardian = _guardians[os.getpid()] = subprocess.Popen(
            [sys.executable, "-IS", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    assert guardian.stdin is not None
    guardian.stdin.write(f"{folder}\n".encode())
    guardian.stdin.flush()


def processes_in(folders: Iterable[Path]) -> list[int]:
    """The ids of the processes that work in one of these folders."""
    folders, found = list(folders), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = (process / "cwd").readlink()
        except OSError:  # it ended meanwhile, or is not ours to look at
            continue
        if any(place.is_relative_to(folder) for folder in folders):
            found.append(int(process.name))
    return found


def main() -> None:
    """Wait until the test process has ended."""
    folders = [Path(line.rstrip("\n")) for line in sys.stdin]
    left = [folder for folder in folders if folder.exists()]
    while processes := processes_in(left):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
