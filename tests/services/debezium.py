"""A real, private Kafka Connect with Debezium's connector for PostgreSQL: one worker, one connector.

Its jars come from Maven Central (`python -m tests.services.install`), with Kafka Connect's own. What it has carried is
in a Kafka of the tests; its offsets are in a file, so that it goes on where it stopped.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services import maven
from tests.services.kafka_jars import find_java
from tests.services.server import Server, ServerMissing, free_port

VERSION = "3.6.1.Final"
START_SECONDS = 180
STOP_SECONDS = 60
COORDINATES = (
    f"io.debezium:debezium-connector-postgres:{VERSION}",
    f"io.debezium:debezium-embedded:{VERSION}",  # it brings Kafka Connect
    "org.slf4j:slf4j-simple:1.7.36",
)
COMPLETE = "complete"
"""The file that is written last."""

WORKER = """bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=200
listeners=http://127.0.0.1:{port}
plugin.discovery=service_load
"""
MEMORY = ("-XX:+UseSerialGC", "-Xms64m", "-Xmx400m")
QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""For tests: Java spends little time on compiling."""


class Debezium(Server):
    """A worker of Kafka Connect that writes to this Kafka, with the connector that a configuration describes."""

    def __init__(
        self, bootstrap: str, connector: Mapping[str, str], *, java_options: Sequence[str] = QUICK_START
    ) -> None:
        find()
        super().__init__("debezium")
        self._java_options = (*MEMORY, *java_options)
        self.port = free_port()
        self._name = "postroad"
        worker = WORKER.format(bootstrap=bootstrap, folder=self.folder, port=self.port)
        (self.folder / "worker.properties").write_text(worker)
        (self.folder / "connector.json").write_text(json.dumps({"name": self._name, "config": dict(connector)}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return when the connector's task runs."""
        if self._process is not None:
            return
        jars = ":".join(map(str, sorted(home().glob("*.jar"))))
        main = ("org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.json")
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [find_java(), *self._java_options, "-cp", jars, *main],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while (state := self.state()) != "RUNNING":
            if self._process.poll() is not None or time.monotonic() > deadline or state == "FAILED":
                raise RuntimeError(f"Debezium did not start:\n{self.output}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def close(self) -> None:
        self.kill()  # nothing is kept
        super().close()

    def state(self) -> str | None:
        """The state of the connector's task, as Kafka Connect calls it; None: it has none yet."""
        try:
            url = f"http://127.0.0.1:{self.port}/connectors/{self._name}/status"
            with urllib.request.urlopen(url, timeout=60) as answer:
                tasks = json.load(answer)["tasks"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return tasks[0]["state"] if tasks else None

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-20_000:]


def home() -> Path:
    return maven.cache(f"debezium-{VERSION}")


def find() -> None:
    """Raises ServerMissing."""
    find_java()
    if not (home() / COMPLETE).exists():
        raise ServerMissing(f"Debezium {VERSION}", "make servers (40 MB from Maven Central)")


def find_maven() -> None:
    """Needed only as long as the jars are not there."""
    if not (home() / COMPLETE).exists():
        maven.need("Debezium")


def install() -> None:
    maven.download(home(), COORDINATES)
    (home() / COMPLETE).touch()
