"""How an answer of the explainer is made: with its evidence, its advice and its remedy. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from postroad.safe_text import without_passwords
from postroad.stores.admin.answers import Answer, Remedy
from postroad.wording import one_line, without_secrets

if TYPE_CHECKING:
    from postroad.stores.admin.answers import Action, LaneFacts, Reason

__all__ = ["LONGEST", "advise", "answer_of", "quoted", "why"]

LONGEST: Final = 200
"""So much of a key, an error or a reason is shown; the evidence has all of it."""


def answer_of(lane: LaneFacts, reason: Reason, text: str, /, **evidence: Any) -> Answer:
    """An answer about a message in this lane, with the evidence that is known."""
    known = {name: value for name, value in evidence.items() if value is not None}
    known |= {name: without_passwords(known[name]) for name in ("error", "why") if name in known}
    return Answer(sink=lane.sink, reason=reason, text=text, evidence={"lane": lane.lane, **known})


def advise(answer: Answer, advice: str, action: Action | None = None, **about: Any) -> Answer:
    """The answer with what to do: in words, and as an action."""
    return replace(answer, advice=advice, remedy=None if action is None else Remedy(action=action, **about))


def quoted(text: str) -> str:
    """A name in quotes, safe to print, and not too long."""
    return repr(one_line(text, LONGEST))


def why(text: str | None) -> str:
    """The end of a sentence: a colon and the error or the reason, if there is one."""
    return f": {without_secrets(text, LONGEST)}" if text else ""
