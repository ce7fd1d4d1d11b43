"""Makes text from outside safe to print: passwords masked, one line, no terminal control characters. Pure.

Ids, keys, reasons and errors come from applications, brokers and drivers. All logged or printed text goes through here.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["harmless", "has_password", "without_passwords"]

_URL: Final = re.compile(r"://([^/\s'\"][^\s'\"]*)")
_NO_PASSWORD: Final = re.compile(r"[^:/?#]*")
_USER: Final = re.compile(r"[^:/?#@]*")
# The only option of a URL whose value may contain an @.
_USER_OPTION: Final = re.compile(r"[?&]user=[^&@]*@[^&@]*(?:&[^@]*)?$")
# To the end of the URL, or of the quotes: an & in a password can't be told from the beginning of the next option.
_OPTION: Final = re.compile(
    r"(?i)(\b\w*(?:password|passwd|pwd)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]+)"
)


def without_passwords(text: str) -> str:
    """The text with *** in place of each password of a URL or a connection string."""
    return _URL.sub(lambda url: f"://{_without_password(url[1])}", _OPTION.sub(r"\1***", text))


def _without_password(url: str) -> str:
    """Mask the password in a URL's part after `://`. It ends at the last @, because it may contain others."""
    option = _USER_OPTION.search(url)
    end = option.start() if option else len(url)
    before, at, host = url[:end].rpartition("@")
    if not at or _NO_PASSWORD.fullmatch(before):
        return url
    user = _USER.match(before)
    return f"{user[0] if user else ''}:***@{host}{url[end:]}"


def has_password(url: str) -> bool:
    """Whether the URL contains a password."""
    return without_passwords(url) != url


def harmless(text: str) -> str:
    """The text with escapes for line breaks, control characters and changes of the reading direction."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
