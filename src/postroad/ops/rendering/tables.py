"""Tables. On a terminal, cells are cut to fit its width; in a pipe every cell is printed in full, one line per row.

Cells are never interpreted as markup.
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
# In a pipe, a longer cell shifts the rest of its own line, but not the columns of all other lines.
_WIDEST_ALIGNED: Final = 40


class Column(NamedTuple):
    """The name and the format of a column."""

    name: str
    right: bool = False
    """Right-aligned, for numbers."""
    whole: bool = False
    """Never cut, even where the table does not fit: part of an id would be useless."""
    optional: bool = False
    """Omitted if all its cells are empty."""


class Row(NamedTuple):
    """The cells of a row."""

    cells: Sequence[str]
    note: str = ""
    """A long text: on a line of its own on a terminal, the last column in a pipe."""
    style: str = ""
    """Its colour, on a terminal."""


def only_ascii() -> bool:
    """Whether stdout can't print anything but ASCII."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def show_rows(columns: Sequence[Column], rows: Sequence[Row], *, note: str = "") -> None:
    """Print a table. `note` is the header of the notes' column in a pipe."""
    kept = [at for at, column in enumerate(columns) if not column.optional or any(row.cells[at] for row in rows)]
    columns = [columns[at] for at in kept]
    rows = [row._replace(cells=[row.cells[at] for at in kept]) for row in rows]
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
    """The widths in terminal cells: a Chinese character takes two."""
    return [
        max(cell_len(column.name), *(cell_len(row.cells[at]) for row in rows)) if rows else cell_len(column.name)
        for at, column in enumerate(columns)
    ]


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Narrow the widest column that may be cut until the table fits, or no column can be narrowed further."""
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
    """Print names and values, one pair per line."""
    names = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        sys.stdout.write(f"{indent}{name:<{names}}  {value}".rstrip() + "\n")
