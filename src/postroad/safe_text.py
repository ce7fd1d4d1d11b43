"""Text that came from elsewhere, made safe to show: no password in it, one line, nothing that acts on a terminal. Pure.

Ids, keys, reasons and errors are written by applications, brokers and drivers. Whatever is logged or printed goes
through here once.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["harmless", "has_password", "without_passwords"]

_URL: Final = re.compile(r"://([^/\s'\"][^\s'\"]*)")
_NO_PASSWORD: Final = re.compile(r"[^:/?#]*")
_USER: Final = re.compile(r"[^:/?#@]*")
# The only option of a URL that may have an @ of its own.
_USER_OPTION: Final = re.compile(r"[?&]user=[^&@]*@[^&@]*(?:&[^@]*)?$")
# Up to the end of the URL, or of the quotes: an & in a password looks like the beginning of the next option.
_OPTION: Final = re.compile(
    r"(?i)(\b\w*(?:password|passwd|pwd)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]+)"
)


def without_passwords(text: str) -> str:
    """The text, with stars where a URL or a connection string in it had its password."""
    return _URL.sub(lambda url: f"://{_without_password(url[1])}", _OPTION.sub(r"\1***", text))


def _without_password(url: str) -> str:
    """A URL from its user on. A password may contain what it should not, even an @, so it ends at the last one."""
    option = _USER_OPTION.search(url)
    end = option.start() if option else len(url)
    before, at, host = url[:end].rpartition("@")
    if not at or _NO_PASSWORD.fullmatch(before):
        return url
    user = _USER.match(before)
    return f"{user[0] if user else ''}:***@{host}{url[end:]}"


def has_password(url: str) -> bool:
    """Whether there is something to hide."""
    return without_passwords(url) != url


def harmless(text: str) -> str:
    """The text with escapes for what would begin a line, move the cursor, or turn the direction of reading."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
