"""PostgreSQL types that SQLAlchemy does not know by itself, and that it must know in order to read our tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.types import UserDefinedType

__all__ = ["XID8", "PGSnapshot"]


class XID8(UserDefinedType[Any]):
    """A transaction id that never wraps around."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """How it is called in SQL."""
        return "XID8"


class PGSnapshot(UserDefinedType[Any]):
    """Which transactions were in progress."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """How it is called in SQL."""
        return "PG_SNAPSHOT"


# What reflection goes by. Without it Alembic warns of types that it did not recognize, and can't compare them.
PGDialect.ischema_names.setdefault("xid8", XID8)
PGDialect.ischema_names.setdefault("pg_snapshot", PGSnapshot)
