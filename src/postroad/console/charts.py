"""Charts as SVG, made on the server: each has a title and a description in words, and no style of its own. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup

from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Box", "Cell", "Mark", "graph", "heatmap", "throughput"]

WIDTH: Final = 720
HEIGHT: Final = 96
_LABELS: Final = 18
_HEAT: Final = '<rect class="heat heat-{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
_AXIS: Final = Markup('<line class="axis" x1="0" x2="{0}" y1="{1}" y2="{1}"/>').format(WIDTH, HEIGHT)


class Mark(NamedTuple):
    """Something that happened, in the chart of throughput."""

    minutes_ago: float
    text: str


class Cell(NamedTuple):
    """A cell of a heatmap."""

    column: int
    row: int
    number: int
    text: str
    """What the cell says when it is pointed at."""


class Box(NamedTuple):
    """A node of a graph."""

    key: str
    title: str
    subtitle: str
    href: str | None = None
    classes: str = ""


def throughput(per_minute: Sequence[int], marks: Sequence[Mark], *, name: str) -> Markup:
    """Messages per minute as bars, oldest first, with marks for what operators did."""
    count, highest = len(per_minute) or 1, max(per_minute, default=0)
    step = WIDTH / count
    bars = [
        _bar(at * step, step, value, highest, f"{_minutes(count - 1 - at)}: {value:,} published")
        for at, value in enumerate(per_minute)
    ]
    lines = [_mark(WIDTH - (mark.minutes_ago + 0.5) * step, mark.text) for mark in marks if mark.minutes_ago < count]
    total = (
        f"{sum(per_minute):,} messages published to {name} in the last {count} minutes, at most {highest:,} a minute"
    )
    axis = [
        _text(0, HEIGHT + _LABELS - 4, f"{count} min ago", "start"),
        _text(WIDTH, HEIGHT + _LABELS - 4, "now", "end"),
    ]
    peak = [_text(0, 10, f"{highest:,}/min", "start")] if highest else []
    drawn = [_AXIS, *bars, *lines, *axis, *peak]
    return _svg(drawn, title=f"Throughput of {name}", description=total, classes="throughput")


def heatmap(
    cells: Sequence[Cell], *, columns: Sequence[str], rows: Sequence[str], title: str, description: str
) -> Markup:
    """Numbers as shades, in columns (left to right) and rows (the first at the bottom)."""
    height, left = 18, 74
    step = (WIDTH - left) / max(1, len(columns))
    highest = max((cell.number for cell in cells), default=0)
    tall = height * len(rows)
    drawn = [
        Markup(
            '<rect class="heat heat-{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
        ).format(
            _shade(cell.number, highest),
            left + cell.column * step,
            tall - (cell.row + 1) * height,
            max(1.0, step - 1),
            height - 1,
            _shown(cell.text),
        )
        for cell in cells
        if cell.number
    ]
    labels = [_text(left - 8, tall - at * height - 5, label, "end") for at, label in enumerate(rows)]
    ends = [(0, "start"), (len(columns) - 1, "end")] if columns else []
    times = [_text(left if at == 0 else WIDTH, tall + _LABELS - 4, columns[at], anchor) for at, anchor in ends]
    plot = Markup('<path class="plot" d="M{0} 0H{1}V{2}H{0}Z"/>').format(left, WIDTH, tall)
    return _svg([plot, *drawn, *labels, *times], title=title, description=description, classes="heatmap", height=tall)


_BOX: Final = (208, 46)
_GAPS: Final = (56, 16)


def graph(boxes: Sequence[Box], edges: Sequence[tuple[str, str]], *, title: str, description: str) -> Markup:
    """Boxes from left to right, causes before what they caused, with lines between them."""
    columns = _columns([box.key for box in boxes], edges)
    places: dict[str, tuple[int, int]] = {}
    heights: dict[int, int] = {}
    for box in boxes:
        column = columns[box.key]
        places[box.key] = (column * (_BOX[0] + _GAPS[0]), heights.get(column, 0) * (_BOX[1] + _GAPS[1]))
        heights[column] = heights.get(column, 0) + 1
    wide = (max(heights, default=0) + 1) * (_BOX[0] + _GAPS[0]) - _GAPS[0]
    tall = max(heights.values(), default=1) * (_BOX[1] + _GAPS[1])
    lines = [_edge(places[source], places[target]) for source, target in edges if source in places and target in places]
    drawn = [*lines, *(_box(box, *places[box.key]) for box in boxes)]
    return _svg(drawn, title=title, description=description, classes="graph", width=wide, height=tall)


def _columns(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """How far each box is from what has no cause. Edges that would close a circle end after as many rounds as boxes."""
    columns = dict.fromkeys(keys, 0)
    for _ in keys:
        moved = False
        for source, target in edges:
            if source in columns and target in columns and columns[target] <= columns[source] < len(keys) - 1:
                columns[target] = columns[source] + 1
                moved = True
        if not moved:
            break
    used = sorted(set(columns.values()))
    return {key: used.index(column) for key, column in columns.items()}


def _box(box: Box, x: int, y: int) -> Markup:
    inner = Markup(
        '<g class="node {}"><rect x="{}" y="{}" width="{}" height="{}" rx="8"/><text x="{}" y="{}">{}</text>'
        '<text class="quiet" x="{}" y="{}">{}</text><title>{}</title></g>'
    ).format(
        box.classes, x, y, *_BOX, x + 12, y + 19, _cut(box.title), x + 12, y + 36, _cut(box.subtitle),
        _shown(f"{box.title}, {box.subtitle}"),
    )  # fmt: skip
    return inner if box.href is None else Markup('<a href="{}">{}</a>').format(box.href, inner)


def _cut(text: str) -> str:
    text = _shown(text)
    return text if len(text) <= 29 else f"{text[:28]}\u2026"


def _edge(source: tuple[int, int], target: tuple[int, int]) -> Markup:
    x1, y1 = source[0] + _BOX[0], source[1] + _BOX[1] // 2
    x2, y2 = target[0], target[1] + _BOX[1] // 2
    middle = (x1 + x2) // 2
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(x1, y1, middle, y1, middle, y2, x2, y2)


def _shade(number: int, highest: int) -> int:
    """From 1 to 9, so that twice as many are seen to be more, and a single one is seen at all."""
    if number >= highest:
        return 9
    return 1 + min(7, int(8 * (number.bit_length() - 1) / max(1, highest.bit_length() - 1)))


def _minutes(ago: int) -> str:
    return "this minute" if ago == 0 else f"{ago} min ago"


def _bar(x: float, width: float, value: int, highest: int, text: str) -> Markup:
    tall = 0.0 if not value else max(2.0, value / highest * (HEIGHT - 16))
    return Markup(
        '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    ).format(x, HEIGHT - tall, max(1.0, width - 2), tall, text)


def _mark(x: float, text: str) -> Markup:
    return Markup(
        '<g class="mark"><line x1="{0:.1f}" x2="{0:.1f}" y1="14" y2="{1}"/><circle cx="{0:.1f}" cy="14" r="4"/>'
        "<title>{2}</title></g>"
    ).format(max(4.0, x), HEIGHT, _shown(text))


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.0f}" y="{:.0f}" text-anchor="{}">{}</text>').format(x, y, anchor, _shown(text))


def _svg(
    parts: Sequence[Markup], *, title: str, description: str, classes: str, width: float = WIDTH, height: float = HEIGHT
) -> Markup:
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">'
        "<title>{}</title><desc>{}</desc>{}</svg>"
    ).format(
        classes,
        width,
        height + _LABELS,
        _shown(f"{title}: {description}"),
        _shown(title),
        _shown(description),
        Markup("").join(parts),
    )


def _shown(text: str) -> str:
    """A text from outside: no control characters, no passwords. `Markup.format` escapes it."""
    return harmless(without_passwords(text))
