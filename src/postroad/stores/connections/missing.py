"""Whether an error says that our tables are not there. Every driver, and every layer around it, has its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.causes import chain
from postroad.stores.migrations import not_migrated

if TYPE_CHECKING:
    from postroad.errors import NotMigrated

__all__ = ["as_not_migrated"]

_TABLE, _FUNCTION, _SCHEMA = "42P01", "42883", "3F000"  # which of them is undefined; the words may be in any language
_LATER = ("scheduled", "inbox")  # tables that a schema of an older version has not


def as_not_migrated(error: BaseException, schema: str) -> NotMigrated | None:
    """The error to raise instead, if something of this schema is missing. A user's own table is for the user to see."""
    for each in chain(error):
        state, words = getattr(each, "sqlstate", None), str(each)
        if (state == _TABLE and f"{schema}.outbox" in words) or f"no such table: {schema}_outbox" in words:
            return not_migrated(schema)
        if (
            any(state == _TABLE and f"{schema}.{table}" in words for table in _LATER)
            or any(f"no such table: {schema}_{table}" in words for table in _LATER)
            or (state == _FUNCTION and f"{schema}.cancel" in words)
            or (state == _SCHEMA and schema in words)
        ):
            return not_migrated(schema, None)
    return None
