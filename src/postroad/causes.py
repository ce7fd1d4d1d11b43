"""The chain of an exception: SQLAlchemy, Django and contexts that roll back wrap what the driver raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["chain"]


def chain(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on; with `contexts` also what was being handled when it was raised.

    A roll-back on a lost connection fails as well, so the loss is only the context of that error. Ends where an error
    is its own cause.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        context = error.__context__ if contexts and not error.__suppress_context__ else None
        error = error.__cause__ or context
