"""Kafka's programs: jars from Maven Central, of one version, kept in the user's cache.

`python -m tests.services.install` downloads them; tests only look whether they are there.
"""

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.services import maven
from tests.services.server import ServerMissing

VERSION = "4.3.1"
SLF4J_VERSION = "1.7.36"
OLDEST_JAVA = 17

FORMATTED = "bootstrap.checkpoint"
"""What `StorageTool format` writes; the same for all brokers of a version."""
CLASSES = "classes.jsa"
"""The classes of a running broker, as Java maps them into memory. Without it a broker starts more slowly."""

COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.slf4j:slf4j-nop:{SLF4J_VERSION}")
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
controller.listener.names=CONTROLLER
listeners=CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092
"""


def find() -> Path:
    """The folder with the jars; raises ServerMissing."""
    find_java()
    if not (home() / FORMATTED).exists():
        raise ServerMissing(f"Kafka {VERSION}", "make servers (45 MB from Maven Central)")
    return home()


@cache
def find_java() -> str:
    java = shutil.which("java")
    if java is not None:
        printed = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
        version = re.search(r'version "(\d+)', printed)
        if version is not None and int(version[1]) >= OLDEST_JAVA:
            return java
    raise ServerMissing(f"Java {OLDEST_JAVA}, for Kafka,", "apt-get install openjdk-17-jre-headless")


def find_maven() -> None:
    """Needed only as long as the jars are not there."""
    if not (home() / FORMATTED).exists():
        maven.need("Kafka")


def home() -> Path:
    return maven.cache(f"kafka-{VERSION}")


def command(*options: str) -> list[str]:
    """What runs a class of Kafka; its name and arguments follow."""
    jars = sorted((home() / "libs").glob("*.jar"))
    return [find_java(), *options, "-cp", ":".join(map(str, jars))]


def download() -> None:
    """Fetch the jars, and format a folder to keep what that writes."""
    maven.download(home() / "libs", COORDINATES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "format.properties").write_text(f"{SETTINGS}log.dirs={folder}/data\n")
        tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", "format.properties")
        maven.run(folder, *command(), *tool)
        shutil.copy(folder / "data" / FORMATTED, home())
