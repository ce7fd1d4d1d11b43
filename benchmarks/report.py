"""Results for people: tables on the terminal, and the same in docs/benchmarks.md between two markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.sections import Section

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


class Results(msgspec.Struct):
    """All that one run found."""

    facts: dict[str, str]
    sections: list[Section]


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))


def show(section: Section) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for number, title in enumerate(section.header):
        table.add_column(title, justify="right" if number else "left")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for target in section.targets:
        colour = "green" if target.met else "red"
        console.print(
            f"  [{colour}]{_said(met=target.met)}[/] {target.what}: {target.measured} (wanted {target.wanted})"
        )
    for note in section.notes:
        console.print(f"  [dim]{note}[/]")
    console.print()


def write_docs(results: Results, path: Path) -> None:
    """Put the results where the page has its markers, and leave everything else as it is."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{_markdown(results)}\n{END}{after}")


def _markdown(results: Results) -> str:
    lines = [f"- **{name}**: {fact}" for name, fact in results.facts.items()]
    for section in results.sections:
        lines += ["", f"### {section.title}", ""]
        lines += _table(section.header, section.rows)
        if section.targets:
            rows = [[each.what, each.wanted, each.measured, _said(met=each.met)] for each in section.targets]
            lines += ["", *_table(["target", "wanted", "measured", ""], rows)]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    cells = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def _said(*, met: bool) -> str:
    return "met" if met else "missed"
