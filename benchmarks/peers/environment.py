"""The environment that peers run in, made on demand: `benchmarks/.venv-peers`, from requirements.txt."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.process import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = REPOSITORY / "benchmarks" / ".venv-peers"
REQUIREMENTS = REPOSITORY / "benchmarks" / "peers" / "requirements.txt"


class PeersMissing(Exception):
    """The peers could not be installed."""


def python() -> Path:
    """The interpreter that has the peers. Raises PeersMissing."""
    interpreter, made_from = FOLDER / "bin" / "python", FOLDER / "requirements.txt"
    if made_from.exists() and made_from.read_text() == REQUIREMENTS.read_text():
        return interpreter
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        _run(str(interpreter), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS))
    except subprocess.CalledProcessError as error:
        complaint = str(error.stderr).strip().splitlines()
        raise PeersMissing(complaint[-1] if complaint else f"pip ended with {error.returncode}") from error
    made_from.write_text(REQUIREMENTS.read_text())
    return interpreter


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
