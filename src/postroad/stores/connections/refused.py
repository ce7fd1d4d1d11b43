"""Whether an error is one that our own SQL raised: an id that is taken, or something that belongs to another role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.causes import chain
from postroad.errors import IdTaken, NotOwner

if TYPE_CHECKING:
    from postroad.errors import PostroadError

__all__ = ["as_refused"]


def as_refused(error: BaseException, schema: str) -> PostroadError | None:
    """The error to raise instead, if it is ours."""
    for each in chain(error):
        match getattr(each, "sqlstate", None) or getattr(each, "pgcode", None):
            case "PR409":
                return IdTaken(f"{_words(each)}; roll back, or add this one with an id of its own")
            case "PR403":
                return NotOwner(_words(each))
        if any(f"{schema}_{table}.payload" in str(each) for table in ("outbox", "scheduled")):
            return IdTaken(
                "another message has this id already, with other content; add this one with an id of its own"
            )
    return None


def _words(error: Any) -> str:
    """The message and the hint, without what drivers write around them."""
    said = getattr(error, "diag", None)  # psycopg's
    if said is not None:
        words = (said.message_primary, said.message_hint)
    else:
        words = (getattr(error, "message", None) or str(error), getattr(error, "hint", None))
    return ". ".join(word.rstrip(".") for word in words if word)
