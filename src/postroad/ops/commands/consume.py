"""`postroad consume`: run a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.ops.apps import consumer_named
from postroad.ops.options import takes
from postroad.ops.process import end_process, run_consumer, run_in_loop

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["consume"]


@takes("app", "log_level", "log_format")
def consume(
    *,
    settings: Settings,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Exit when every message in the queue has been handled.")
    ] = False,
) -> None:
    """Handle every message of a consumer's queue, until a signal stops it.

    The first SIGTERM or Ctrl-C waits for running handlers and returns other messages to the queue; the second ends it
    at once.
    """
    consumer = consumer_named(settings.needed("app"))
    summary, all_ended = run_in_loop(run_consumer(consumer, relay=settings.relay, until_empty=until_empty))
    typer.echo(str(summary))
    code = 1 if until_empty and summary.dead else 0
    if summary.abandoned or not all_ended:
        end_process(code)
    raise typer.Exit(code)
