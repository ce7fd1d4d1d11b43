"""Which version of the schema this code needs, and refusing a database that does not fit.

Migrations are numbered .sql files per database; `dialects` reads them and each store applies them. A database stores
the oldest schema version whose code may still work with it (`min_client`), so old and new code run side by side during
a deploy: code is refused only when the database asks for more than it knows.
"""

from __future__ import annotations

from typing import Any, Final

from postroad.errors import ClientTooOld, NotMigrated

__all__ = ["SCHEMA_VERSION", "check_version", "not_migrated"]

SCHEMA_VERSION: Final = 1
"""The schema that this code needs: the number of the newest migration."""


def check_version(found: Any, schema: str) -> None:
    """Refuse a schema that this code can't work with. `found` is the row of the query schema_version."""
    version, min_client = found
    if version is None or version < SCHEMA_VERSION:
        raise not_migrated(schema, version or 0)
    if min_client > SCHEMA_VERSION:
        raise ClientTooOld(
            f"schema {schema!r} asks for a client of version {min_client} and this one knows {SCHEMA_VERSION}; "
            "upgrade postroad"
        )


def not_migrated(schema: str, version: int | None = 0) -> NotMigrated:
    """The error for a database that must be migrated first. `version` is None where it is not known."""
    state = f"is at version {version}" if version else "is not there" if version == 0 else "is not there, or too old,"
    return NotMigrated(
        f"schema {schema!r} {state} and this postroad needs version {SCHEMA_VERSION}; "
        "run: postroad migrate --database URL"
    )
