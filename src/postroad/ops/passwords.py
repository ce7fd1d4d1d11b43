"""No password reaches a terminal or a log: every text goes through here before a person sees it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from postroad.errors import InvalidSetting

__all__ = ["checked_url", "without_passwords"]

# Up to the last @ that could still belong to the URL: a password may contain what it should not, even an @.
_IN_URL: Final = re.compile(r"(://[^\s:/@]*):[^\s'\"]*@")
_IN_QUERY: Final = re.compile(r"(?i)\b(password|passfile|sslpassword)=[^\s&'\"]+")
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")


def without_passwords(text: str) -> str:
    """The text, with stars where a URL in it had its password."""
    return _IN_QUERY.sub(r"\1=***", _IN_URL.sub(r"\1:***@", text))


def checked_url(name: str, url: str) -> str:
    """Refuse a URL that a driver would take apart at the wrong places, for its errors then quote parts of a password.

    Several hosts, as PostgreSQL allows them, are fine.
    """
    try:
        hosts = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        hosts = "]"
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise InvalidSetting(
            f"{name} is a URL whose host and port can't be read; a special character in a user's name or password "
            "must be percent-encoded: / is %2F, @ is %40, : is %3A, # is %23, ? is %3F"
        )
    return url
