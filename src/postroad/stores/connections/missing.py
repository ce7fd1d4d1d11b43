"""Whether an error says that the log's table is not there. Every driver, and every layer around it, has its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["table_is_missing"]

_UNDEFINED_TABLE = "42P01"


def table_is_missing(error: BaseException, schema: str) -> bool:
    """Is it the log of this schema that is missing? A user's own missing table is for the user to see."""
    return any(
        (getattr(each, "sqlstate", None) == _UNDEFINED_TABLE and f"{schema}.outbox" in str(each))
        or f"no such table: {schema}_outbox" in str(each)
        for each in _layers(error)
    )


def _layers(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was made from: SQLAlchemy and Django wrap the driver's."""
    while error is not None:
        yield error
        error = error.__cause__
