"""Rows of results, in columns. A terminal gets what fits into its width; a pipe gets every cell in full, one line per
row, for programs that search and cut. No cell is ever markup.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from postroad.ops.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Column", "Row", "only_ascii", "show_facts", "show_rows"]

_GAP: Final = "  "
_NARROWEST: Final = 6
# In a pipe a cell that is longer moves the rest of its own line, and not the columns of all the others.
_WIDEST_ALIGNED: Final = 40


class Column(NamedTuple):
    """How a column looks."""

    name: str
    right: bool = False
    """Numbers are aligned on their last digit."""
    whole: bool = False
    """Never cut, also where it does not fit: an id that lacks its end is no use."""
    optional: bool = False
    """Left out when all its cells are empty."""


class Row(NamedTuple):
    """What a row says."""

    cells: Sequence[str]
    note: str = ""
    """A long text about it: on a line of its own in a terminal, the last column in a pipe."""
    style: str = ""
    """Its colour, where there are colours."""


def only_ascii() -> bool:
    """Whether stdout can show nothing but plain letters."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def show_rows(columns: Sequence[Column], rows: Sequence[Row], *, note: str = "") -> None:
    """Show rows under their columns' names; `note` is what a column of the notes would be called."""
    there = [at for at, column in enumerate(columns) if not column.optional or any(row.cells[at] for row in rows)]
    columns = [columns[at] for at in there]
    rows = [row._replace(cells=[row.cells[at] for at in there]) for row in rows]
    if sys.stdout.isatty():
        _show_in_terminal(columns, rows)
    else:
        _show_in_pipe(columns, rows, note)


def _show_in_terminal(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    console = output()
    widths = _fitting(columns, _widths(columns, rows), console.width)
    names = [column.name for column in columns]
    console.print(Text(_line(columns, widths, names), style="bold"), soft_wrap=True)
    for row in rows:
        cells = [_cut(cell, width) for cell, width in zip(row.cells, widths, strict=True)]
        console.print(Text(_line(columns, widths, cells), style=row.style), soft_wrap=True)
        if row.note:
            console.print(
                Text(f"    {_cut(row.note, max(_NARROWEST, console.width - 4))}", style="dim"), soft_wrap=True
            )


def _show_in_pipe(columns: Sequence[Column], rows: Sequence[Row], note: str) -> None:
    noted = any(row.note for row in rows)
    widths = [min(_WIDEST_ALIGNED, width) for width in _widths(columns, rows)]
    names = [column.name for column in columns]
    for cells, last in [(names, note), *((row.cells, row.note) for row in rows)]:
        line = _line(columns, widths, cells) + (f"{_GAP}{last}" if noted else "")
        sys.stdout.write(line.rstrip() + "\n")


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """By what a terminal makes of a text: a Chinese character is as wide as two letters."""
    return [
        max(cell_len(column.name), *(cell_len(row.cells[at]) for row in rows)) if rows else cell_len(column.name)
        for at, column in enumerate(columns)
    ]


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Take from the widest column that may be cut, as long as there is something to take."""
    fitting = list(widths)
    while sum(fitting) + len(_GAP) * (len(columns) - 1) > room:
        wide = [at for at, column in enumerate(columns) if not column.whole and fitting[at] > _NARROWEST]
        if not wide:
            break
        fitting[max(wide, key=lambda at: fitting[at])] -= 1
    return fitting


def _cut(cell: str, width: int) -> str:
    if cell_len(cell) <= width:
        return cell
    dots = "..." if only_ascii() else "\N{HORIZONTAL ELLIPSIS}"
    return set_cell_size(cell, width - len(dots)).rstrip() + dots


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    return _GAP.join(
        " " * (width - cell_len(cell)) + cell if column.right else cell + " " * (width - cell_len(cell))
        for cell, width, column in zip(cells, widths, columns, strict=True)
    )


def show_facts(facts: Sequence[tuple[str, str]], *, indent: str = "") -> None:
    """Show names and what they are, one per line."""
    names = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        sys.stdout.write(f"{indent}{name:<{names}}  {value}".rstrip() + "\n")
