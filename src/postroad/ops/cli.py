"""The command line. A command gathers its options, asks the library, and shows the answer; nothing else happens here.

Settings come as `settings`, from wherever they were given (see `options`); only what is no setting is a parameter here.
Errors become lines in `terminal`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import postroad
from postroad.brokers import publisher_for
from postroad.errors import InvalidSetting
from postroad.ops.apps import consumer_named
from postroad.ops.commands import LOOK_AND_ACT
from postroad.ops.commands.changing import key, message
from postroad.ops.commands.choosing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.commands.dead import dead
from postroad.ops.commands.doctor import doctor
from postroad.ops.commands.forget import forget
from postroad.ops.commands.looking import looking
from postroad.ops.commands.relays import relays
from postroad.ops.commands.sinks import sink
from postroad.ops.commands.steering import steering
from postroad.ops.logs import log_to_stderr
from postroad.ops.options import ALL, FOR_ANY_DATABASE, takes
from postroad.ops.running import carry, end_process, run, serve
from postroad.ops.settings import all_settings, shown
from postroad.ops.terminal import Command, Group, output
from postroad.ops.terminal import as_json as in_json
from postroad.relay import Relay
from postroad.stores import dialect_of, store_for
from postroad.stores import migrate as migrate_database
from postroad.stores.grants import grants_script

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher
    from postroad.consumer import Consumer
    from postroad.ops.running import Outcome
    from postroad.ops.settings import Settings

__all__ = ["app"]

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The transactional outbox and inbox for Python: a row and its event never part ways.",
)


_SOURCES = ("default", "file", "environment", "command line")

Directory = Annotated[
    Path | None, typer.Option("--directory", metavar="DIR", help="Keep the files there, to look into them.")
]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"postroad {postroad.__version__}")
        raise typer.Exit


@app.callback()
def whatever_the_command(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="POSTROAD_DEBUG", help="Show tracebacks of errors.", show_default=False)
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Get ready for any command."""
    log_to_stderr("warning", debug=debug)


# -- migrate ---------------------------------------------------------------------------------------------------------


@app.command(cls=Command, rich_help_panel="Run")
@takes(*FOR_ANY_DATABASE)
def migrate(
    *,
    settings: Settings,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead, and change nothing.")] = False,
    grants: Annotated[
        list[str] | None,
        typer.Option(
            "--grants",
            metavar="[KIND=]ROLE",
            help="Print what a PostgreSQL role needs as an application, relay, operator or reader, or for payloads, "
            "and change nothing. May be given several times.",
        ),
    ] = None,
) -> None:
    """Create or update postroad's tables."""
    database, schema = settings.needed("database"), settings.command.schema
    dialect = dialect_of(database)
    if grants and not dialect.has_roles:
        raise InvalidSetting(f"grants is for a database with roles, such as PostgreSQL; {dialect.title} has none")
    if sql:
        typer.echo(dialect.migration_script(schema), nl=False)
    for grant in grants or ():
        kind, _, role = grant.rpartition("=")
        typer.echo(grants_script(role, schema, kind=kind or "application"), nl=False)
    if sql or grants:
        return
    applied = asyncio.run(migrate_database(database, schema))
    names = dialect.migrations
    for number in applied:
        typer.echo(f"applied {names[number].removesuffix('.sql')}")
    typer.echo(f"schema {schema!r} is {'ready' if applied else 'already up to date'}")


# -- relay -----------------------------------------------------------------------------------------------------------


@app.command(cls=Command, rich_help_panel="Run")
@takes(*ALL)
def relay(
    *,
    settings: Settings,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when all that is committed has been carried.")
    ] = False,
) -> None:
    """Carry every committed message to its destination, until a signal stops it.

    A first SIGTERM or Ctrl-C lets the confirms under way arrive; a second one ends it at once.
    """
    store = store_for(settings.needed("database"), schema=settings.command.schema, direct=settings.command.direct)
    publisher, name, consumer = _destination(settings)
    relay = Relay(store, publisher, sink=name, settings=settings.relay)
    outcome, all_ended = run(carry(relay, until_empty=until_empty))
    _end(outcome, all_ended=all_ended and not (consumer and consumer.unfinished))


def _destination(settings: Settings) -> tuple[Publisher, str, Consumer[Any] | None]:
    """A broker, or a consumer's handlers in this process, which are a sink of the consumer's name by default."""
    to, app = (_SOURCES.index(settings.origins[name].source) for name in ("to", "app"))
    if to == app and settings.command.app is not None:
        raise InvalidSetting(
            "to and app are both given; messages go to one of them, and another relay to the other",
            settings=("to", "app"),
        )
    if settings.command.app is None or to > app:  # the later wins
        url = settings.needed("to")
        return publisher_for(url, settings.for_broker(url)), settings.command.sink, None
    consumer = consumer_named(settings.command.app)
    name = consumer.name if settings.origins["sink"].source == "default" else settings.command.sink
    return consumer.publisher(relay=settings.relay), name, consumer


def _end(outcome: Outcome, *, all_ended: bool = True) -> None:
    typer.echo(str(outcome.summary))
    if not all_ended:
        end_process(outcome.exit_code)
    raise typer.Exit(outcome.exit_code)


# -- consume ---------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
@takes("app", "log_level", "log_format")
def consume(
    *,
    settings: Settings,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when all that is in the queue has been handled.")
    ] = False,
) -> None:
    """Handle every message of a consumer's queue, until a signal stops it.

    A first SIGTERM or Ctrl-C lets handlers end and gives back what was not begun; a second one ends it at once.
    """
    consumer = consumer_named(settings.needed("app"))
    summary, all_ended = run(serve(consumer, relay=settings.relay, until_empty=until_empty))
    typer.echo(str(summary))
    code = 1 if until_empty and summary.dead else 0
    if summary.abandoned or not all_ended:
        end_process(code)
    raise typer.Exit(code)


# -- operating -------------------------------------------------------------------------------------------------------

app.add_typer(looking)
app.add_typer(steering)
app.add_typer(message, name="message", rich_help_panel=LOOK_AND_ACT)
app.add_typer(dead, name="dead", rich_help_panel=LOOK_AND_ACT)
app.add_typer(key, name="key", rich_help_panel=LOOK_AND_ACT)
app.add_typer(sink, name="sink", rich_help_panel=LOOK_AND_ACT)


app.command(cls=Command, rich_help_panel=LOOK_AND_ACT)(relays)
app.command(cls=Command, rich_help_panel=LOOK_AND_ACT)(doctor)
app.command(cls=Command, rich_help_panel=LOOK_AND_ACT)(forget)


# -- config ----------------------------------------------------------------------------------------------------------


@app.command(cls=Command, rich_help_panel="Run")
@takes(*ALL)
def config(*, settings: Settings, as_json: AsJson = False) -> None:
    """Show every setting, its value, and where the value comes from. Takes the options of `relay`, to try them out."""
    if as_json:
        typer.echo(in_json(_config_report(settings)))
    else:
        _show_config(settings)


def _config_report(settings: Settings) -> dict[str, object]:
    return {
        "file": None if settings.file is None else str(settings.file),
        "settings": {
            name: {
                "value": shown(setting, settings.value(name)),
                "from": settings.origins[name].source,
                "where": settings.origins[name].where,
                "used": setting.used,
            }
            for name, setting in all_settings().items()
        },
    }


def _show_config(settings: Settings) -> None:
    """Aligned, but never cut or folded, so that it can be searched line by line."""
    rows = []
    for name, setting in all_settings().items():
        value = shown(setting, settings.value(name))
        note = "" if setting.used else " (checked, not used yet)"
        rows.append((name, "(not set)" if value is None else str(value), f"{settings.origins[name]}{note}"))
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, text, origin in rows:
        typer.echo(f"{name:<{names}}  {text:<{values}}  {origin}")


# -- demo ------------------------------------------------------------------------------------------------------------


@app.command(cls=Command, rich_help_panel="Run")
def demo(
    *,
    orders: Annotated[
        int, typer.Option("--orders", metavar="N", min=20, max=5000, help="How many orders customers try to place.")
    ] = 400,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Repeat a run: the same customers, the same roll-backs.")
    ] = None,
    sabotage: Annotated[
        bool,
        typer.Option("--sabotage", help="Make the classic mistake instead: publish by yourself, before the commit."),
    ] = False,
    directory: Directory = None,
) -> None:
    """See it work: a shop, a relay that is killed twice, and an audit. Needs no server and ends by itself."""
    from postroad.ops.demo.story import tell

    raise typer.Exit(tell(output(), orders=orders, seed=seed, sabotage=sabotage, directory=directory))
