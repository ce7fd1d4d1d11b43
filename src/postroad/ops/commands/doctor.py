"""`postroad doctor`: what keeps relays from working."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import typer

from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.text import one_line
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["doctor"]

LONGER_THAN: Final = timedelta(seconds=1)


@takes(*FOR_ANY_DATABASE)
def doctor(*, settings: Settings, as_json: AsJson = False) -> None:
    """Show which sessions of the database have locked what relays need. Fails if there are any."""
    found = with_admin(settings, lambda admin: admin.blockers(longer_than=LONGER_THAN))
    if as_json:
        typer.echo(in_json({"blockers": found}))
    for blocker in () if as_json else found:
        typer.echo(f"blocked: what relays need is locked by {one_line(str(blocker))}")
    if found:
        raise typer.Exit(1)
    if not as_json:
        typer.echo("No other session has locked what relays need.")
