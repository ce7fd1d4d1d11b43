"""`postroad consume`: run a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.ops.apps import consumer_named
from postroad.ops.options import takes
from postroad.ops.process import end_process, metrics_server, run_consumer, run_in_loop
from postroad.ops.tracing import tracing_for

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["consume"]


@takes("app", "metrics_port", "metrics_host", "log_level", "log_format", "tracing")
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
    consumer.tracing = consumer.tracing or tracing_for(settings.command.tracing)
    server = metrics_server(settings)
    if server is not None:
        consumer.add_listener(server.metrics)
    running = run_consumer(consumer, relay=settings.relay, until_empty=until_empty, server=server)
    summary, all_ended = run_in_loop(running)
    typer.echo(str(summary))
    code = 1 if until_empty and summary.dead else 0
    if summary.abandoned or consumer.unfinished or not all_ended:
        end_process(code)
    raise typer.Exit(code)
