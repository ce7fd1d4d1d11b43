"""`postroad audit`: list what operators changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, Limit  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.tables import Column, Row, show_rows
from postroad.ops.rendering.text import one_line, time_text, without_secrets
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.admin import AuditEntry
    from postroad.ops.settings import Settings

__all__ = ["audit"]

_AUDIT = (
    Column("when (UTC)", whole=True),
    Column("who"),
    Column("role", optional=True),
    Column("command", whole=True),
    Column("changed", right=True, whole=True),
    Column("arguments"),
    Column("reason"),
)


@takes(*FOR_ANY_DATABASE)
def audit(*, settings: Settings, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List what operators changed: when, who, what and why; newest first."""
    entries = with_admin(settings, lambda admin: admin.audit(limit))
    if as_json:
        typer.echo(in_json([_as_json(entry) for entry in entries]))
    elif entries:
        show_rows(_AUDIT, [Row(_cells(entry)) for entry in entries])
    else:
        typer.echo("No changes are recorded.")


def _as_json(entry: AuditEntry) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(entry)
    return shown | {"reason": None if entry.reason is None else without_secrets(entry.reason)}


def _cells(entry: AuditEntry) -> list[str]:
    given = {name: value for name, value in entry.arguments.items() if value not in (None, [])}
    return [
        time_text(entry.at).rstrip("Z"),
        one_line(entry.who),
        one_line(entry.role or ""),
        one_line(entry.command),
        f"{entry.changed:,}",
        ", ".join(f"{name} {_argument(value)}" for name, value in given.items()),
        without_secrets(entry.reason or ""),
    ]


def _argument(value: object) -> str:
    if isinstance(value, list | tuple):
        first = " ".join(one_line(str(each)) for each in value[:3])
        return first if len(value) <= 3 else f"{first} and {len(value) - 3:,} more"
    return one_line(str(value), 200)
