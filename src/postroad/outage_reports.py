"""When an outage is reported: at once, then less and less often, and once when it is over. Pure.

Many tasks may find the same thing unavailable, each of them again and again; all of them are one outage. What fails
again within ten seconds after it worked is the same outage, too: something that fails every other time would otherwise
be reported every time. It is reported again after ten seconds at the latest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FIRST_REPORT", "LONGEST_REPORT", "OutageReport", "OutageReports"]

FIRST_REPORT: Final = 10.0
"""Seconds from the first report to the second; from there on each pause is twice as long, up to the longest."""
LONGEST_REPORT: Final = 600.0


class OutageReport(NamedTuple):
    """What is to be reported."""

    seconds: float
    """Since the outage began."""
    retries: int
    """How often it was tried since, in vain."""


class OutageReports:
    """The outages of one thing, such as a database, as one component sees it."""

    def __init__(self) -> None:
        self._is_open = False
        self._began = self._opened = 0.0
        self._ended = float("-inf")
        self._retries = 0
        self._due = float("-inf")
        self._interval = FIRST_REPORT
        self._reported = False
        """An outage was reported, and not yet that it is over."""

    def failed(self, now: float, *, is_news: bool = False) -> OutageReport | None:
        """It is unavailable. Returns what to report, if a report is due, or if it `is_news` for another reason."""
        self._retries += 1
        if not self._is_open:
            self._is_open, self._opened, self._interval = True, now, FIRST_REPORT
            self._due = min(self._due, now + FIRST_REPORT)
            if now - self._ended >= FIRST_REPORT:
                self._began, self._retries, self._due = now, 0, now
        if now < self._due and not is_news:
            return None
        self._due, self._interval = now + self._interval, min(2 * self._interval, LONGEST_REPORT)
        self._reported = True
        return OutageReport(now - self._began, self._retries)

    def worked(self, now: float, *, began: float | None = None) -> OutageReport | None:
        """It is available. Returns what to report, if an outage was reported. `began` is when the attempt began that
        has succeeded: one that began before the outage says nothing about it.
        """
        if not self._is_open or (began is not None and began < self._opened):
            return None
        self._is_open, self._ended = False, now
        if not self._reported:
            return None
        self._reported = False
        return OutageReport(now - self._began, self._retries)
