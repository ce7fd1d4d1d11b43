"""No password reaches a terminal or a log: every text goes through here before a person sees it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["has_password", "without_passwords"]

# Up to the last @ that could still belong to the URL: a password may contain what it should not, even an @.
_IN_URL: Final = re.compile(r"(://[^\s:/@]*):[^\s'\"]*@")
_IN_QUERY: Final = re.compile(r"(?i)\b(password|sslpassword)=[^\s&'\"]+")


def without_passwords(text: str) -> str:
    """The text, with stars where a URL in it had its password."""
    return _IN_QUERY.sub(r"\1=***", _IN_URL.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Whether there is something to hide."""
    return without_passwords(url) != url
