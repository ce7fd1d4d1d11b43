"""`postroad relay`: run a relay, or one for each of several sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.brokers.registry import publisher_for
from postroad.listeners import LogListener
from postroad.ops.apps import consumer_named
from postroad.ops.options import ALL, takes
from postroad.ops.process import end_process, metrics_server, run_group, run_in_loop, run_relay
from postroad.ops.serving import chosen_sinks
from postroad.ops.tracing import tracing_for
from postroad.relay import Relay, RelayGroup
from postroad.stores import store_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.base import Publisher
    from postroad.consumer import Consumer
    from postroad.listeners import Listener
    from postroad.metrics import MetricsServer
    from postroad.ops.settings import Settings
    from postroad.ops.sink_settings import SinkSettings

__all__ = ["relay"]


@takes(*ALL)
def relay(
    *,
    settings: Settings,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Exit when every committed message has been published.")
    ] = False,
) -> None:
    """Publish every committed message to its destination, until a signal stops it.

    It serves all sinks of the settings, or those that --sink names. The first
    SIGTERM or Ctrl-C waits for outstanding confirms; the second ends it at once.
    """
    settings.needed("database")
    sinks = chosen_sinks(settings)
    server = metrics_server(settings, database=settings.command.database)
    listeners: list[Listener] = [LogListener()] if server is None else [LogListener(), server.metrics]
    served = [_Served(settings, sink, listeners, server) for sink in sinks]
    consumers = [each.consumer for each in served if each.consumer is not None]
    if len(served) == 1:
        outcome, all_ended = run_in_loop(run_relay(served[0].relay(), until_empty=until_empty, server=server))
        lines, exit_code = [str(outcome.summary)], outcome.exit_code
    else:
        group = RelayGroup({each.name: each.relay for each in served}, listeners=[LogListener()])
        outcomes, all_ended = run_in_loop(run_group(group, until_empty=until_empty, server=server))
        lines = [f"{name}: {each.summary}" for name, each in outcomes.outcomes.items()]
        lines += [f"{name}: failed: {error}" for name, error in outcomes.errors.items()]
        exit_code = outcomes.exit_code
    _end(lines, exit_code, all_ended=all_ended and not any(each.unfinished for each in consumers))


class _Served:
    """A sink that this process serves."""

    def __init__(
        self, settings: Settings, sink: SinkSettings, listeners: Sequence[Listener], server: MetricsServer | None
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._listeners = listeners
        self.name = sink.name
        self.consumer: Consumer[Any] | None = consumer_named(sink.app) if sink.app is not None else None
        self._tracing = tracing_for(settings.command.tracing)  # the app may have set an SDK up
        if self.consumer is not None:
            self.consumer.tracing = self.consumer.tracing or self._tracing
            if sink.name == "":  # a sink without a name of its own has the consumer's
                self.name = self.consumer.name
            if server is not None:
                self.consumer.add_listener(server.metrics)
        # Made now, so that what is wrong with the settings is said before anything is sent.
        self._first: Publisher | None = self._publisher()

    def relay(self) -> Relay:
        """A relay of the sink, with connections of its own."""
        command = self._settings.command
        store = store_for(self._settings.needed("database"), schema=command.schema, direct=command.direct)
        publisher, self._first = self._first or self._publisher(), None
        return Relay(
            store,
            publisher,
            sink=self.name,
            filter=self._sink.filter,
            settings=self._sink.relay,
            listeners=self._listeners,
            tracing=self._tracing,
        )

    def _publisher(self) -> Publisher:
        if self.consumer is not None:
            return self.consumer.publisher(relay=self._sink.relay)
        assert self._sink.to is not None  # noqa: S101 - chosen_sinks has made sure
        return publisher_for(self._sink.to, self._sink.for_broker(self._sink.to))


def _end(lines: Sequence[str], exit_code: int, *, all_ended: bool = True) -> None:
    for line in lines:
        typer.echo(line)
    if not all_ended:
        end_process(exit_code)
    raise typer.Exit(exit_code)
