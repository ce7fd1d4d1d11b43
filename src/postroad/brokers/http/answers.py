"""What the answers of an endpoint mean. Pure. docs/webhooks.md has the same table for people."""

from __future__ import annotations

import re
from email.utils import mktime_tz, parsedate_tz
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["SHOWN_TEXT", "Answer", "Verdict", "seconds_to_wait", "verdict_on"]

LONGEST_WAIT: Final = 24 * 3600.0
"""Seconds. An endpoint that asks for more is asked again after this."""
SHOWN_TEXT: Final = 200
"""Characters of an answer's body that an error quotes."""


class Verdict(Enum):
    """Whose fault an answer is, and what follows."""

    CONFIRMED = "it has taken the message"
    REFUSED = "it refuses this message, which counts an attempt"
    TOO_LARGE = "it will never take this message"
    WAIT = "it asks to be left alone for a while"
    FAILING = "it does not work, or not for this message: what it answers to others tells"
    GONE = "it wants nothing any more"


# They say something about the endpoint, or may do so: who may send to it, where it is, whether it keeps up.
_FAILING_4XX: Final = frozenset({401, 403, 404, 405, 407, 408, 425})


class Answer(NamedTuple):
    """An answer, as far as it matters."""

    status: int
    retry_after: str | None = None
    location: str | None = None
    text: str = ""
    """The beginning of its body."""

    @property
    def reason(self) -> str:
        """The answer in an error."""
        what = f"it answered {self.status}"
        if 300 <= self.status < 400:
            to = f" to {self.location:.{SHOWN_TEXT}}" if self.location else ""
            return f"{what}, a redirect{to}, which is not followed"
        if self.status == 401:
            what = f"{what} (does it have the same secret, and the same time?)"
        text = " ".join(self.text[:SHOWN_TEXT].split())
        return f"{what}: {text}" if text else what


def verdict_on(answer: Answer) -> Verdict:
    """What an answer means."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.CONFIRMED
    if status == 410:
        return Verdict.GONE
    if status == 413:
        return Verdict.TOO_LARGE
    if status == 429:
        return Verdict.WAIT
    if 400 <= status < 500 and status not in _FAILING_4XX:
        return Verdict.REFUSED
    return Verdict.FAILING if answer.retry_after is None else Verdict.WAIT


def seconds_to_wait(retry_after: str | None, now: float) -> float:
    """The seconds that `Retry-After` asks for, a number or a date; 0 if it is neither, or past."""
    text = (retry_after or "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text):
        return min(float(text), LONGEST_WAIT)
    parsed = parsedate_tz(text) if len(text) < 100 else None
    if parsed is None:
        return 0.0
    try:
        return min(max(mktime_tz(parsed) - now, 0.0), LONGEST_WAIT)
    except (ValueError, OverflowError):
        return 0.0
