"""`postroad relays`: list the relays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.tables import Column, Row, show_rows
from postroad.ops.rendering.text import age, one_line
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.admin import RelayStatus
    from postroad.ops.settings import Settings

__all__ = ["relays"]

_RELAYS = (
    Column("sink"),
    Column("state", whole=True),
    Column("lanes"),
    Column("host"),
    *(Column(name, right=True, whole=True) for name in ("pid", "started", "heartbeat")),
)


@takes(*FOR_ANY_DATABASE)
def relays(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the relays: sink, state, lanes, host, process id, start, last heartbeat and owner id."""
    found = with_admin(settings, lambda admin: admin.relays())
    if as_json:
        typer.echo(in_json({"relays": found}))
    elif found:
        now = datetime.now(UTC)
        show_rows(_RELAYS, [Row(_cells(relay, now), note=f"owner {relay.owner}") for relay in found], note="owner")
    else:
        typer.echo("No relay is running: start one with `postroad relay`. Until then all messages are kept.")


def _cells(relay: RelayStatus, now: datetime) -> list[str]:
    lanes = ", ".join(map(str, relay.lanes)) or "none"
    started = f"{age(now - relay.started_at)} ago"
    heartbeat = f"{relay.heartbeat_seconds:,.1f} s ago"
    return [one_line(relay.sink), relay.state, lanes, one_line(relay.host), str(relay.pid), started, heartbeat]
