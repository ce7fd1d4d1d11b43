"""A consumer's reports are about the time since the last one, and there is none if nothing was done."""

from __future__ import annotations

from postroad import events
from postroad.consumer.model import Summary
from postroad.consumer.reports import Reports
from postroad.events import Event
from postroad.listeners import Listeners


class Collecting:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def test_a_report_is_about_the_time_since_the_last_one() -> None:
    got, summary = Collecting(), Summary(handled=5)
    reports = Reports("stock", summary, Listeners([got]), now=100.0)
    reports.run_once(110.0)
    assert got.events == []
    summary.handled, summary.duplicates, summary.failed, summary.dead = 45, 2, 3, 1
    reports.run_once(120.0)
    expected = events.ConsumerProgress(
        "stock", handled=40, duplicates=2, failed=3, dead=1, per_second=4.0, duration_ms=10_000.0
    )
    assert got.events == [expected]
    assert str(expected) == (
        "consumer stock: 40 handled since the last report (4/s), 2 processed before, 3 attempts failed, 1 dead-lettered"
    )
    reports.run_once(130.0)
    summary.failed += 1
    reports.run_once(140.0)
    (_, last) = got.events
    assert isinstance(last, events.ConsumerProgress)
    assert (last.failed, last.handled) == (1, 0)
