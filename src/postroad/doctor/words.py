"""Numbers, ages and names in the texts of findings. Pure.

Names come from outside, and fixes are pasted into a shell or psql: there they are quoted.
"""

from __future__ import annotations

import shlex
from typing import Final

__all__ = ["count", "identifier", "literal", "shell", "short"]

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def short(seconds: float) -> str:
    """A length of time in its largest unit: 3 d, 12 min, 0.4 s."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} s"


def count(number: int, thing: str) -> str:
    """A number of things: `1 message`, `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shell(name: str) -> str:
    """A name as one word of a command."""
    return shlex.quote(name)


def identifier(name: str) -> str:
    """A name in SQL."""
    return name if name.isidentifier() and name.islower() and name.isascii() else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
