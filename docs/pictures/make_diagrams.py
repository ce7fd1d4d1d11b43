"""Draws the diagrams of the documentation, each in light and in dark: `python docs/pictures/make_diagrams.py`.

A drawing is a function of a palette. Shapes are boxes, arrows and text, at places that are given.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


class Palette(NamedTuple):
    name: str
    ink: str
    quiet: str
    line: str
    box: str
    strong: str
    warm: str


LIGHT = Palette("light", "#1b1f24", "#57606a", "#8c959f", "#f6f8fa", "#ddf4ff", "#fff1e5")
DARK = Palette("dark", "#e6edf3", "#9ea7b3", "#6e7681", "#161b22", "#0c2d48", "#3d2208")


class Drawing:
    """An SVG that grows by its shapes."""

    def __init__(self, palette: Palette, width: int, height: int, title: str) -> None:
        self.palette = palette
        font = f'font-family="{FONT}" font-size="15" fill="{palette.ink}"'
        size = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" {font}>',
            f"<title>{escape(title)}</title>",
            f'<defs><marker id="head" {size}><path d="M0 0 10 5 0 10z" fill="{palette.line}"/></marker></defs>',
        ]

    def box(self, x: int, y: int, width: int, height: int, fill: str | None = None, *, dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill or self.palette.box}" '
            f'stroke="{self.palette.line}"{dashes}/>'
        )

    def text(self, x: int, y: int, words: str, *, quiet: bool = False, bold: bool = False, middle: bool = True) -> None:
        style = f' fill="{self.palette.quiet}" font-size="13"' if quiet else ""
        style += ' font-weight="600"' if bold else ""
        style += ' text-anchor="middle"' if middle else ""
        self.parts.append(f'<text x="{x}" y="{y}"{style}>{escape(words)}</text>')

    def arrow(self, x1: int, y1: int, x2: int, y2: int) -> None:
        self.parts.append(
            f'<path d="M{x1} {y1} {x2} {y2}" stroke="{self.palette.line}" stroke-width="2" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def overview(palette: Palette) -> str:
    """From a transaction to an effect."""
    drawing = Drawing(palette, 920, 200, "A transaction writes a row and a message; relay, broker and inbox carry it")
    drawing.box(10, 30, 230, 140, palette.strong)
    drawing.text(125, 56, "your transaction", bold=True)
    drawing.text(28, 86, "insert into orders …", middle=False)
    drawing.text(28, 112, "outbox.add(tx, event)", middle=False)
    drawing.text(28, 138, "commit", middle=False)
    drawing.text(125, 160, "both, or neither", quiet=True)
    drawing.arrow(240, 100, 288, 100)
    for x, width, name, words in (
        (290, 130, "the log", "append-only"),
        (472, 120, "relay", "in order per key"),
        (644, 110, "broker", "confirms"),
    ):
        drawing.box(x, 60, width, 80)
        drawing.text(x + width // 2, 96, name, bold=True)
        drawing.text(x + width // 2, 120, words, quiet=True)
    drawing.arrow(420, 100, 470, 100)
    drawing.arrow(592, 100, 642, 100)
    drawing.arrow(754, 100, 792, 100)
    drawing.box(794, 30, 116, 140, palette.strong)
    drawing.text(852, 56, "handler", bold=True)
    drawing.text(852, 86, "inbox")
    drawing.text(852, 112, "+ your effect")
    drawing.text(852, 138, "commit")
    drawing.text(852, 160, "once", quiet=True)
    drawing.text(532, 168, "at least once: sent again after a kill, with the same id", quiet=True)
    return drawing.svg()


def reading(palette: Palette) -> str:
    """A transaction that commits late, and the two cursors."""
    drawing = Drawing(palette, 920, 250, "A cursor with a snapshot finds the row of a transaction that commits late")
    drawing.text(10, 24, "Positions are given when rows are inserted; transactions commit in any order.", middle=False)
    for index, (number, state) in enumerate([(41, 0), (42, 0), (43, 1), (44, 0), (45, 0)]):
        x = 10 + index * 120
        drawing.box(x, 44, 104, 56, palette.warm if state else palette.box, dashed=bool(state))
        drawing.text(x + 52, 68, str(number), bold=True)
        drawing.text(x + 52, 90, "commits later" if state else "committed", quiet=True)
    drawing.arrow(560, 150, 560, 106)
    drawing.text(560, 170, "the relay has read up to here")
    drawing.text(10, 208, "id > 45", bold=True, middle=False)
    drawing.text(210, 208, "43 is behind it: never read, and no error", middle=False)
    drawing.text(10, 238, "position + snapshot", bold=True, middle=False)
    drawing.text(210, 238, "43 was open then; when it commits, it is read as a late row", middle=False)
    drawing.box(680, 44, 230, 116, palette.strong)
    drawing.text(795, 70, "the lane's cursor", bold=True)
    drawing.text(795, 98, "position 45")
    drawing.text(795, 122, "snapshot: 43 is open")
    drawing.text(795, 146, "one row for a whole lane", quiet=True)
    return drawing.svg()


def lanes(palette: Palette) -> str:
    """Keys, slots, lanes and relays."""
    drawing = Drawing(palette, 920, 268, "Keys fall into slots, slots into lanes, and relays lease lanes")
    for x, words in ((80, "keys"), (320, "1,024 slots"), (560, "4 lanes"), (800, "relays")):
        drawing.text(x, 24, words, quiet=True)
    for index, key in enumerate(("customer-7", "customer-8", "order-12", "no key: the id")):
        drawing.box(10, 40 + index * 50, 140, 38)
        drawing.text(80, 64 + index * 50, key)
        drawing.arrow(150, 59 + index * 50, 248, 59 + index * 50)
        drawing.box(250, 40 + index * 50, 140, 38)
        drawing.text(320, 64 + index * 50, f"{index * 256}-{index * 256 + 255}")
        drawing.arrow(390, 59 + index * 50, 488, 59 + index * 50)
        drawing.box(490, 40 + index * 50, 140, 38)
        drawing.text(560, 64 + index * 50, f"lane {index}: cursor")
        drawing.arrow(630, 59 + index * 50, 718, 84 + index // 2 * 100)
    for index, name in enumerate(("relay A", "relay B")):
        drawing.box(720, 50 + index * 100, 160, 68, palette.strong)
        drawing.text(800, 80 + index * 100, name, bold=True)
        drawing.text(800, 102 + index * 100, "leases two lanes", quiet=True)
    drawing.text(10, 260, "A lane has one owner at a time, so the messages of a key are sent in order.", middle=False)
    return drawing.svg()


DIAGRAMS: dict[str, Callable[[Palette], str]] = {"overview": overview, "reading": reading, "lanes": lanes}


def pictures() -> dict[str, str]:
    """Every picture, by the name of its file."""
    return {f"{name}-{each.name}.svg": draw(each) for name, draw in DIAGRAMS.items() for each in (LIGHT, DARK)}


if __name__ == "__main__":
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
