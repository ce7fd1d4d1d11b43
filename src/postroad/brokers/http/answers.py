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
    UNAVAILABLE = "it, or a part of it, is not available: what it answers to others may tell"
    GONE = "it wants nothing any more"


_ONLY: Final = {410: Verdict.GONE, 413: Verdict.TOO_LARGE, 429: Verdict.WAIT}
# They say something about the endpoint, or may do so: where it is.
_FAILING_4XX: Final = frozenset({404, 405})
# The words of proxies and load balancers, of which a part may be down, and of who may send. Cloudflare has 520 to 527.
_UNAVAILABLE: Final = frozenset({401, 403, 407, 408, 425, 502, 503, 504, *range(520, 528)})


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
            to = f" to {_shown(self.location)}" if self.location else ""
            return f"{what}, a redirect{to}, which is not followed"
        if self.status == 401:
            what = f"{what} (does it have the same secret, and the same time?)"
        text = " ".join(self.text[:SHOWN_TEXT].split())
        return f"{what}: {text}" if text else what


def _shown(location: str) -> str:
    """The target of a redirect without what may be secret: it may repeat the query of the URL, or its user."""
    place = re.split(r"[?#]", location, maxsplit=1)[0]
    return re.sub(r"//[^/]*@", "//", place)[:SHOWN_TEXT]


def verdict_on(answer: Answer) -> Verdict:
    """What an answer means."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.CONFIRMED
    if (only := _ONLY.get(status)) is not None:
        return only
    if 400 <= status < 500 and status not in _FAILING_4XX | _UNAVAILABLE:
        return Verdict.REFUSED
    if answer.retry_after is not None:
        return Verdict.WAIT
    return Verdict.UNAVAILABLE if status in _UNAVAILABLE else Verdict.FAILING


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
