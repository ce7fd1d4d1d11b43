"""`postroad doctor`: what keeps relays from working."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import typer

from postroad.ops.commands.choosing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import one_line
from postroad.ops.terminal import as_json as in_json
from postroad.stores import operating_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.settings import Settings
    from postroad.stores.base import Blocker

__all__ = ["doctor"]

LONGER_THAN: Final = timedelta(seconds=1)


@takes(*FOR_ANY_DATABASE)
def doctor(*, settings: Settings, as_json: AsJson = False) -> None:
    """Show which sessions of the database have locked what relays need. Fails if there are any."""
    found = asyncio.run(_ask(settings.needed("database"), settings.command.schema))
    if as_json:
        typer.echo(in_json({"blockers": found}))
    for blocker in () if as_json else found:
        typer.echo(f"blocked: what relays need is locked by {one_line(str(blocker))}")
    if found:
        raise typer.Exit(1)
    if not as_json:
        typer.echo("No other session has locked what relays need.")


async def _ask(database: str, schema: str) -> Sequence[Blocker]:
    async with operating_for(database, schema=schema) as operating:
        return await operating.blockers(longer_than=LONGER_THAN)
