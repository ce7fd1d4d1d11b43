"""The memory of reads: a default of glibc that costs a busy process a tenth of its time.

For every read asyncio asks for 256 KiB, and then gives back all but what has come. glibc takes blocks of that size from
the kernel, page faults and all, each time anew, until one has been freed whole: from then on it keeps them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["keep_large_blocks"]

_LARGE: Final = 1 << 20  # more than any read asks for


def keep_large_blocks() -> None:
    """Free a large block, whole. It costs microseconds, and means nothing to other C libraries."""
    bytes(_LARGE)
