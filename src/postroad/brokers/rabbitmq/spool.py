"""A body that is too large for memory, in a temporary file until it is published as a dead letter."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Spool"]


class Spool:
    """Written once, in pieces, and read in pieces. The file is gone with this object, or with the process."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 - it lives as long as the delivery
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Append. Raises OSError when the disk is full."""
        self._file.write(piece)
        self.size += len(piece)

    def pieces(self, size: int) -> Iterator[bytes]:
        """All of it from the beginning, at most `size` bytes at a time."""
        self._file.seek(0)
        while piece := self._file.read(size):
            yield piece

    def __del__(self) -> None:
        self._file.close()
