"""How numbers, bars and sentences are written on a terminal. Pure."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from postroad.wording import age, count, one_line, time_text, without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import Count

__all__ = [
    "age",
    "bars",
    "count",
    "number_text",
    "one_line",
    "sentence_lines",
    "time_text",
    "without_secrets",
]

_COMMAND: Final = re.compile(r"`[^`]+`")
_KEPT_SPACE: Final = "\x00"  # printable text has none
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS: Final = ".:-=+*%#"


# -- numbers -------------------------------------------------------------------------------------------------------


def number_text(number: Count) -> str:
    """A number; an estimate begins with "~"."""
    return f"{'' if number.exact else '~'}{number.number:,}"


def bars(values: Sequence[float], *, plain: bool = False) -> str:
    """A bar chart in one line. 0 is a blank; anything above it is at least the lowest bar."""
    blocks = _PLAIN_BLOCKS if plain else _BLOCKS
    highest = max(values, default=0) or 1
    return "".join(" " if not value else blocks[round(value / highest * (len(blocks) - 1))] for value in values)


def sentence_lines(text: str, width: int) -> list[str]:
    """A sentence in lines of at most this width, or 20. A command in backquotes stays on one line if it fits, so that
    it can be copied.
    """
    wide = max(width, 20)

    def kept(found: re.Match[str]) -> str:
        return found[0].replace(" ", _KEPT_SPACE) if len(found[0]) <= wide - 3 else found[0]

    lines = wrap(_COMMAND.sub(kept, text), wide, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(_KEPT_SPACE, " ") for line in lines]
