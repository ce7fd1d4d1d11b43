"""A database of Django's `DATABASES` as a URL for the relay. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from postroad.stores.scripts import dialect_named

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["database_url"]

# What PostgreSQL's own clients know; the other OPTIONS are Django's or psycopg's.
_OPTIONS: Final = frozenset(
    {"application_name", "options", "passfile", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword",
     "sslrootcert", "target_session_attrs"}
)  # fmt: skip


def database_url(vendor: str, settings: Mapping[str, Any]) -> str:
    """The URL of a database with these settings. Raises InvalidSetting for a kind that postroad does not know."""
    if dialect_named(vendor) == "sqlite":
        name = str(settings["NAME"])
        return f"sqlite:///{name if name in {'', ':memory:'} else quote(str(Path(name).absolute()))}"
    user, password, host, port = (str(settings.get(name) or "") for name in ("USER", "PASSWORD", "HOST", "PORT"))
    options = {name: value for name, value in (settings.get("OPTIONS") or {}).items() if name in _OPTIONS}
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = ""
    if re.fullmatch(r"[\w.-]+", host):
        place = f"{host}:{port}" if port else host
    else:  # a folder of sockets, several hosts, an IPv6 address, or none at all
        options |= {name: value for name, value in (("host", host), ("port", port)) if value}
    query = f"?{urlencode(options)}" if options else ""
    return (
        f"postgresql://{f'{login}@' if login else ''}{place}/{quote(str(settings.get('NAME') or ''), safe='')}{query}"
    )
