"""Who may read a file that has a secret in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["all_may_read"]


def all_may_read(path: Path | str) -> bool:
    """Whether every user of this machine may read the file.

    False for one that can't be looked at, which its reader will say, and on Windows, which has no such permissions.
    """
    try:
        return os.name == "posix" and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
