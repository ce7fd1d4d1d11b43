"""Draws docs/pictures/top.svg: `python docs/pictures/make_top.py`. The numbers are made up."""

from __future__ import annotations

import io
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from rich.console import Console

from postroad.admin import AuditEntry, Count, LaneReport, RelayStatus, SinkReport, StatusReport
from postroad.ops.top.frame import Look, frame
from postroad.stores.admin.snapshot import Snapshot

PICTURE = Path(__file__).with_name("top.svg")
AT = datetime(2026, 11, 17, 12, 0, 30, tzinfo=UTC)
OWNER = UUID(int=7)
# Fonts of a server far away are not loaded by a page of documentation.
FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def lane(number: int, position: int, *, dead: int, pending: int) -> LaneReport:
    return LaneReport(
        lane=number,
        position=position,
        pending=Count(pending),
        lag_seconds=pending / 400,
        oldest_unsent_seconds=734.0 if dead else pending / 400,
        failing=0,
        held=2 * dead,
        dead=dead,
        unroutable=0,
        paused=False,
        owner=OWNER,
        lease_seconds=12.0,
        gap=4 * pending,
        published_last_hour=100_000,
        refused_last_hour=dead,
    )


def sink(name: str, position: int, *, dead: int, pending: int) -> SinkReport:
    busy = [round(7_000 + 5_000 * math.sin(minute / 9) + 900 * (minute % 5)) for minute in range(59)]
    return SinkReport(
        sink=name,
        destination="amqp://rabbit.example",
        served_at=AT,
        relays=2,
        lanes=[lane(number, position, dead=dead if number == 2 else 0, pending=pending) for number in range(4)],
        published_per_minute=[*busy, position // 1000],
        held_keys=[],
    )


def line(number: int, who: str, command: str, reason: str | None, changed: int) -> AuditEntry:
    return AuditEntry(
        number=number, at=AT, who=who, role="operator", command=command, arguments={}, reason=reason, changed=changed
    )


def snapshot(at: datetime, position: int) -> Snapshot:
    sinks = [
        sink("default", position, dead=3, pending=120),
        sink("projection", position // 2, dead=0, pending=0),
    ]
    names = ("relay-0", "relay-1", "relay-2")
    relays = [RelayStatus(OWNER, "default", name, 7, "0.1.0", [0, 1], AT, 0.4, "active", None) for name in names]
    audit = [line(2, "anna", "retry", "the carrier is known now", 12), line(1, "ben", "hold", None, 1)]
    return Snapshot(StatusReport(at=at, sinks=sinks, scheduled=Count(17), next_scheduled_at=AT), relays, audit)


def picture() -> str:
    before, now = snapshot(AT - timedelta(seconds=5), 8_990_000), snapshot(AT, 9_002_000)
    notices = ["! sink 'default': 3 dead messages; see `postroad dead list`"]
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in frame(now, before, Look(notices=notices, height=18)):
        console.print(line, soft_wrap=True)
    drawn = console.export_svg(title="postroad top", unique_id="top")
    return FONT.sub("", drawn)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
