"""postroad beside SQLAlchemy: events that entities record."""

from __future__ import annotations

from postroad.errors import MissingExtra

try:
    from postroad.sqlalchemy.domain_events import record_events
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sqlalchemy":
        raise
    raise MissingExtra("postroad.sqlalchemy", "sqlalchemy") from error

__all__ = ["record_events"]
