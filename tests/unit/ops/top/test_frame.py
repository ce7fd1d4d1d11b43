"""What `postroad top` draws, at any size of the terminal and with any text in the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from rich.cells import cell_len

from postroad.admin import AuditEntry, Count, LaneReport, RelayStatus, SinkReport, StatusReport
from postroad.ops.top.frame import Look, View, frame
from postroad.stores.admin.snapshot import Snapshot, added_per_second, published_per_second

AT = datetime(2026, 11, 17, 12, 0, 30, tzinfo=UTC)
OWNER = UUID(int=7)
HOSTILE = "\x1b[2J\x9b31m\u202edrowssap\u2066[bold red]{}%s'\"\\\U0001f600\u4e2d\u6587\r\n\tx"


def lane(number: int, **changed: Any) -> LaneReport:
    values: dict[str, Any] = {
        "lane": number, "position": 1_000, "pending": Count(12), "lag_seconds": 3.0, "oldest_unsent_seconds": 4.0,
        "failing": 0, "held": 0, "dead": 0, "unroutable": 0, "paused": False, "owner": OWNER, "lease_seconds": 12.3,
        "gap": 40, "published_last_hour": 100, "refused_last_hour": 2,
    }  # fmt: skip
    return LaneReport(**values | changed)


def sink(
    name: str = "default", lanes: int = 2, minutes: tuple[int, ...] = (0,) * 57 + (120, 60, 7), **changed: Any
) -> SinkReport:
    return SinkReport(
        sink=name,
        destination="amqp://host",
        served_at=AT,
        relays=1,
        lanes=[lane(number, **changed) for number in range(lanes)],
        published_per_minute=minutes,
        held_keys=[],
    )


def snapshot(*sinks: SinkReport, at: datetime = AT, text: str = "host", audit: int = 3) -> Snapshot:
    relay = RelayStatus(OWNER, "default", text, 4711, "1", [0, 1], AT, 0.4, "active", None)
    entry = AuditEntry(number=1, at=AT, who=text, role=None, command="pause", arguments={}, reason=text, changed=2)
    report = StatusReport(at=at, sinks=sinks, scheduled=Count(5), next_scheduled_at=None)
    return Snapshot(report, [relay], [entry] * audit)


def drawn(now: Snapshot | None, before: Snapshot | None = None, **look: Any) -> list[str]:
    return [line.plain for line in frame(now, before, Look(**look))]


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (20, 3), (1, 1)])
@pytest.mark.parametrize("sinks", [0, 1, 30])
def test_a_picture_fits_and_shows_no_control_characters(view: View, width: int, height: int, sinks: int) -> None:
    now = snapshot(*(sink(HOSTILE + str(number)) for number in range(sinks)), text=HOSTILE)
    lines = drawn(now, view=view, width=width, height=height, problem=HOSTILE, notices=[HOSTILE] * 20)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_all_is_seen_at_80_columns() -> None:
    lines = drawn(
        snapshot(sink(failing=2, held=30, dead=4), sink("audit")),
        notices=["! sink 'default': 8 dead messages", "- 5 scheduled"],
    )
    assert len(lines) == 24
    assert lines[0] == "postroad top  2026-11-17 12:00:30Z  in -  relays 1  scheduled 5"
    assert lines[1].split() == ["sink", "pending", "lag", "unsent", "out/s", "failing", "held", "dead"]
    assert lines[2].split() == ["default", "24", "3s", "4s", "1", "4", "60", "8"]
    assert lines[3].split()[0] == "audit"
    assert "! sink 'default': 8 dead messages" in lines
    assert "- 5 scheduled" in lines
    assert "nothing needs attention" not in lines
    assert "2026-11-17 12:00:30Z  host pause (2): host" in lines
    assert lines[-1] == "1 sinks  2 lanes  3 notices  4 audit  p pause  q quit"
    assert all(cell_len(line) <= 80 for line in lines)


@pytest.mark.parametrize("view", [View.SINKS, View.NOTICES])
def test_what_is_to_be_done_is_not_cut_off(view: View) -> None:
    notice = (
        "! sink 'default' is paused, by anna since 2026-11-17 12:00:00Z: no stock; "
        "resume it with `postroad resume default`"
    )
    lines = drawn(snapshot(sink()), view=view, notices=[notice])
    (first,) = [index for index, line in enumerate(lines) if line.startswith("!")]
    assert f"{lines[first]} {lines[first + 1].lstrip()}" == notice
    assert lines[first + 1].startswith("  ")


def test_the_lanes() -> None:
    lines = drawn(snapshot(sink(), sink("free", lanes=1, owner=None, lease_seconds=None)), view=View.LANES, width=120)
    assert lines[1].split() == ["sink", "lane", "position", "gap", "pending", "lag", "lease", "owner"]
    assert lines[2].split() == ["default", "0", "1,000", "40", "12", "3s", "12s", "host", "(4711)"]
    assert lines[4].split() == ["free", "0", "1,000", "40", "12", "3s", "-", "none"]


def test_what_does_not_fit_is_counted() -> None:
    lines = drawn(snapshot(sink(lanes=60)), view=View.LANES)
    assert len(lines) == 24
    assert lines[-2] == "... 40 more lines; enlarge the terminal"
    everything = drawn(snapshot(sink(lanes=60)), view=View.LANES, height=None, keys=False)
    assert len(everything) == 62


def test_without_a_database_it_says_so_and_keeps_the_last_numbers() -> None:
    assert drawn(None)[1] == "waiting for the database"
    assert drawn(None, problem="amqp://me:geheim@host is away")[1] == "! amqp://me:***@host is away"
    lines = drawn(snapshot(sink()), problem="can't be reached", stale_seconds=10)
    assert lines[1:3] == ["! can't be reached", "! these numbers are 10s old"]
    assert any(line.startswith("default") for line in lines)
    assert not any("old" in line for line in drawn(snapshot(sink()), stale_seconds=10, paused=True)[1:3])
    assert "PAUSED" in drawn(snapshot(sink()), paused=True)[0]


def test_notices_and_none() -> None:
    assert drawn(snapshot(sink()), view=View.NOTICES)[1] == "nothing needs attention"
    lines = drawn(snapshot(sink(lanes=1, dead=3)), view=View.NOTICES, width=120, notices=["! many"] * 3)
    assert lines[1:4] == ["! many"] * 3
    assert lines[4].startswith("default lane 0: 0 failing, 0 held, 3 dead, oldest unsent 4s, 2 refused")


def test_large_numbers_stay_in_their_columns() -> None:
    big = sink(lanes=1, pending=Count(123_456_789, exact=False), failing=9_999, held=10_000, dead=3_400_000_000)
    assert drawn(snapshot(big))[2].split() == ["default", "~123.5M", "3s", "4s", "1", "9,999", "10.0k", "3.4G"]


# -- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "minutes", "rate"),
    [
        (10, (120, 60, 27), 2.0),
        (60, (60, 67, 20), (60 + 20) / 60),
        (-5, (120, 60, 27), 1.0),
        (0, (120, 60, 27), 1.0),
        (3600 * 5, (0, 0, 9), 0.0),
    ],
)
def test_the_rate_of_publishing_also_when_a_minute_begins(
    seconds: float, minutes: tuple[int, ...], rate: float
) -> None:
    before = snapshot(sink())
    after = sink(minutes=(0,) * 57 + minutes)
    now = snapshot(after, at=AT + timedelta(seconds=seconds))
    assert published_per_second(after, now, before) == pytest.approx(rate)


def test_the_rate_without_an_earlier_snapshot_is_that_of_the_last_minute() -> None:
    now = snapshot(sink())
    assert published_per_second(now.report.sinks[0], now, None) == 1.0
    assert published_per_second(sink("new"), now, snapshot(at=AT - timedelta(seconds=5))) == 1.0


def test_the_rate_of_adding() -> None:
    now = snapshot(sink(position=2_000), at=AT + timedelta(seconds=10))
    assert added_per_second(now, snapshot(sink())) == 100.0
    assert added_per_second(now, None) is None
    assert added_per_second(snapshot(), snapshot(sink())) is None
    assert added_per_second(snapshot(sink(position=1), at=now.report.at), now) is None
