"""`postroad relay`: run a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.brokers.registry import broker_for, publisher_for
from postroad.errors import InvalidSetting
from postroad.ops.apps import consumer_named
from postroad.ops.options import ALL, takes
from postroad.ops.process import end_process, run_in_loop, run_relay
from postroad.relay import Relay
from postroad.stores import store_for

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher
    from postroad.consumer import Consumer
    from postroad.ops.process import Outcome
    from postroad.ops.settings import Settings

__all__ = ["relay"]

_SOURCES = ("default", "file", "environment", "command line")


@takes(*ALL)
def relay(
    *,
    settings: Settings,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Exit when every committed message has been published.")
    ] = False,
) -> None:
    """Publish every committed message to its destination, until a signal stops it.

    The first SIGTERM or Ctrl-C waits for outstanding confirms; the second ends it at once.
    """
    store = store_for(settings.needed("database"), schema=settings.command.schema, direct=settings.command.direct)
    publisher, name, consumer = _destination(settings)
    relay = Relay(store, publisher, sink=name, settings=settings.relay)
    outcome, all_ended = run_in_loop(run_relay(relay, until_empty=until_empty))
    _end(outcome, all_ended=all_ended and not (consumer and consumer.unfinished))


def _destination(settings: Settings) -> tuple[Publisher, str, Consumer[Any] | None]:
    """The publisher and the sink: a broker, or the handlers of a consumer in this process, whose sink has the
    consumer's name unless another was given.
    """
    to, app = (_SOURCES.index(settings.origins[name].source) for name in ("to", "app"))
    if to == app and settings.command.app is not None:
        raise InvalidSetting(
            "to and app are both given; a relay has one destination, so run another relay for the other",
            settings=("to", "app"),
        )
    if settings.command.app is None or to > app:  # the later source wins
        url = settings.needed("to")
        if broker_for(url, "to").in_process:
            raise InvalidSetting(
                f"to is {url}, whose queues end with this process, and every message with them; "
                "it is for tests and for a relay inside an application",
                settings=("to",),
            )
        return publisher_for(url, settings.for_broker(url)), settings.command.sink, None
    consumer = consumer_named(settings.command.app)
    name = consumer.name if settings.origins["sink"].source == "default" else settings.command.sink
    return consumer.publisher(relay=settings.relay), name, consumer


def _end(outcome: Outcome, *, all_ended: bool = True) -> None:
    typer.echo(str(outcome.summary))
    if not all_ended:
        end_process(outcome.exit_code)
    raise typer.Exit(outcome.exit_code)
