"""What is unavailable to a consumer: how long it waits for that, with `--until-empty` up to a limit; and when that is
reported, however many messages meet the same outage. No I/O.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.consumer.errors import InboxUnavailable, MessageBusy, PayloadUnavailable
from postroad.errors import BrokerUnavailable, StoreUnavailable
from postroad.outage_reports import OutageReports
from postroad.stores.connections.errors import is_lock_timeout, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.errors import PostroadError
    from postroad.listeners import Listeners
    from postroad.outage_reports import OutageReport

__all__ = ["BACKOFF", "Dependency", "Outages", "is_outage"]

BACKOFF: Final = ExponentialBackoff(longest=5.0)
"""The pauses between two tries while something is unavailable."""

Dependency = Literal["database", "broker", "dead letters"]

_ERRORS: Final[dict[Dependency, Callable[[str], PostroadError]]] = {
    "database": StoreUnavailable,
    "broker": BrokerUnavailable,
    "dead letters": BrokerUnavailable,
}


class Outages:
    """What is unavailable, and since when. After `limit` seconds `give_up` is called, once; `given_up` is the error."""

    def __init__(
        self,
        limit: float | None,
        give_up: Callable[[], None],
        *,
        consumer: str,
        listeners: Listeners,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._listeners = listeners
        self._limit = float("inf") if limit is None else limit
        self._give_up = give_up
        self._now = now
        self._since: dict[Dependency, float] = {}
        self.known: dict[Dependency, OutageReports] = {}
        """What has been unavailable in this run, and what was reported of it."""
        self.given_up: PostroadError | None = None

    def begin(self, what: Dependency, reason: str, pause: float) -> float:
        """Note that it is unavailable. Returns seconds until the next try: `pause`, or less if the limit is near."""
        now = self._now()
        left = self._since.setdefault(what, now) + self._limit - now
        if left <= 0 and self.given_up is None:
            self.given_up = _ERRORS[what](
                f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the {what}: {reason}"
            )
            self._give_up()
        wait = max(0.0, min(pause, left))
        report = self.known.setdefault(what, OutageReports()).failed(now)
        if report is not None and self.given_up is None:
            self._report(what, reason, wait, report)
        return wait

    def end(self, what: Dependency, *, began: float | None = None) -> None:
        """Note that it is available, as an attempt shows that began then."""
        if self._since.pop(what, None) is None and what not in self.known:
            return
        report = self.known[what].worked(self._now(), began=began)
        if report is not None and what != "broker":  # of which `Receiving` says so
            self._listeners.emit(
                events.ConsumerRecovered(self._consumer, what=what, waited_s=report.seconds, retries=report.retries)
            )

    def _report(self, what: Dependency, reason: str, wait: float, report: OutageReport) -> None:
        retry_ms, waited, retries = wait * 1000, report.seconds, report.retries
        if what == "broker":
            event: events.Event = events.SubscriberUnavailable(
                self._consumer, reason=reason, retry_ms=retry_ms, waited_s=waited, retries=retries
            )
        else:
            event = events.ConsumerWaiting(
                self._consumer, what=what, reason=reason, retry_ms=retry_ms, waited_s=waited, retries=retries
            )
        self._listeners.emit(event)


def is_outage(error: InboxUnavailable | MessageBusy) -> bool:
    """Whether the database is unavailable to all messages, not to this one alone."""
    if not isinstance(error, MessageBusy):
        return True
    if isinstance(error, PayloadUnavailable) or is_lock_timeout(error):
        return False
    return is_transient(error)  # some drivers connect only when they are first used
