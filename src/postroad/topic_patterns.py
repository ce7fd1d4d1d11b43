"""Patterns of topics, as AMQP's topic exchanges have them. Pure.

A topic is a list of words with dots between them. In a pattern, `*` stands for exactly one word and `#` for any number
of words, also none; any other word stands for itself. A word may be empty, as in `a..b`.

A database compares a topic with patterns in two steps, because a regular expression costs it several times as much as
LIKE: what matches the pattern matches one of its LIKE patterns; and where these take more than the pattern does, a
regular expression decides.
"""

from __future__ import annotations

import re
from itertools import groupby, product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["is_pattern", "likes_of", "regex_of"]

_WORD: Final = "[^.]*"
_MOST_HASHES: Final = 3
"""A pattern with more `#` than this gets one LIKE pattern, that takes too much, instead of 2 for each `#`."""


def is_pattern(text: str) -> bool:
    """Whether `*` and `#` are whole words. A broker would take them for themselves within a word, which is hardly ever
    meant.
    """
    return bool(text) and not any(word not in {"*", "#"} and re.search("[*#]", word) for word in text.split("."))


def regex_of(patterns: Iterable[str]) -> str:
    """A regular expression that a topic matches if it matches any of the patterns. Python, with `fullmatch`, and
    PostgreSQL understand it in the same way.
    """
    return f"^(?:{'|'.join(map(_regex, patterns))})$"


def likes_of(patterns: Iterable[str]) -> tuple[Sequence[str], bool]:
    """LIKE patterns, with a backslash as the escape, one of which every matching topic matches; and whether no other
    topic does, so that no regular expression is needed.
    """
    likes: dict[str, None] = {}
    exact = True
    for pattern in patterns:
        words = _words(pattern)
        if "*" in words or words.count("#") > _MOST_HASHES:
            likes[_like(["%" if word in {"*", "#"} else _escaped(word) for word in words], "#" in words)] = None
            exact = False
            continue
        # Each `#` is no word, or anything between two dots.
        forms = [([], ["%"]) if word == "#" else ([_escaped(word)],) for word in words]
        for chosen in product(*forms):
            parts = [part for each in chosen for part in each]
            if parts:
                likes[".".join(parts)] = None
    return list(likes), exact


def _like(parts: Sequence[str], hashes: bool) -> str:
    """With a `#`, the dots beside it may be missing in a topic, so they are left out."""
    text = ".".join(parts)
    return re.sub(r"\.?%\.?", "%", text) if hashes else text


def _words(pattern: str) -> list[str]:
    """Of several `#` in a row, all but the first add nothing."""
    return [word for word, same in groupby(pattern.split(".")) for word in ([word] if word == "#" else list(same))]


def _escaped(word: str) -> str:
    return re.sub(r"[%_\\]", r"\\\g<0>", word)


def _regex(pattern: str) -> str:
    words = _words(pattern)
    if words == ["#"]:
        return r"(?:.|\n)*"
    regex, dot = "", ""
    for number, word in enumerate(words):
        if word == "#":
            # It takes the dots in front of its words; at the beginning, those behind them.
            regex += rf"(?:\.{_WORD})*" if number else rf"(?:{_WORD}\.)*"
        else:
            regex += dot + (_WORD if word == "*" else re.sub(r"[^\w]", r"\\\g<0>", word))
        dot = "" if number == 0 and word == "#" else r"\."
    return regex
