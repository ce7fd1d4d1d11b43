"""Jars from Maven Central, in one folder of the user's cache for each program."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.services.server import ServerMissing, output_of

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>postroad</groupId><artifactId>for-tests</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
WHOLE = """<classifier>{}</classifier>
  <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""
"""For a jar that has in it what it needs."""


def cache(program: str) -> Path:
    """Where the files of a program are."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "postroad-tests" / program


def need(wanted: str) -> None:
    """Raise ServerMissing unless Maven is there to download this."""
    if shutil.which("mvn") is None:
        raise ServerMissing(f"Maven, which downloads {wanted},", "apt-get install maven")


def download(folder: Path, coordinates: Sequence[str]) -> None:
    """Fetch these, such as org.slf4j:slf4j-nop:1.7.36, and all that they need; or a jar that has all of it in it,
    such as org.gaul:s3proxy:2.6.0:jar-with-dependencies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(map(dependency, coordinates))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "pom.xml").write_text(POM.format(dependencies=dependencies))
        run(Path(name), "mvn", "-q", "-B", COPY, f"-DoutputDirectory={folder}", "-DincludeScope=runtime")


def dependency(coordinates: str) -> str:
    group, artifact, version, *classifier = coordinates.split(":")
    return DEPENDENCY.format(group, artifact, version, WHOLE.format(*classifier) if classifier else "")


def run(folder: Path, *command: str) -> None:
    output_of(subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True))
