"""Database URLs as a driver takes them. Nothing here does I/O, or shows a secret.

SQLAlchemy's URLs name a driver in their scheme, `postgresql+asyncpg://`. They are taken as well, and mean the same
database; the relay uses its own driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from postroad.errors import InvalidSetting
from postroad.kinds import is_url

__all__ = ["driver_url", "place_of", "sqlite_path"]

# What SQLAlchemy's asyncpg dialect keeps for itself, or calls by another name than PostgreSQL does.
_SQLALCHEMY_OPTIONS: Final = frozenset(
    {"async_fallback", "prepared_statement_cache_size", "prepared_statement_name_func"}
)


def sqlite_path(url: str) -> Path:
    """The file of an sqlite:/// URL; three slashes for a relative path, four for an absolute one."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or parts.fragment or path in {"", ":memory:"} or "\0" in path:
        raise InvalidSetting(
            "database is an sqlite URL that names no file; it must name one that several processes can open, "
            "such as sqlite:///orders.db (relative) or sqlite:////srv/orders.db (absolute)",
            settings=("database",),
        )
    return Path(path)


def driver_url(url: str) -> str:
    """A PostgreSQL URL without what is SQLAlchemy's: the name of a driver, and options that only its dialects know."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    name, _, driver = scheme.partition("+")
    if driver != "asyncpg" or "?" not in rest:
        return f"{name}{separator}{rest}"
    rest, _, query = rest.rpartition("?")
    options = [
        ("sslmode" if option == "ssl" else option, value)
        for option, value in parse_qsl(query, keep_blank_values=True)
        if option not in _SQLALCHEMY_OPTIONS
    ]
    return f"{name}{separator}{rest}?{urlencode(options)}" if options else f"{name}{separator}{rest}"


def place_of(url: str) -> str:
    """The hosts of a PostgreSQL URL, and their ports, as an error names them; empty where it names none."""
    if not is_url(url):
        return ""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    return hosts or next((value for option, value in parse_qsl(parts.query) if option == "host"), "")
