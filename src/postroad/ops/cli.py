"""The command line. A command gathers its options, asks the library, and shows the answer; nothing else happens here.

Options that several commands share stand once, at the top. An option that nobody gave is None or has the library's own
default, so that where a value comes from can be decided in one place. Errors become lines in `terminal`.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

import postroad
from postroad.brokers import publisher_for
from postroad.config import DEFAULT_SCHEMA, RelaySettings, checked_schema
from postroad.errors import InvalidSetting
from postroad.ops import insights
from postroad.ops.passwords import checked_url
from postroad.ops.running import carry
from postroad.ops.terminal import Command, log_to_stderr, output
from postroad.relay import Relay
from postroad.stores import dialect_of, store_for
from postroad.stores import migrate as migrate_database
from postroad.stores.migrations import grants_script, migration_script
from postroad.stores.queries import migration_files

if TYPE_CHECKING:
    from postroad.ops.insights import StatusReport
    from postroad.ops.running import Outcome

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The transactional outbox and inbox for Python: a row and its event never part ways.",
)


class LogLevel(StrEnum):
    """How much of the log is shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# -- options that several commands share, or that have a type to be found at run time --------------------------------

Database = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="POSTROAD_DATABASE",
        metavar="URL",
        help="The database with the log: postgresql://user@host/name, or sqlite:///path/to/file.",
    ),
]
Schema = Annotated[
    str,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="Where postroad's tables are: a schema in PostgreSQL, the beginning of their names in SQLite.",
    ),
]

Directory = Annotated[
    Path | None, typer.Option("--directory", metavar="DIR", help="Keep the files there, to look into them.")
]


def _setting(name: str, metavar: str, help: str) -> Any:
    """An option for a relay setting. It is None unless it is given, and its help shows the library's own default."""
    default = next(field.default for field in fields(RelaySettings) if field.name == name)
    shown = _duration(default) if isinstance(default, timedelta) else str(default)
    return typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=help, show_default=shown)


def _duration(value: timedelta) -> str:
    """A duration as a person would give it."""
    seconds = value.total_seconds()
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


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
    log_to_stderr(debug=debug)


# -- migrate ---------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def migrate(
    *,
    database: Database,
    schema: Schema = DEFAULT_SCHEMA,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead, and change nothing.")] = False,
    grants: Annotated[
        str | None,
        typer.Option(
            "--grants",
            metavar="ROLE",
            help="Print what a PostgreSQL role needs in order to add messages, and change nothing.",
        ),
    ] = None,
) -> None:
    """Create or update postroad's tables."""
    checked_schema(schema)  # before a file or a connection comes into being for it
    dialect = dialect_of(checked_url("database", database))
    if grants is not None and dialect != "postgresql":
        raise InvalidSetting("grants is for PostgreSQL; an SQLite file has no roles")
    if sql:
        typer.echo(migration_script(dialect, schema), nl=False)
    if grants is not None:
        typer.echo(grants_script(grants, schema), nl=False)
    if sql or grants is not None:
        return
    applied = asyncio.run(migrate_database(database, schema))
    names = migration_files(dialect)
    for number in applied:
        typer.echo(f"applied {names[number].removesuffix('.sql')}")
    typer.echo(f"schema {schema!r} is {'ready' if applied else 'already up to date'}")


# -- relay -----------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def relay(
    *,
    context: typer.Context,
    database: Database,
    to: Annotated[
        str,
        typer.Option("--to", envvar="POSTROAD_TO", metavar="URL", help="Where the messages go: the broker's URL."),
    ],
    sink: Annotated[
        str, typer.Option("--sink", metavar="NAME", help="The name of this destination; each has its own cursors.")
    ] = "default",
    schema: Schema = DEFAULT_SCHEMA,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when all that is committed has been carried.")
    ] = False,
    lanes: Annotated[
        int | None, _setting("lanes", "N", "How many lanes a new sink gets; fixed when the sink is created.")
    ] = None,
    start: Annotated[
        str | None,
        _setting("start", "oldest|now", "Where a new sink begins: at the oldest message that is kept, or at the next."),
    ] = None,
    ordering: Annotated[
        str | None, _setting("ordering", "key|none", "Keep the order of each key, or none for more speed.")
    ] = None,
    batch_size: Annotated[
        int | None, _setting("batch_size", "N", "The most messages that a lane reads at once.")
    ] = None,
    page_bytes: Annotated[
        int | None, _setting("page_bytes", "N", "What is read at once ends when the payloads reach so many bytes.")
    ] = None,
    poll_interval: Annotated[
        str | None, _setting("poll_interval", "TIME", "How soon a lane that found nothing looks again, at first.")
    ] = None,
    max_idle_backoff: Annotated[
        str | None, _setting("max_idle_backoff", "TIME", "How long that interval grows while nothing comes.")
    ] = None,
    settle_interval: Annotated[
        str | None, _setting("settle_interval", "TIME", "Under load a lane's cursor is saved this often.")
    ] = None,
    outage_backoff: Annotated[
        str | None, _setting("outage_backoff", "TIME", "The longest pause between two tries to reach what is out.")
    ] = None,
    grace: Annotated[
        str | None, _setting("grace", "TIME", "How long a stopping relay waits for the broker's confirms.")
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level",
            case_sensitive=False,
            metavar="LEVEL",
            help="How much of the log is shown, on stderr: debug, info, warning or error.",
        ),
    ] = LogLevel.INFO,
) -> None:
    """Carry every committed message to its destination, until a signal stops it.

    A first SIGTERM or Ctrl-C lets the confirms under way arrive; a second one ends it at once.
    """
    log_to_stderr(log_level, debug=bool(context.find_root().params.get("debug")))
    given = {field.name: context.params.get(field.name) for field in fields(RelaySettings)}
    settings = RelaySettings(**{name: value for name, value in given.items() if value is not None})
    store = store_for(checked_url("database", database), schema=schema)
    publisher = publisher_for(checked_url("to", to))
    _end(asyncio.run(carry(Relay(store, publisher, sink=sink, settings=settings), until_empty=until_empty)))


def _end(outcome: Outcome) -> None:
    typer.echo(str(outcome.summary))
    for refusal in outcome.summary.refusals:
        typer.echo(f"postroad: the message at position {refusal.position} was refused: {refusal.reason}", err=True)
    raise typer.Exit(outcome.exit_code)


# -- status ----------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def status(
    *,
    database: Database,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show how far each lane has come and what still waits."""
    report = asyncio.run(_ask_status(checked_url("database", database), schema))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    elif report.lanes:
        _show_status(report)
    else:
        typer.echo("There is no sink yet: the first `postroad relay` creates one. Until then all messages are kept.")


async def _ask_status(database: str, schema: str) -> StatusReport:
    store = store_for(database, schema=schema)
    try:
        await store.open()
        return await insights.status(store)
    finally:
        await store.close()


def _show_status(report: StatusReport) -> None:
    table = Table(show_footer=True)
    totals = report.totals
    table.add_column("sink", footer="all")
    table.add_column("lane", justify="right", footer=str(totals.lanes))
    table.add_column("position", justify="right")
    table.add_column("pending", justify="right", footer=f"{totals.pending:,}")
    table.add_column("lag (s)", justify="right", footer=f"{totals.lag_seconds:,.1f}")
    table.add_column("owner", overflow="fold")
    for lane in report.lanes:
        numbers = (str(lane.lane), f"{lane.position:,}", f"{lane.pending:,}", f"{lane.lag_seconds:,.1f}")
        table.add_row(Text(lane.sink), *numbers, str(lane.owner or "none"))
    output().print(table)


# -- demo ------------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
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
