"""Where the files of a demonstration are: in a temporary folder, or in one that is named and empty."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["folder_for"]


@contextmanager
def folder_for(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="postroad-demo-") as temporary:
            yield Path(temporary).resolve()
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        used = any(directory.iterdir())
    except OSError as error:
        raise InvalidSetting(f"directory is {str(directory)!r}, which can't be used: {error.strerror}") from error
    if used:
        raise InvalidSetting(f"directory is {str(directory)!r}, which is not empty; choose another")
    yield directory.resolve()
