"""A database of Django's `DATABASES` as a URL for the relay. It opens no connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from postroad.errors import InvalidSetting
from postroad.stores.dialects import SQLITE, dialect_named

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["database_url"]

# OPTIONS that the relay's driver knows by the same names.
_PASSED_ON: Final = frozenset(
    {"application_name", "gsslib", "krbsrvname", "options", "passfile", "service", "ssl_max_protocol_version",
     "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
     "sslrootcert", "target_session_attrs"}
)  # fmt: skip
# OPTIONS about how Django uses a connection, and limits of time, of which the relay has its own.
_OF_DJANGO: Final = frozenset(
    {"client_encoding", "connect_timeout", "connection_factory", "context", "cursor_factory",
     "fallback_application_name", "isolation_level", "keepalives", "keepalives_count", "keepalives_idle",
     "keepalives_interval", "pool", "prepare_threshold", "row_factory", "server_side_binding", "tcp_user_timeout"}
)  # fmt: skip
# As values of `gssencmode` or `channel_binding` they ask for nothing that the relay's driver lacks.
_ASKS_FOR_NOTHING: Final = ("allow", "disable", "prefer")


def database_url(vendor: str, settings: Mapping[str, Any]) -> str:
    """The URL of a database with these settings. Raises InvalidSetting for what the relay can't use."""
    return _sqlite_url(settings) if dialect_named(vendor) is SQLITE else _postgresql_url(settings)


def _sqlite_url(settings: Mapping[str, Any]) -> str:
    name = str(settings["NAME"])
    if name in {"", ":memory:"} or name.startswith("file:"):
        raise InvalidSetting(
            f"NAME is {name!r}; it must be the path of a file, because the relay is a process of its own, which can't "
            "see a database in memory"
        )
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def _postgresql_url(settings: Mapping[str, Any]) -> str:
    user, password, host, port = (str(settings.get(name) or "") for name in ("USER", "PASSWORD", "HOST", "PORT"))
    name = "postgres" if settings["NAME"] is None else str(settings["NAME"])  # as Django does
    # Hosts and ports are options, as they can be a folder of sockets, several hosts, or an IPv6 address.
    hosts = ",".join(f"[{each}]" if ":" in each else each for each in host.split(","))
    options = _options(settings.get("OPTIONS") or {}) | {"host": hosts, "port": port}
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = urlencode({option: value for option, value in options.items() if value})
    return "".join(
        (
            "postgresql://",
            f"{login}@" if login else "",
            # A service names the database where NAME is empty; a slash alone would be a database that is called "".
            f"/{quote(name, safe='')}" if name else "",
            f"?{query}" if query else "",
        )
    )


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if name in _PASSED_ON}
    for name, value in given.items():
        if name == "assume_role":
            options["role"] = value
        elif name not in _PASSED_ON | _OF_DJANGO and value not in _ASKS_FOR_NOTHING:
            raise InvalidSetting(
                f"OPTIONS has {name!r}, which the relay's driver does not know; leave it out, or run the command of "
                "`postroad` itself, with --database or POSTROAD_DATABASE"
            )
    return options
