"""A real, private Redis server: a folder and a port of its own, an append-only file, and replicas of it."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.services.kafka import make_certificates
from tests.services.server import Server, ServerMissing, free_port, stop

START_SECONDS = 60
STOP_SECONDS = 120  # it syncs its file, whatever its settings are


class Redis(Server):
    """A Redis server on 127.0.0.1 alone, whose default user has no password. Further settings are keywords:
    `Redis(appendfsync="always")`.

    What it has survives that it is stopped, killed and started again, because tests kill servers and not machines.
    """

    def __init__(self, *, tls: bool = False, master: "Redis | None" = None, **settings: str) -> None:
        self._program = find()
        super().__init__("redis")
        self.port = free_port()
        self.tls_port = free_port() if tls else None
        self._settings = {"bind": "127.0.0.1", "save": "", "appendonly": "yes", "appendfsync": "no"}
        self._settings |= {"port": str(self.port), "dir": str(self.folder), "enable-debug-command": "local"}
        self._settings |= {name.replace("_", "-"): value for name, value in settings.items()}
        if tls:
            make_certificates(self.folder)
            self._settings |= {"tls-port": str(self.tls_port), "tls-auth-clients": "optional"}
            self._settings |= {f"tls-{name}-file": f"{self.folder}/server-{name}.pem" for name in ("cert", "key")}
            self._settings |= {"tls-ca-cert-file": f"{self.folder}/ca.pem"}
        if master is not None:
            self._settings |= {"replicaof": f"127.0.0.1 {master.port}", "repl-diskless-sync-delay": "0"}
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    # -- running -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start unless it runs, thaw it if it is frozen, and return when it serves."""
        self.thaw()
        if self.running:
            return
        settings = [word for name, value in self._settings.items() for word in (f"--{name}", *value.split(" "))]
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, *settings],
                cwd=self.folder,
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
        self.thaw()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def kill(self) -> None:
        """Without a goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process, self._frozen = None, False

    def close(self) -> None:
        if os.getpid() == self._made_in:
            self.kill()  # what it has is removed anyway
        super().close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Connections stay, and are silent."""
        if self._process is not None and not self._frozen:
            stop(self._process)
            self._frozen = True

    def thaw(self) -> None:
        if self._process is not None and self._frozen:
            self._process.send_signal(signal.SIGCONT)
            self._frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # -- using it ----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://localhost:{self.tls_port}/0"

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), protocol=2)

    def call(self, *arguments: Any) -> Any:
        """The answer to one command. Raises redis.ResponseError."""
        with self._client() as client:
            return client.execute_command(*arguments)

    def knows(self, command: str) -> bool:
        """Whether the server has such a command."""
        with self._client() as client:
            return command.lower() in client.command()

    def entries(self, stream: str) -> list[tuple[str, dict[str, bytes]]]:
        """The ids and fields of all entries of a stream."""
        with self._client() as client:
            found: Any = client.xrange(stream)
        return [(id.decode(), {name.decode(): value for name, value in fields.items()}) for id, fields in found]

    def until_replicated(self, replicas: int = 1) -> None:
        """Wait until so many replicas have all that was written."""
        deadline = time.monotonic() + START_SECONDS
        while not self._has_replicas(replicas):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {replicas} replicas: {self.call('INFO', 'replication')}")
            time.sleep(0.02)

    def _has_replicas(self, replicas: int) -> bool:
        facts = self.call("INFO", "replication")
        offset = facts["master_repl_offset"]
        found = [facts.get(f"slave{number}", {}) for number in range(facts["connected_slaves"])]
        return len([1 for each in found if each["state"] == "online" and each["offset"] >= offset]) >= replicas


class Sentinel(Server):
    """A sentinel that decides about the master soon: alone, or with as many others as make up the quorum."""

    def __init__(self, master: Redis, name: str = "main", *, quorum: int = 1) -> None:
        self._program = find()
        super().__init__("sentinel")
        self.port = free_port()
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None
        settings = [f"monitor {name} 127.0.0.1 {master.port} {quorum}", f"down-after-milliseconds {name} 500"]
        settings += [f"failover-timeout {name} 5000"]
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            *(f"sentinel {each}" for each in settings),
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        if self._process is not None:
            return
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, str(self.folder / "sentinel.conf"), "--sentinel"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._until(lambda: answers(self.port))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def until_ready(self, others: int = 0) -> None:
        """Wait until it knows a replica that could take over, and so many other sentinels."""
        self._until(lambda: any("disconnected" not in str(each) for each in self._ask("REPLICAS")))
        self._until(lambda: len(self._ask("SENTINELS")) >= others)

    def until_master(self, server: Redis) -> None:
        """Wait until the master is this server."""
        self._until(lambda: self._ask("GET-MASTER-ADDR-BY-NAME")[1] == str(server.port).encode())

    def _ask(self, question: str) -> Any:
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command("SENTINEL", question, self.name)

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sentinel is not ready:\n{(self.folder / 'output').read_text()}")
            time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether a Redis server answers there, and has loaded what it had."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
    except OSError:
        return False


def find() -> Path:
    """The server's program: redis-server, or what POSTROAD_TEST_REDIS names, such as valkey-server."""
    chosen = os.environ.get("POSTROAD_TEST_REDIS")
    program = shutil.which(chosen or "redis-server")
    if program is None:
        how = f"POSTROAD_TEST_REDIS is {chosen}" if chosen else "apt-get install redis-server"
        raise ServerMissing("Redis", how)
    return Path(program)
