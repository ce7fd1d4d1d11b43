"""A service of PostgreSQL's connection service file, as `?service=shop` names it in a URL.

Where the file has no such service, asyncpg connects to its default server without an error. So this is checked before
it connects.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from postroad.errors import InvalidSetting

__all__ = ["check_service"]


def check_service(url: str | None, setting: str = "database") -> None:
    """Raise InvalidSetting where the URL names a service that is not in the file that asyncpg reads."""
    service = dict(parse_qsl(urlsplit(url or "").query)).get("service")
    if service is None:
        return
    file = Path(os.environ.get("PGSERVICEFILE") or Path.home() / ".pg_service.conf")
    services = configparser.ConfigParser()
    try:
        services.read(file)
        found = dict(services[service]) if service in services.sections() else None
    except configparser.Error:
        # Its text is not shown, because it quotes lines that may hold a password.
        raise InvalidSetting(
            f"{setting} names the service {service!r}; asyncpg can't read {file}: each line must be "
            "name=value, and a percent sign in a value must be doubled",
            settings=(setting,),
        ) from None
    if found is None:
        raise InvalidSetting(
            f"{setting} names the service {service!r}; {file} must be a service file with a section [{service}] "
            "(PGSERVICEFILE names another file)",
            settings=(setting,),
        )
