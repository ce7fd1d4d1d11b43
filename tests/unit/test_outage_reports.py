"""An outage is reported at once, then less and less often, and when it is over."""

from __future__ import annotations

import itertools

from postroad.outage_reports import FIRST_REPORT, LONGEST_REPORT, OutageReport, OutageReports


def test_the_first_failure_is_reported_and_the_next_ones_are_counted() -> None:
    reports = OutageReports()
    assert reports.failed(100.0) == OutageReport(0.0, 0)
    assert [reports.failed(100.0 + n) for n in range(1, 10)] == [None] * 9
    assert reports.failed(110.0) == OutageReport(10.0, 10)


def test_the_pauses_between_reports_grow_up_to_a_limit() -> None:
    reports = OutageReports()
    reported = [second for second in range(5000) if reports.failed(float(second))]
    pauses = [later - earlier for earlier, later in itertools.pairwise(reported)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600, 600, 600]
    assert (FIRST_REPORT, LONGEST_REPORT) == (10, 600)


def test_the_end_is_reported_once() -> None:
    reports = OutageReports()
    assert reports.worked(99.0) is None
    reports.failed(100.0)
    reports.failed(103.0)
    assert reports.worked(104.0) == OutageReport(4.0, 1)
    assert reports.worked(105.0) is None


def test_what_began_before_the_outage_says_nothing_about_it() -> None:
    reports = OutageReports()
    reports.failed(100.0)
    assert reports.worked(101.0, began=99.0) is None
    assert reports.worked(102.0, began=100.0) == OutageReport(2.0, 0)


def test_what_fails_every_other_time_is_reported_every_ten_seconds() -> None:
    reports, said = OutageReports(), []
    for step in range(300):
        now = step / 10
        report = reports.failed(now) if step % 2 == 0 else reports.worked(now)
        if report is not None:
            said.append((now, step % 2 == 0))
    assert said == [(0.0, True), (0.1, False), (10.0, True), (10.1, False), (20.0, True), (20.1, False)]


def test_after_a_long_outage_another_one_is_reported_soon() -> None:
    reports = OutageReports()
    for second in range(2000):
        reports.failed(float(second))
    assert reports.worked(2000.0) is not None
    assert [second for second in range(2001, 2100) if reports.failed(float(second))] == [2011, 2021, 2041, 2081]


def test_a_later_outage_is_another_one() -> None:
    reports = OutageReports()
    reports.failed(100.0)
    reports.worked(101.0)
    assert reports.failed(111.0) == OutageReport(0.0, 0)


def test_news_are_reported_in_any_case() -> None:
    reports = OutageReports()
    reports.failed(100.0)
    assert reports.failed(101.0, is_news=True) == OutageReport(1.0, 1)
    assert reports.worked(102.0) is not None
    assert reports.failed(103.0, is_news=True) is not None
    assert reports.worked(104.0) is not None
