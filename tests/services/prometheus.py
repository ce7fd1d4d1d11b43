"""A real, private Prometheus server: a folder and a port of its own, scraping what it is told to every second."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.services.server import Server, ServerMissing, free_port

START_SECONDS = 120
STOP_SECONDS = 60
CONFIGURATION = """
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: {rules}
scrape_configs:
  - job_name: postroad
    static_configs:
      - targets: {targets}
"""


class Prometheus(Server):
    """Scrapes these ports of 127.0.0.1, and evaluates these files of rules."""

    def __init__(self, ports: Sequence[int], rules: Sequence[Path] = ()) -> None:
        self._program = find()
        super().__init__("prometheus")
        self.port = free_port()
        targets = [f"127.0.0.1:{port}" for port in ports]
        (self.folder / "prometheus.yml").write_text(
            CONFIGURATION.format(rules=json.dumps([str(each) for each in rules]), targets=json.dumps(targets))
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        options = (
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        )
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not start:\n{(self.folder / 'output').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query. Raises ValueError with Prometheus's own words if it is wrong."""
        found = self.get("query", query=expression)
        return list(found["result"])

    def get(self, what: str, **parameters: str) -> Any:
        """The data of its HTTP API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {json.load(error)['error']}") from None

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def find() -> Path:
    """The server's program."""
    return _program("prometheus")


def find_promtool() -> Path:
    """The program that checks rules; it comes with the server."""
    return _program("promtool")


def _program(name: str) -> Path:
    program = shutil.which(name)
    if program is None:
        raise ServerMissing("Prometheus", "apt-get install prometheus")
    return Path(program)
