"""Checks of names that operators give, with a suggestion for one that does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.errors import InvalidSetting
from postroad.setting import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroad.stores.admin.session import Query

__all__ = ["check_sink", "suggestion"]

_LISTED: Final = 10
"""At most this many names are listed in an error."""


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known name, or all known names."""
    known = sorted(names)
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    if not known:
        return "there is none yet"
    more = f" and {len(known) - _LISTED:,} more" if len(known) > _LISTED else ""
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(map(repr, known[:_LISTED]))}{more}"


async def check_sink(query: Query, sink: str | None) -> Sequence[str]:
    """List the sinks. Raises InvalidSetting if `sink` is given and is none of them."""
    sinks = [name for (name,) in await query("sinks")]
    if sink is not None and sink not in sinks:
        raise InvalidSetting(f"there is no sink {sink!r}; {suggestion(sink, sinks)}")
    return sinks
