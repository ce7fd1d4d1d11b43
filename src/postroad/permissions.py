"""Checks who may read a file that contains a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["all_may_read"]


def all_may_read(path: Path | str) -> bool:
    """Whether every user of this machine may read the file.

    False for a file that can't be examined (reading it will raise the error), and on Windows, which has no such
    permissions.
    """
    try:
        return os.name == "posix" and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
