"""The files for TLS that a PostgreSQL URL, or the environment, names.

asyncpg's error for a missing one is the same as for a server's socket that is not there yet, and does not name it: so
they are checked before it connects.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from postroad.errors import InvalidSetting

__all__ = ["check_tls_files"]

_VERIFYING: Final = frozenset({"require", "verify-ca", "verify-full"})


def check_tls_files(url: str | None, setting: str = "database") -> None:
    """Raise InvalidSetting where a file that asyncpg would load can't be read."""
    if url is None:
        return
    options = dict(parse_qsl(urlsplit(url).query))
    mode = (options.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer").replace("_", "-")
    if mode == "disable":
        return
    needed = ["sslrootcert", "sslcrl"] if mode in _VERIFYING else []
    if options.get("sslcert") or os.environ.get("PGSSLCERT"):
        needed += ["sslcert", "sslkey"]
    for option in needed:
        variable = f"PG{option.upper()}"
        place = f"{setting} is a URL whose {option}" if option in options else variable
        if file := options.get(option, os.environ.get(variable)):
            _check(file, place, (setting,) if option in options else ())


def _check(file: str, place: str, settings: tuple[str, ...]) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no name of a file"
        raise InvalidSetting(
            f"{place} is {file!r:.200}, which can't be read ({reason}); it must be a PEM file", settings=settings
        ) from None
