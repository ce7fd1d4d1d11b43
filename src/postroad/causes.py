"""Walks the chain of an exception: SQLAlchemy, Django and rollbacks wrap the error that the driver raised. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["chain"]


def chain(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on; with `contexts` also errors that were being handled then.

    A rollback on a lost connection fails too, so the loss is only the context of that error. The walk ends where it
    would come to an error a second time.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        context = error.__context__ if contexts and not error.__suppress_context__ else None
        error = error.__cause__ or context
