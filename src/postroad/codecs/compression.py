"""Compression: zstd, and zlib where no package should be installed.

A payload is compressed if it has more bytes than `above` and becomes smaller. `largest` limits what a payload may grow
to when it is decompressed: a few kilobytes of a hostile message could otherwise become gigabytes.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from postroad.codecs.base import Codec, size_from
from postroad.errors import InvalidMessage, InvalidSetting, MissingExtra
from postroad.message import CONTENT_ENCODING
from postroad.received import Unreadable

if TYPE_CHECKING:
    from postroad.codecs.base import About
    from postroad.kinds import Size

__all__ = ["LARGEST", "Zlib", "Zstd"]

LARGEST: Final = "64MB"


class _Compression(Codec):
    """What both have in common."""

    header: str = CONTENT_ENCODING
    form: str
    levels: ClassVar[range]

    def __init__(self, above: Size, level: int, largest: Size) -> None:
        if type(level) is not int or level not in self.levels:
            raise InvalidSetting(
                f"level is {level!r}; it must be a whole number from {self.levels[0]} to {self.levels[-1]}"
            )
        self._above = size_from("above", above)
        self._level = level
        self._largest = size_from("largest", largest, least=1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(above={self._above}, level={self._level}, largest={self._largest})"

    def encode(self, payload: bytes, about: About) -> tuple[bytes, str] | None:
        """Compress a payload that is large enough, unless it would not become smaller."""
        if len(payload) <= self._above:
            return None
        if len(payload) > self._largest:
            raise InvalidMessage(
                f"the payload of this {about.type!r} has {len(payload):,} bytes, and {type(self).__name__}'s largest "
                f"is {self._largest:,}: consumers would not decompress it; raise largest, there and here"
            )
        compressed = self._compress(payload)
        return (compressed, self.form) if len(compressed) < len(payload) else None

    async def decode(self, payload: bytes, value: str, about: About) -> bytes:
        """Decompress a payload. Raises Unreadable when it is damaged, or would be larger than `largest`."""
        try:
            found, whole = self._decompress(payload, self._largest)
        except Exception as error:  # each library has its own
            raise Unreadable(f"its payload can't be decompressed ({self.form}): {error}") from None
        if len(found) > self._largest:
            raise Unreadable(
                f"its payload of {len(payload):,} bytes would have more than {self._largest:,} when decompressed, "
                f"which is {type(self).__name__}'s largest"
            )
        if not whole:
            raise Unreadable(f"its payload can't be decompressed ({self.form}): its end is missing")
        return found

    def _compress(self, payload: bytes) -> bytes:
        raise NotImplementedError

    def _decompress(self, payload: bytes, most: int) -> tuple[bytes, bool]:
        """At most one byte more than `most`, and whether that is all of it."""
        raise NotImplementedError


class Zlib(_Compression):
    """zlib, without any package: slower than zstd, and larger results."""

    form = "deflate"  # the name that HTTP has for zlib's format
    levels = range(1, 10)

    def __init__(self, *, above: Size = "4KB", level: int = 6, largest: Size = LARGEST) -> None:
        """Compress payloads of more than `above`; the sizes are bytes, or texts such as "4KB" (1 KB is 1,024 bytes)."""
        super().__init__(above, level, largest)

    def _compress(self, payload: bytes) -> bytes:
        return zlib.compress(payload, self._level)

    def _decompress(self, payload: bytes, most: int) -> tuple[bytes, bool]:
        decompressor = zlib.decompressobj()
        return decompressor.decompress(payload, most + 1), decompressor.eof


class Zstd(_Compression):
    """zstd: a part of Python from 3.14 on, the package backports.zstd before."""

    form = "zstd"
    levels = range(1, 20)  # beyond them a decompressor needs more than 8 MB of memory, whatever the payload's size

    def __init__(self, *, above: Size = "4KB", level: int = 3, largest: Size = LARGEST) -> None:
        """Compress payloads of more than `above`; the sizes are bytes, or texts such as "4KB" (1 KB is 1,024 bytes)."""
        super().__init__(above, level, largest)
        self._zstd = _library()
        self._options = {self._zstd.DecompressionParameter.window_log_max: 23}

    def _compress(self, payload: bytes) -> bytes:
        compressed: bytes = self._zstd.compress(payload, self._level)
        return compressed

    def _decompress(self, payload: bytes, most: int) -> tuple[bytes, bool]:
        decompressor = self._zstd.ZstdDecompressor(options=self._options)
        return decompressor.decompress(payload, most + 1), decompressor.eof


def _library() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingExtra("Zstd", "zstd")
