"""The pattern of an error, by which failures are grouped: without ids, numbers, addresses and quoted values. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LONGEST_PATTERN", "normalise_error"]

LONGEST_PATTERN: Final = 500
"""A pattern is cut here: errors that differ only behind it are one group."""

_HEX: Final = "[0-9a-fA-F]"
_PLACEHOLDERS: Final = (
    ("<url>", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s'\"<>]+"),
    ("<value>", r"""(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)"[^"\n]*"(?!\w)|`[^`\n]*`"""),
    ("<email>", r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"),
    ("<id>", rf"\b{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}\b|\b0x{_HEX}+\b|\b(?=[a-fA-F]*[0-9]){_HEX}{{8,}}\b"),
    ("<address>", r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+)?\b|\[[0-9a-fA-F:]{2,45}\](?::[0-9]+)?"),
    ("<address>", r"\b[a-zA-Z][\w-]{0,62}(?:\.[\w-]{1,63})*:[0-9]{2,5}\b"),
    ("<n>", r"[-+]?\d+(?:[.,:]\d+)*"),
)
"""What is replaced, in this order: a number in a URL is part of the URL."""
_RULES: Final = tuple((placeholder, re.compile(pattern)) for placeholder, pattern in _PLACEHOLDERS)
_SPACES: Final = re.compile(r"\s+")


def normalise_error(text: str) -> str:
    """The pattern of an error: in one line, with placeholders for what differs from message to message."""
    for placeholder, rule in _RULES:
        text = rule.sub(placeholder, text)
    return _SPACES.sub(" ", text).strip()[:LONGEST_PATTERN]
