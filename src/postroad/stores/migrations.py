"""Which version of the schema this code needs, and refusing a database that does not fit.

Migrations are numbered .sql files per database; `dialects` reads them and each store applies them. A database stores
the oldest schema version whose code may still work with it (`min_client`), so old and new code run side by side during
a deploy: code is refused only when the database asks for more than it knows.
"""

from __future__ import annotations

from typing import Any, Final

from postroad.errors import ClientTooOld, NotMigrated

__all__ = ["SCHEMA_VERSION", "check_version", "not_migrated", "wrong_schema"]

SCHEMA_VERSION: Final = 1
"""The schema that this code needs: the number of the newest migration."""


def check_version(found: Any, schema: str) -> None:
    """Refuse a schema that this code can't work with. `found` is the row of the query schema_version."""
    version, min_client = found
    if version is None or version < SCHEMA_VERSION:
        raise not_migrated(schema, version or 0)
    if min_client > SCHEMA_VERSION:
        raise ClientTooOld(
            f"schema {schema!r} is at version {version}; it asks for a client of version {min_client} and this one "
            f"knows {SCHEMA_VERSION}; use the postroad that migrated it, or a newer one"
        )


def not_migrated(schema: str, version: int | None = 0) -> NotMigrated:
    """The error for a database that must be migrated first. `version` is None where it is not known."""
    state = f"is at version {version}" if version else "is not there" if version == 0 else "is not there, or too old,"
    return NotMigrated(
        f"schema {schema!r} {state} and this postroad needs version {SCHEMA_VERSION}; "
        "run: postroad migrate --database URL"
    )


def wrong_schema(schema: str, error: BaseException) -> NotMigrated:
    """The error for a statement of ours that names a table, column or function which the database does not have.

    The table of migrations is the first that a schema gets: where it is missing, so is the schema.
    """
    if "migrations" in str(error):
        return not_migrated(schema)
    return NotMigrated(
        f"schema {schema!r} is not as this postroad creates it at version {SCHEMA_VERSION}: {error}. It was created by "
        "an unreleased postroad, or changed since; use the postroad that created it, or drop the schema, with all "
        "messages in it, and run: postroad migrate --database URL"
    )
