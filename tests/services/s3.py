"""A real, private server with the interface of S3: s3proxy, whose buckets are folders.

Its jar comes from Maven Central (`python -m tests.services.install`).
"""

from __future__ import annotations

import secrets
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.services import maven
from tests.services.kafka_jars import find_java
from tests.services.server import Server, ServerMissing, free_port

VERSION = "2.6.0"
START_SECONDS = 120
STOP_SECONDS = 60
COORDINATES = (f"org.gaul:s3proxy:{VERSION}:jar-with-dependencies",)
MEMORY = ("-XX:+UseSerialGC", "-Xms32m", "-Xmx200m", "-XX:TieredStopAtLevel=1")
KEY = "tests"
SECRET = "a-secret-of-the-tests"
SETTINGS = f"""s3proxy.endpoint=http://127.0.0.1:{{port}}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={KEY}
s3proxy.credential={SECRET}
s3proxy.ignore-unknown-headers=true
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={{folder}}/buckets
jclouds.identity=unused
jclouds.credential=unused
"""


class S3(Server):
    """Clients need its key and its secret: `environment` has them, as S3's clients read them."""

    def __init__(self) -> None:
        find()
        super().__init__("s3")
        self.port = free_port()
        self._buckets = self.folder / "buckets"
        self._buckets.mkdir()
        (self.folder / "s3proxy.conf").write_text(SETTINGS.format(port=self.port, folder=self.folder))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def create_bucket(self) -> str:
        """The name of a new bucket."""
        name = f"tests-{secrets.token_hex(6)}"
        (self._buckets / name).mkdir()
        return name

    def start(self) -> None:
        if self._process is not None:
            return
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [find_java(), *MEMORY, "-jar", str(_jar()), "--properties", "s3proxy.conf"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"s3proxy did not start:\n{(self.folder / 'output').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                return True
        except urllib.error.HTTPError:  # a request without a signature is refused
            return True
        except OSError:
            return False


def home() -> Path:
    return maven.cache(f"s3proxy-{VERSION}")


def _jar() -> Path:
    return home() / f"s3proxy-{VERSION}-jar-with-dependencies.jar"


def find() -> None:
    """Raises ServerMissing."""
    find_java()
    if not _jar().exists():
        raise ServerMissing(f"s3proxy {VERSION}", "make servers (40 MB from Maven Central)")


def find_maven() -> None:
    """Needed only as long as the jar is not there."""
    if not _jar().exists():
        maven.need("s3proxy")


def install() -> None:
    maven.download(home(), COORDINATES)
