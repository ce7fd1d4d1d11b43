"""`postroad relays`: who runs what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from postroad.ops.commands.choosing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.terminal import as_json as in_json
from postroad.ops.terminal import output
from postroad.stores import operating_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.settings import Settings
    from postroad.stores.leases import RelayStatus

__all__ = ["relays"]


@takes(*FOR_ANY_DATABASE)
def relays(*, settings: Settings, as_json: AsJson = False) -> None:
    """Show which relays there are, where they run, which lanes each has, and when it was last heard of."""
    found = asyncio.run(_ask(settings.needed("database"), settings.command.schema))
    if as_json:
        typer.echo(in_json({"relays": found}))
    elif found:
        _show(found)
    else:
        typer.echo("No relay is running: start one with `postroad relay`. Until then all messages are kept.")


async def _ask(database: str, schema: str) -> Sequence[RelayStatus]:
    async with operating_for(database, schema=schema) as operating:
        return await operating.relays()


def _show(found: Sequence[RelayStatus]) -> None:
    table = Table()
    for name in ("sink", "state", "lanes", "host", "pid", "since", "heartbeat", "owner"):
        table.add_column(name, justify="right" if name in {"pid", "heartbeat"} else "left", overflow="fold")
    for relay in found:
        table.add_row(
            Text(relay.sink),
            relay.state,
            ", ".join(map(str, relay.lanes)) or "none",
            Text(relay.host),
            str(relay.pid),
            f"{relay.started_at:%Y-%m-%d %H:%M:%S}",
            f"{relay.heartbeat_seconds:,.1f} s ago",
            str(relay.owner),
        )
    output().print(table)
