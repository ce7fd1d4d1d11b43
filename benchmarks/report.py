"""Results for people: tables on the terminal, and the same in docs/benchmarks.md between two markers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.sections import Section

BEGIN, END = "<!-- begin of results -->", "<!-- end of results -->"


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
    """Put the results where the page has its markers. Sections that were measured replace those of earlier runs; all
    others stay.
    """
    before, _, rest = path.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    _, *parts = _SECTION.split(old)
    sections = dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
    facts = dict(results.facts)
    measured = f"Measured {facts.pop('date')}, with a load of {facts.pop('load at the beginning')} at the beginning."
    sections |= {section.name: _markdown(section, measured) for section in results.sections}
    machine = "\n".join(f"- **{name}**: {fact}" for name, fact in facts.items())
    body = "\n\n".join(f"<!-- {name} -->\n\n{text}" for name, text in sections.items())
    path.write_text(f"{before}{BEGIN}\n\n{machine}\n\n{body}\n\n{END}{after}")


_SECTION = re.compile(r"<!-- (\w+) -->\n")


def _markdown(section: Section, measured: str) -> str:
    lines = [f"### {section.title}", "", measured, "", *_table(section.header, section.rows)]
    if section.targets:
        rows = [[each.what, each.wanted, each.measured, _said(met=each.met)] for each in section.targets]
        lines += ["", *_table(["target", "wanted", "measured", ""], rows)]
    lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    cells = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def _said(*, met: bool) -> str:
    return "met" if met else "missed"
