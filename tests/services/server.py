"""What the real servers of the tests have in common: a folder and ports of their own, and an end."""

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.services.guardian import guard


class ServerMissing(Exception):
    """A test needs a server that is not installed."""

    def __init__(self, name: str, how_to_get_it: str) -> None:
        super().__init__(f"{name} is not installed: {how_to_get_it}")
        self.name = name
        self.how_to_get_it = how_to_get_it


class Server:
    """A server that belongs to this process alone, and ends with it at the latest, also when that is killed. Its
    processes work in its folder.

    Making one raises ServerMissing when its programs are not there. `with` starts it, and stops and removes it.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"postroad-{name}-"))
        guard(self.folder)
        self._made_in = os.getpid()
        atexit.register(self.close)

    def start(self) -> None:
        """Start unless it runs already, and return when it serves."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop in good order if it runs, and return when all its processes are gone."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop, and remove the folder."""
        if os.getpid() != self._made_in:  # a forked child that ends must not take its parent's server with it
            return
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)  # the last thing: if this was interrupted, it is done again at the end

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PORTS = range(20_000, 32_000)
"""Below the range that outgoing connections take theirs from, so that while a server is down for a restart no client is
given its port, or is connected to itself.
"""

_given: set[int] = set()


def free_port() -> int:
    """A port on 127.0.0.1 that no program listens on, and that no server of this run gets, also while this one is down.

    Each worker of pytest has ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = secrets.choice(PORTS[worker % workers :: workers])  # whatever a test has seeded
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop a child process, and return when all its threads stand still: SIGSTOP alone takes effect some time later."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a finished program printed; raises CalledProcessError, with what it complained about, if it failed."""
    if done.returncode:
        failed = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        failed.add_note(done.stderr)
        raise failed
    return done.stdout
