"""The memory of a busy process: two defaults that cost it a tenth and a quarter of its time.

glibc: for every read asyncio asks for 256 KiB, and then gives back all but what has come. glibc takes blocks of that
size from the kernel, page faults and all, each time anew, until one has been freed whole: from then on it keeps them.

Python: it looks for cyclic garbage whenever there are 700 more containers (2,000 in newer versions) than after the last
search. Every row of a page is one until it has become a message, so a page of 1,000 rows is searched while it is read,
row by row and in vain, and now and then everything that was ever imported is searched with it.
"""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["collect_seldom", "keep_large_blocks"]

_LARGE: Final = 1 << 20  # more than any read asks for
_DEFAULTS: Final = (700, 2000)
_CONTAINERS: Final = 20_000  # more than the rows that all lanes of a few sinks read at the same time


def keep_large_blocks() -> None:
    """Free a large block, whole. It costs microseconds, and means nothing to other C libraries."""
    bytes(_LARGE)


def collect_seldom() -> None:
    """Search for cyclic garbage less often, unless the application has chosen how often.

    It concerns the whole process, so it is for commands, whose process is their own. A relay or a consumer inside of an
    application leaves the choice to it.
    """
    first, *others = gc.get_threshold()
    if first in _DEFAULTS:
        gc.set_threshold(_CONTAINERS, *others)
