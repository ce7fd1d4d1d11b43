"""A real, private PgBouncer in transaction mode: a server connection belongs to a client for one transaction only."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.services.postgresql import PostgreSQL, unprivileged_account
from tests.services.server import Server, ServerMissing, free_port

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {folder}/log
pidfile = {folder}/pid
"""
START_SECONDS = 60


class PgBouncer(Server):
    """A pooler in front of a PostgreSQL server. Its few server connections go from client to client."""

    def __init__(self, server: PostgreSQL) -> None:
        self._program = find()
        super().__init__("pgbouncer")
        self.port = free_port()
        self._account = unprivileged_account()
        settings = SETTINGS.format(server=server.port, port=self.port, folder=self.folder)
        (self.folder / "pgbouncer.ini").write_text(settings)
        self._account.give(self.folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [self._program, "-q", self.folder / "pgbouncer.ini"],
            cwd=self.folder,
            user=self._account.user,
            group=self._account.group,
            extra_groups=self._account.extra_groups,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > end:
                log = self.folder / "log"
                raise RuntimeError(f"PgBouncer did not start: {log.read_text() if log.exists() else '(no log)'}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(START_SECONDS)
            self._process = None

    def url(self, direct: str) -> str:
        """The way through the pooler to the database of a direct URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}{urlsplit(direct).path}"

    def _serves(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def find() -> Path:
    """The program."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        raise ServerMissing("PgBouncer", "apt-get install pgbouncer")
    return Path(program)
