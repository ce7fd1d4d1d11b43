"""`postroad demo`: an example with two applications and a relay, with an audit at the end."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - options are read from annotations
from typing import Annotated

import typer

from postroad.ops.console_server import DEFAULT_PORT
from postroad.ops.terminal import output

__all__ = ["demo"]


def demo(
    *,
    orders: Annotated[
        int, typer.Option("--orders", metavar="N", min=20, max=5000, help="How many orders customers try to place.")
    ] = 400,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Repeat a run: the same customers, the same rollbacks.")
    ] = None,
    sabotage: Annotated[
        bool,
        typer.Option("--sabotage", help="Make the classic mistake: publish without an outbox, before the commit."),
    ] = False,
    console: Annotated[
        bool,
        typer.Option("--console", help="Instead, run a shop that has trouble on purpose, and the console on it."),
    ] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="The port of the console; 0: any.")
    ] = DEFAULT_PORT,
    directory: Annotated[
        Path | None, typer.Option("--directory", metavar="DIR", help="Keep the files in this directory.")
    ] = None,
) -> None:
    """Run an example: a shop, a relay that is killed twice, and an audit. Needs no server and ends by itself."""
    if console:
        from postroad.ops.demo.trouble import run_trouble

        run_trouble(directory, port)
        return
    from postroad.ops.demo.story import run_demo

    raise typer.Exit(run_demo(output(), orders=orders, seed=seed, sabotage=sabotage, directory=directory))
