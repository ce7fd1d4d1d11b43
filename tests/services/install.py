"""Install the servers that the tests need and this machine lacks: on Debian, as root. Elsewhere say what is missing.

python -m tests.services.install
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.services import pgbouncer, postgresql, rabbitmq, redis
from tests.services.server import ServerMissing

NEEDED: dict[str, Callable[[], object]] = {
    "postgresql-15": lambda: postgresql.find(15),
    "rabbitmq-server": rabbitmq.find,
    "pgbouncer": pgbouncer.find,
    "redis-server": redis.find,
}

# Debian's packages start their services, and PostgreSQL's makes a cluster for it. The tests start servers of their own.
NO_SERVICE = (Path("/usr/sbin/policy-rc.d"), "#!/bin/sh\nexit 101\n", 0o755)
NO_CLUSTER = (Path("/etc/postgresql-common/createcluster.d/postroad.conf"), "create_main_cluster = false\n", 0o644)


def main() -> int:
    packages = missing()
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        install(packages)
    unavailable = [error for needed in NEEDED.values() if (error := absence(needed))]
    for error in unavailable:
        say(f"{error}. Its tests {'fail' if os.environ.get('CI') else 'will be skipped'}.")
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
