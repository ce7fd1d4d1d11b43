"""Reports that the database is unavailable to a relay: one outage, however many of its lanes and chores notice it.

A database that can't be reached is one outage for the whole relay. Any other error, such as a missing permission, may
concern one part only, so each part has outages of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from postroad import events
from postroad.errors import StoreUnavailable
from postroad.outage_reports import OutageReports
from postroad.relay.clock import Monotonic

if TYPE_CHECKING:
    from postroad.listeners import Listeners
    from postroad.relay.clock import Clock

__all__ = ["NO_ANSWER", "Part", "StoreOutages"]

Part = Literal["lanes", "leases", "liveness session", "scheduled messages", "retention"]

DATABASE: Final = "database"
NO_ANSWER: Final = StoreUnavailable("the database did not answer in time", transient=True)


class StoreOutages:
    """The outages of the database that one relay uses."""

    def __init__(self, sink: str, listeners: Listeners, clock: Clock | None = None) -> None:
        self._sink = sink
        self._listeners = listeners
        self._clock = clock or Monotonic()
        self._reports: dict[str, OutageReports] = {}
        self._failing: dict[Part, str] = {}
        """What is unavailable for each part: the database, or only what this part needs of it."""

    def failed(self, part: Part, error: Exception, retry_in: float) -> None:
        """This part could not use the database, and tries again in so many seconds."""
        what = DATABASE if isinstance(error, StoreUnavailable) and error.transient else part
        self._failing[part] = what
        report = self._reports.setdefault(what, OutageReports()).failed(self._clock.now())
        if report is not None:
            self._listeners.emit(
                events.StoreUnavailable(
                    self._sink,
                    what=what,
                    reason=str(error),
                    retry_ms=retry_in * 1000,
                    waited_s=report.seconds,
                    retries=report.retries,
                )
            )

    def worked(self, part: Part) -> None:
        """This part could use the database. Call it after a failure; before one it does nothing."""
        what = self._failing.pop(part, None)
        if what is None:
            return
        report = self._reports[what].worked(self._clock.now())
        if report is not None:
            self._listeners.emit(
                events.StoreRecovered(self._sink, what=what, waited_s=report.seconds, retries=report.retries)
            )
