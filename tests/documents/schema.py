"""Reads the tables of PostgreSQL's migrations with their comments, as docs/tables.md shows them. Line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill
from typing import NamedTuple

from postroad.stores.dialects import POSTGRESQL

__all__ = ["Column", "Table", "document", "tables"]

BEGIN = re.compile(r"create (?:unlogged )?table if not exists postroad\.(\w+) \((.*)")
COLUMN = re.compile(r"(\w+) +([a-z0-9_]+(?:\[\])?)(.*)")
NO_COLUMN = {"primary", "constraint", "check", "unique"}


class Column(NamedTuple):
    name: str
    type: str
    null: bool
    comment: str


class Table(NamedTuple):
    section: str
    name: str
    comment: str
    columns: list[Column]


def tables() -> list[Table]:
    """The tables in the order of the migrations."""
    return list(read(POSTGRESQL.migration_script("postroad").splitlines()))


def read(lines: list[str]) -> Iterator[Table]:
    """A table's comment stands directly above it."""
    section, comment, left = "The schema itself", list[str](), iter(lines)
    for line in left:
        if line.startswith("-- == "):
            section = line.strip("-= ")
        elif line.startswith("--"):
            comment.append(line.removeprefix("--").strip())
        elif found := BEGIN.match(line):
            body = [found[2].removesuffix(");")] if found[2] else list(until_closed(left))
            yield Table(section, found[1], " ".join(comment), list(columns(body)))
            comment = []
        else:
            comment = []


def until_closed(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith(")"):
            return
        yield line


def columns(body: list[str]) -> Iterator[Column]:
    """The columns of a table; a comment in lines of its own belongs to the column below it."""
    above: list[str] = []
    depth = 0
    for line in body:
        text, _, comment = (part.strip() for part in line.partition("--"))
        if not text:
            above.append(comment)
            continue
        found = COLUMN.match(text) if depth == 0 else None
        depth += text.count("(") - text.count(")")
        if found is not None and found[1] not in NO_COLUMN:
            null = "not null" not in found[3] and "primary key" not in found[3]
            yield Column(found[1], found[2], null, " ".join([*above, comment]).strip())
            above = []


def document() -> str:
    """The sections of docs/tables.md."""
    parts, section = [], ""
    for table in tables():
        if table.section != section:
            section = table.section
            parts.append(f"## {section}\n")
        parts.append(f"### {table.name}\n")
        parts.append(fill(table.comment, 138, break_long_words=False, break_on_hyphens=False) + "\n")
        rows = [f"| `{each.name}` | `{each.type}` | {'yes' * each.null} | {each.comment} |" for each in table.columns]
        parts.append("\n".join(["| column | type | null | |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)
