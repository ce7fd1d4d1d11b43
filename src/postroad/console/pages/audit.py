"""Audit: what operators changed and which payloads they looked at; searched, and exported as CSV or JSON."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from postroad.admin import AuditFilter
from postroad.console.pages.change import given_to
from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import AuditEntry
    from postroad.console.context import Context

__all__ = ["as_csv", "as_json", "audit"]

SHOWN: Final = 200
EXPORTED: Final = 10_000
_COLUMNS: Final = ("number", "at", "who", "role", "command", "changed", "arguments", "reason")


async def audit(context: Context) -> Response:
    """The page."""
    entries = await _entries(context, SHOWN)
    given = given_to(context)
    query = [pair for pair in given.query() if pair[0] != "below"]
    older = context.link("audit", [*query, ("below", str(entries[-1].number))]) if len(entries) == SHOWN else None
    return context.page("audit.html", entries=entries, given=given, older=older, exported=EXPORTED)


async def as_csv(context: Context) -> Response:
    """The same as CSV. A cell that a spreadsheet would take for a formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for values in map(_masked, await _entries(context, EXPORTED)):
        values["arguments"] = msgspec.json.encode(values["arguments"]).decode()
        writer.writerow([_cell(values[name]) for name in _COLUMNS])
    return _file(text.getvalue(), "text/csv; charset=utf-8", "audit.csv")


async def as_json(context: Context) -> Response:
    """The same as JSON."""
    entries = [_masked(entry) for entry in await _entries(context, EXPORTED)]
    return _file(msgspec.json.encode(entries).decode(), "application/json", "audit.json")


async def _entries(context: Context, limit: int) -> Sequence[AuditEntry]:
    given = given_to(context)
    below = given.text("below")
    which = AuditFilter(
        who=given.text("who"),
        command=given.text("command"),
        text=given.text("text"),
        since=given.time("since"),
        before=given.time("before"),
        below=int(below) if below is not None and below.isdecimal() else None,
    )
    admin = await context.database.admin()
    return await admin.audit(limit, which=None if which == AuditFilter() else which)


def _masked(entry: AuditEntry) -> dict[str, Any]:
    """The line, without passwords in any of its texts."""
    line: dict[str, Any] = _mask(msgspec.to_builtins(entry))
    return line


def _mask(value: Any) -> Any:
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, dict):
        return {name: _mask(each) for name, each in value.items()}
    return [_mask(each) for each in value] if isinstance(value, list) else value


def _cell(value: object) -> str:
    text = "" if value is None else harmless(without_passwords(str(value)))
    return f"'{text}" if text[:1] in "=+-@\t\r" and text[:1] else text


def _file(text: str, media_type: str, name: str) -> Response:
    return Response(text, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'})
