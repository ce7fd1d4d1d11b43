"""How a command says what it did, or what it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from postroad.errors import NotFound
from postroad.ops.showing import count
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.stores.operating import Done

__all__ = ["show_done", "show_plan"]


def show_plan(text: str, number: int, *, as_json: bool) -> None:
    """What a dry run found."""
    typer.echo(in_json({"dry_run": True, "would_change": number}) if as_json else f"{text}. Nothing was changed.")


def show_done(done: Done, thing: str, say: Callable[[str], str], *, as_json: bool) -> None:
    """How many were changed, and which of those that were meant were not."""
    left = ", ".join(f"{number:,} {state}" for state, number in done.unmoved.items() if number)
    if not done.changed:
        others = f": {left}" if left else ""
        raise NotFound(f"no {thing} is left to be changed{others}; somebody may have been faster")
    if as_json:
        typer.echo(in_json({"dry_run": False, "changed": done.changed, "unmoved": dict(done.unmoved)}))
        return
    typer.echo(say(count(done.changed, thing)) + (f"; not those in other states: {left}" if left else ""))
