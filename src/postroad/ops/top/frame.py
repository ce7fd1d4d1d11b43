"""Draws a snapshot as lines of text, for any size of the terminal. Pure.

Every text from the database goes through `one_line` or `without_secrets`, and no line is wider than the terminal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from postroad.admin import totals
from postroad.ops.rendering.text import age, bars, number_text, one_line, sentence_lines, time_text, without_secrets
from postroad.stores.admin.snapshot import added_per_second, published_per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroad.admin import AuditEntry, LaneReport, RelayStatus, SinkReport
    from postroad.stores.admin.snapshot import Snapshot

__all__ = ["Look", "View", "frame"]


class View(StrEnum):
    """What is shown. The order is that of the keys 1 to 4."""

    SINKS = "sinks"
    LANES = "lanes"
    NOTICES = "notices"
    AUDIT = "audit"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How the snapshot is to be drawn."""

    view: View = View.SINKS
    width: int = 80
    height: int | None = 24
    """None: as many lines as there are."""
    interval: float = 1.0
    problem: str | None = None
    """Why there is no newer snapshot."""
    stale_seconds: float = 0.0
    """How old the snapshot is."""
    paused: bool = False
    notices: Sequence[str] = ()
    """The notices of the status as lines; a problem begins with "!"."""
    plain: bool = False
    """Only ASCII."""
    keys: bool = True
    """Show which keys there are."""


_KEYS: Final = "1 sinks  2 lanes  3 notices  4 audit  p pause  q quit"
_WIDEST_NAME: Final = 40
_SINK_WIDTHS: Final = (10, 9, 9, 8, 8, 6, 6)
_SINK_NAMES: Final = ("pending", "lag", "unsent", "out/s", "failing", "held", "dead")


def frame(now: Snapshot | None, before: Snapshot | None, look: Look) -> list[Text]:
    """The lines of one picture: at most `height`, each at most `width` wide. `before` is for rates."""
    head = list(_head(now, before, look))
    foot = [Text(_KEYS, style="dim")] if look.keys else []
    room = None if look.height is None else max(0, look.height - len(head) - len(foot))
    body: list[Text] = []
    if now is not None:
        body = list(_VIEWS[look.view](now, before, look, room))
    if room is not None:
        body = _fitted(body, room)
    lines = [*head, *body, *foot]
    return [_cut(line, look.width) for line in (lines if look.height is None else lines[: look.height])]


def _fitted(lines: list[Text], room: int) -> list[Text]:
    """As many lines as there is room for; the last one says how many are missing."""
    if len(lines) <= room:
        return lines + [Text("")] * (room - len(lines))
    if room < 1:
        return []
    return [*lines[: room - 1], Text(f"... {len(lines) - room + 1} more lines; enlarge the terminal", style="dim")]


def _cut(line: Text, width: int) -> Text:
    if cell_len(line.plain) <= width:
        return line
    cut = line.copy()
    cut.truncate(width, overflow="crop")
    return cut


# -- the head --------------------------------------------------------------------------------------------------------


def _head(now: Snapshot | None, before: Snapshot | None, look: Look) -> Iterator[Text]:
    title = Text("postroad top", style="bold")
    if now is not None:
        title.append(f"  {time_text(now.report.at)}", style="")
        added = added_per_second(now, before)
        alive = sum(relay.state != "dead" for relay in now.relays)
        title.append(f"  in {'-' if added is None else f'{added:,.0f}/s'}  relays {alive}", style="")
        if now.report.scheduled.number:
            title.append(f"  scheduled {number_text(now.report.scheduled)}", style="")
    if look.paused:
        title.append("  PAUSED (p)", style="bold yellow")
    yield title
    if look.problem is not None:
        yield from _wrapped(f"! {without_secrets(look.problem)}", look, style="bold red")
    if now is None and look.problem is None:
        yield Text("waiting for the database", style="dim")
    elif now is not None and not look.paused and look.stale_seconds > 3 * look.interval:
        yield Text(f"! these numbers are {age(look.stale_seconds)} old", style="bold yellow")


# -- the views -------------------------------------------------------------------------------------------------------


def _sinks(now: Snapshot, before: Snapshot | None, look: Look, room: int | None) -> Iterator[Text]:
    sinks = now.report.sinks
    if not sinks:
        yield Text("There is no sink yet: the first `postroad relay` creates one.")
        return
    width = max(12, min(_WIDEST_NAME, look.width - sum(_SINK_WIDTHS)))
    yield Text(_columns("sink", width, _SINK_NAMES, _SINK_WIDTHS), style="bold")
    for sink in sinks:
        sums = totals([sink])
        cells = (
            ("~" if not sums.exact else "") + _short(sums.pending),
            age(sums.lag_seconds),
            age(sums.oldest_unsent_seconds),
            f"{published_per_second(sink, now, before):,.0f}",
            _short(sums.failing),
            _short(sums.held),
            _short(sums.dead),
        )
        yield Text(_columns(_name(sink), width, cells, _SINK_WIDTHS), style=_style(sink))
    yield Text("")
    for sink in sinks:
        name = _fit(one_line(sink.sink), 14)
        chart = bars(sink.published_per_minute, plain=look.plain)
        yield Text(f"{name} |{chart}| 1h", style="cyan")
    yield Text("")
    yield from _notice_lines(look, 8)
    yield Text("audit", style="bold")
    yield from (_audit_line(entry) for entry in now.audit[:5])
    if not now.audit:
        yield Text("no operator has changed anything", style="dim")


def _lanes(now: Snapshot, before: Snapshot | None, look: Look, room: int | None) -> Iterator[Text]:
    names = ("lane", "position", "gap", "pending", "lag", "lease")
    widths = (5, 14, 10, 9, 8, 7)
    width = max(10, min(_WIDEST_NAME, look.width - sum(widths) - 18))
    owners = {relay.owner: relay for relay in now.relays}
    yield Text(_columns("sink", width, names, widths) + "  owner", style="bold")
    for sink in now.report.sinks:
        for lane in sink.lanes:
            cells = (
                str(lane.lane),
                f"{lane.position:,}",
                _short(lane.gap),
                number_text(lane.pending),
                age(lane.lag_seconds),
                "-" if lane.lease_seconds is None else f"{lane.lease_seconds:.0f}s",
            )
            owner = owners.get(lane.owner) if lane.owner is not None else None
            line = _columns(one_line(sink.sink), width, cells, widths) + f"  {_owner(lane, owner)}"
            yield Text(line, style=_lane_style(lane, owner))


def _notices(now: Snapshot, before: Snapshot | None, look: Look, room: int | None) -> Iterator[Text]:
    yield from _notice_lines(look, None)
    for sink in now.report.sinks:
        for lane in sink.lanes:
            if lane.failing or lane.held or lane.dead:
                yield from _wrapped(
                    f"{one_line(sink.sink)} lane {lane.lane}: {lane.failing:,} failing, {lane.held:,} held, "
                    f"{lane.dead:,} dead, oldest unsent {age(lane.oldest_unsent_seconds)}, "
                    f"{lane.refused_last_hour:,} refused in the last hour",
                    look,
                    style="red" if lane.dead else "yellow",
                )
    for relay in now.relays:
        if relay.state == "dead":
            yield from _wrapped(
                f"relay {one_line(relay.host)} ({relay.pid}) of sink {one_line(relay.sink)} died "
                f"{age(relay.heartbeat_seconds)} ago",
                look,
                style="yellow",
            )


def _audit(now: Snapshot, before: Snapshot | None, look: Look, room: int | None) -> Iterator[Text]:
    yield Text("audit, newest first", style="bold")
    yield from (_audit_line(entry) for entry in (now.audit if room is None else now.audit[: max(0, room - 1)]))
    if not now.audit:
        yield Text("no operator has changed anything", style="dim")


_VIEWS: Final[dict[View, Callable[[Snapshot, Snapshot | None, Look, int | None], Iterator[Text]]]] = {
    View.SINKS: _sinks,
    View.LANES: _lanes,
    View.NOTICES: _notices,
    View.AUDIT: _audit,
}


# -- parts -----------------------------------------------------------------------------------------------------------


def _notice_lines(look: Look, most: int | None) -> Iterator[Text]:
    shown = look.notices if most is None else look.notices[:most]
    for notice in shown:
        yield from _wrapped(one_line(notice), look, style="yellow" if notice.startswith("!") else "dim")
    if len(shown) < len(look.notices):
        yield Text(f"... and {len(look.notices) - len(shown)} more: key 3", style="yellow")
    if not any(notice.startswith("!") for notice in look.notices):
        yield Text("nothing needs attention", style="green")


def _wrapped(text: str, look: Look, style: str) -> Iterator[Text]:
    """The whole text, in as many lines as it needs: what is to be done stands at its end."""
    for line in sentence_lines(text, look.width):
        yield Text(line, style=style)


def _audit_line(entry: AuditEntry) -> Text:
    reason = f": {without_secrets(entry.reason, 200)}" if entry.reason else ""
    what = f"{one_line(entry.who, 30)} {one_line(entry.command, 20)} ({entry.changed:,})"
    return Text(f"{time_text(entry.at)}  {what}{reason}")


def _name(sink: SinkReport) -> str:
    return ("PAUSED " if sink.paused else "") + one_line(sink.sink)


def _style(sink: SinkReport) -> str:
    if any(lane.dead for lane in sink.lanes):
        return "red"
    return "yellow" if sink.paused or any(lane.failing or lane.held for lane in sink.lanes) else ""


def _lane_style(lane: LaneReport, owner: RelayStatus | None) -> str:
    if lane.dead:
        return "red"
    return "yellow" if lane.owner is None or owner is None or owner.state == "dead" or lane.paused else ""


def _owner(lane: LaneReport, relay: RelayStatus | None) -> str:
    if lane.owner is None:
        return "none"
    return str(lane.owner)[:8] if relay is None else f"{one_line(relay.host, 20)} ({relay.pid})"


def _columns(name: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    return _fit(name, width) + "".join(f"{cell:>{room}}" for cell, room in zip(cells, widths, strict=True))


def _fit(text: str, width: int) -> str:
    """The text in exactly this many terminal cells."""
    if cell_len(text) <= width:
        return text + " " * (width - cell_len(text))
    return set_cell_size(text, width - 2) + "~ "


def _short(number: int) -> str:
    """A number in at most six characters: 1,234, 56.8k, 1.2M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= size:
            scale = 1000 if unit == "k" else size
            return f"{number / scale:.1f}{unit}"
    return f"{number:,}"
