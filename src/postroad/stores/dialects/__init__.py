"""The databases, one dialect object each. Nothing else compares the names of databases.

A dialect holds the SQL, the value conversions, the migrations and the error tests of its database. It also makes the
objects that need a driver, and imports the driver only then.
"""

from __future__ import annotations

from typing import Final

from postroad.errors import InvalidSetting
from postroad.kinds import is_url
from postroad.stores.dialects.base import Dialect, SQLDialect
from postroad.stores.dialects.postgresql import POSTGRESQL
from postroad.stores.dialects.sqlite import SQLITE

__all__ = ["DIALECTS", "POSTGRESQL", "SQLITE", "Dialect", "SQLDialect", "dialect_named", "dialect_of"]

DIALECTS: Final[dict[str, SQLDialect]] = {dialect.name: dialect for dialect in (POSTGRESQL, SQLITE)}

_BY_SCHEME: Final = {scheme: dialect for dialect in DIALECTS.values() for scheme in dialect.schemes}
_EXPECTED: Final = (
    "it must be postgresql://user@host/name or sqlite:///path/to/file, or such a URL of SQLAlchemy, "
    "postgresql+asyncpg://… or sqlite+aiosqlite:///…"
)


def dialect_named(name: str) -> SQLDialect:
    """The dialect that SQLAlchemy or Django calls by that name. Raises InvalidSetting."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise InvalidSetting(
            f"the database is of kind {name!r}; postroad's tables can be in {' or '.join(DIALECTS)}"
        ) from None


def dialect_of(url: str) -> SQLDialect:
    """The dialect of the database that a URL names. Raises InvalidSetting, which does not show a secret."""
    if not is_url(url):
        raise InvalidSetting(
            f"database is not a valid URL (it is not shown, for it may hold a password); {_EXPECTED}, "
            "with special characters of user and password percent-encoded",
            settings=("database",),
        )
    scheme = url.partition(":")[0]
    name, _, driver = scheme.partition("+")
    dialect = _BY_SCHEME.get(name)
    if dialect is None or (scheme != name and driver not in dialect.sqlalchemy_drivers):
        raise InvalidSetting(f"database is a URL that begins with {scheme!r}; {_EXPECTED}", settings=("database",))
    if ":***@" in url:
        raise InvalidSetting(
            "database is a URL whose password is '***', as str(engine.url) shows it; "
            "pass engine.url.render_as_string(hide_password=False)",
            settings=("database",),
        )
    return dialect
