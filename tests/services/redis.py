"""A real, private Redis server: nothing on disk, a port of its own."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.services.server import Server, ServerMissing, free_port

START_SECONDS = 60
STOP_SECONDS = 60


class Redis(Server):
    """A Redis server without a password, on 127.0.0.1 alone."""

    def __init__(self) -> None:
        self._program = find()
        super().__init__("redis")
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.running:
            return
        options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder))
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Redis did not start:\n{(self.folder / 'output').read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def answers(port: int) -> bool:
    """Whether a Redis server answers there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
    except OSError:
        return False


def find() -> Path:
    """The server's program."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerMissing("Redis", "apt-get install redis-server")
    return Path(program)
