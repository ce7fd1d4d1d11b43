"""What of a status report needs attention, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from postroad.admin import (
    BlockedRoutes,
    ConsumerReport,
    Count,
    HeldKey,
    LaneReport,
    Notice,
    NoticeKind,
    Pause,
    SinkReport,
    StatusReport,
    notices,
)
from postroad.commands import command_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = NOW - timedelta(minutes=1)
LANE = LaneReport(
    lane=0, position=10, pending=Count(0), lag_seconds=0.0, oldest_unsent_seconds=0.0, failing=0, held=0, dead=0,
    unroutable=0, paused=False, owner=None, published_last_hour=0, refused_last_hour=0,
)  # fmt: skip
SINK = SinkReport(
    sink="default", destination="memory", served_at=NOW, relays=1, lanes=[LANE], published_per_minute=[0] * 60,
    held_keys=[],
)  # fmt: skip
CONSUMER = ConsumerReport(
    consumer="stock", alive=1, died=0, last_heartbeat_at=NOW, dead_letters=Count(0), dead_letters_since=None
)


def report(*sinks: SinkReport, **fields: Any) -> StatusReport:
    values: dict[str, Any] = {"at": NOW, "scheduled": Count(0), "next_scheduled_at": None}
    return StatusReport(**values | {"sinks": sinks} | fields)


def sink(lane: dict[str, Any] | None = None, **fields: Any) -> SinkReport:
    return replace(SINK, lanes=[replace(LANE, **lane or {})], **fields)


def the_notice(found: StatusReport) -> Notice:
    (notice,) = notices(found)
    return notice


def command(notice: Notice) -> str | None:
    return None if notice.remedy is None else command_of(notice.remedy)


def test_all_is_well() -> None:
    assert notices(report(SINK, consumers=[CONSUMER])) == []
    assert notices(report()) == []


def test_paused() -> None:
    notice = the_notice(report(sink({"lag_seconds": 999.0}, pause=Pause(MINUTE, "anna", "the broker moves"))))
    assert (notice.kind, notice.problem, notice.since) == (NoticeKind.PAUSED, True, MINUTE)
    assert notice.text == "sink 'default' is paused, by anna since 2026-03-01 11:59:00Z (1m ago): the broker moves"
    assert command(notice) == "postroad resume default"


def test_no_relay() -> None:
    notice = the_notice(report(sink({"pending": Count(2), "held": 1}, relays=0, served_at=MINUTE)))
    assert (notice.kind, notice.problem) == (NoticeKind.NO_RELAY, True)
    assert notice.text == "sink 'default': no relay has served it since 2026-03-01 11:59:00Z (1m ago); 3 messages wait"
    assert command(notice) == "postroad relay --sink default"


def test_no_relay_and_nothing_to_do() -> None:
    notice = the_notice(report(sink(relays=0, served_at=MINUTE)))
    assert (notice.kind, notice.problem) == (NoticeKind.IDLE, False)
    assert notice.text == "sink 'default': no relay is running, and no message waits"


def test_copies_of_dead_messages_that_wait() -> None:
    notice = the_notice(report(sink(copies=2, copies_since=MINUTE)))
    assert (notice.kind, notice.problem, notice.since) == (NoticeKind.COPIES, True, MINUTE)
    assert notice.text == (
        "sink 'default': 2 copies of dead messages are to be published, the first since 2026-03-01 11:59:00Z (1m ago)"
    )
    assert command(notice) is None
    young = the_notice(report(sink(copies=1, copies_since=NOW)))
    assert (young.problem, young.text.split(",")[0]) == (
        False, "sink 'default': 1 copy of a dead message is to be published",
    )  # fmt: skip
    unserved = notices(report(sink(copies=1, copies_since=MINUTE, relays=0)))[0]
    assert command(unserved) == "postroad relay --sink default"


def test_a_forgotten_sink() -> None:
    notice = the_notice(report(sink(relays=0, served_at=NOW - timedelta(days=2))))
    assert (notice.kind, notice.problem) == (NoticeKind.NO_RELAY, True)
    assert notice.text.endswith("(2d ago); no message waits, and retention keeps all messages")
    assert notice.advice.startswith("remove it, if it is not needed")


def test_failing_without_a_relay_is_a_problem() -> None:
    failing = {"failing": 3}
    found = notices(report(sink(failing, relays=0, failing_since=MINUTE)))
    assert [(each.kind, each.problem) for each in found] == [(NoticeKind.NO_RELAY, True), (NoticeKind.FAILING, True)]
    notice = the_notice(report(sink(failing, failing_since=MINUTE)))
    assert not notice.problem, "a relay retries them"
    assert notice.text == ("sink 'default': 3 messages refused, to be retried, since 2026-03-01 11:59:00Z (1m ago)")
    assert command(notice) == "postroad messages --state retrying"


def test_stalled() -> None:
    waits = {"pending": Count(7), "lag_seconds": 180.0}
    notice = the_notice(report(sink(waits)))
    assert (notice.kind, notice.problem) == (NoticeKind.STALLED, True)
    assert "7 messages pending for 3m and none published, although a relay serves it" in notice.text
    assert notices(report(sink(waits, published_per_minute=[0] * 59 + [1]))) == [], "it is only slow"


def test_a_missing_binding() -> None:
    notice = the_notice(report(sink({"held": 2}, blocked=BlockedRoutes(2, "order.created", MINUTE))))
    assert (notice.kind, notice.problem, notice.since) == (NoticeKind.ROUTE_BLOCKED, True, MINUTE)
    assert "2 messages wait for a blocked route, such as 'order.created', since " in notice.text
    assert notice.advice.startswith("bind a queue")
    notice = the_notice(report(sink({"held": 2}, blocked=BlockedRoutes(2, "https://partner.example/", MINUTE))))
    assert notice.advice == "find out why this endpoint does not answer with 2xx; see"
    assert command(notice) == "postroad messages --state held"


def test_dead_and_dropped_and_held_keys() -> None:
    held = HeldKey("default", "k\x1b", MINUTE, "ben", None)
    found = notices(report(sink({"dead": 1, "unroutable": 2}, dead_since=MINUTE, held_keys=[held]), SINK))
    assert [(each.kind, each.problem) for each in found] == [
        (NoticeKind.DEAD, True),
        (NoticeKind.KEY_HELD, True),
        (NoticeKind.UNROUTABLE, False),
    ]
    assert found[0].text == "sink 'default': 1 dead message, since 2026-03-01 11:59:00Z (1m ago)"
    assert command(found[0]) == "postroad dead list --sink default", "there are two sinks"
    assert found[1].text.startswith("sink 'default': key 'k\\\\x1b' is held by ben since ")
    assert found[2].text.endswith("2 messages dropped because no consumer had subscribed")


def test_scheduled() -> None:
    later = report(SINK, scheduled=Count(1), next_scheduled_at=NOW + timedelta(hours=1))
    notice = the_notice(later)
    assert (notice.kind, notice.problem) == (NoticeKind.SCHEDULED, False)
    assert notice.text == "1 scheduled message, the first due at 2026-03-01 13:00:00Z (in 1h)"
    notice = the_notice(replace(later, scheduled=Count(5000, exact=False), next_scheduled_at=MINUTE))
    assert (notice.kind, notice.problem) == (NoticeKind.OVERDUE, True)
    assert notice.text.startswith("about 5,000 scheduled messages")


def test_consumers() -> None:
    died = replace(CONSUMER, alive=0, died=2, last_heartbeat_at=MINUTE)
    notice = the_notice(report(consumers=[died]))
    assert (notice.kind, notice.problem, notice.consumer) == (NoticeKind.CONSUMER_DEAD, True, "stock")
    assert notice.text == ("consumer 'stock': none is alive, the last heartbeat was at 2026-03-01 11:59:00Z (1m ago)")
    assert notices(report(consumers=[replace(died, alive=1)])) == [], "another has taken over"
    letters = replace(CONSUMER, dead_letters=Count(10_000, exact=False), dead_letters_since=MINUTE)
    notice = the_notice(report(consumers=[letters]))
    assert (notice.kind, notice.problem) == (NoticeKind.DEAD_LETTERS, True)
    assert "at least 10,000 dead letters within a day, the first at " in notice.text
