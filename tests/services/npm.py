"""Files from packages of npm, in one folder of the user's cache for each version."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.services.maven import cache


def from_npm(package: str, version: str, file: str) -> Path:
    """A file of a package, downloaded once. Without npm the test is skipped; if the download fails, it fails in CI."""
    npm = shutil.which("npm")
    folder = cache(f"{package.strip('@').replace('/', '-')}-{version}")
    found = folder / "package" / file
    if found.exists():
        return found
    if npm is None:
        pytest.skip(f"npm, which downloads {package}, is not installed here")
    with tempfile.TemporaryDirectory() as name:
        command = [npm, "pack", "--silent", f"{package}@{version}"]
        done = subprocess.run(command, cwd=name, text=True, capture_output=True, check=False, timeout=300)
        packed = list(Path(name).glob("*.tgz"))
        if done.returncode or not packed:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"npm can't download {package}: {done.stderr[-300:]}"
            )
        with tarfile.open(packed[0]) as archive:
            folder.mkdir(parents=True, exist_ok=True)
            archive.extractall(folder, filter="data")
    return found
