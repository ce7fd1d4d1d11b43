"""`postroad top`: a live view of sinks, lanes, notices and the audit."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.errors import InvalidSetting
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import parse_seconds
from postroad.ops.terminal import output
from postroad.ops.top.frame import View
from postroad.ops.top.live import one_frame, watch

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["top"]


@takes(*FOR_ANY_DATABASE)
def top(
    *,
    settings: Settings,
    view: Annotated[
        str, typer.Option("--view", metavar="sinks|lanes|notices|audit", help="What is shown first.")
    ] = View.SINKS.value,
    interval: Annotated[
        str, typer.Option("--interval", metavar="SECONDS", help="How often the database is asked.")
    ] = "1",
    once: Annotated[bool, typer.Option("--once", help="Print one picture and exit, for scripts.")] = False,
) -> None:
    """Show sinks, lanes, rates, lag, notices and the audit, live.

    Keys: 1 to 4 switch the view, p pauses, q quits.
    """
    first, seconds = _view(view), parse_seconds("--interval", interval)
    if once:
        console = output()
        for line in asyncio.run(one_frame(settings, view=first, width=console.width)):
            line.rstrip()
            console.print(line, soft_wrap=True)
    elif sys.stdout.isatty():
        asyncio.run(watch(settings, view=first, interval=seconds))
    else:
        raise InvalidSetting("stdout is no terminal, and top draws on one; use --once for a script, or postroad status")


def _view(text: str) -> View:
    if text not in set(View):
        raise InvalidSetting(f"--view is {text!r}; it must be {', '.join(View)}")
    return View(text)
