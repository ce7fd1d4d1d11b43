"""Programs that check the files of `deploy/`. Those from PyPI must be there in CI, others may be missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def from_pypi(name: str) -> Path:
    """A program of the group `test` in pyproject.toml."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed: make .venv/.all")
    return Path(found)


def of_the_system(name: str) -> Path:
    """A program that the tests do not install."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return Path(found)


def run(program: Path, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """What it prints; it must succeed."""
    done = subprocess.run(
        [program, *arguments], cwd=cwd, text=True, check=False, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
