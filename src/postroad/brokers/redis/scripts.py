"""The scripts that run on the server, from the .lua files beside this module. Each says what it does.

They are sent as a whole (EVAL) and not by their hash: a server that was restarted, or a replica that has taken over,
would not know the hash.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

__all__ = ["ADD", "DEAD_LETTER", "LEASE", "MOST_ARGUMENTS", "READ", "RELEASE", "RETRY", "TRIM", "WAITING"]

MOST_ARGUMENTS: Final = 7000
"""So many a script can pass on to a command; Lua's own limit is 8,000 values."""


def _load(name: str) -> bytes:
    """Without comments and indentation, because it is sent with each call."""
    text = files("postroad.brokers.redis").joinpath(f"{name}.lua").read_text()
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")).encode()


ADD: Final = _load("add")
TRIM: Final = _load("trim")
LEASE: Final = _load("lease")
RELEASE: Final = _load("release")
READ: Final = _load("read")
DEAD_LETTER: Final = _load("dead_letter")
RETRY: Final = _load("retry")
WAITING: Final = _load("waiting")
