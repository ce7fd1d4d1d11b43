"""The command line: assembles the commands. Each is a file in `commands`; settings become options in `options`;
errors become one line in `terminal`.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

import postroad
from postroad.ops.commands.audit import audit
from postroad.ops.commands.cleanup import cleanup
from postroad.ops.commands.config import config
from postroad.ops.commands.console import console
from postroad.ops.commands.consume import consume
from postroad.ops.commands.consumers import consumers
from postroad.ops.commands.dead import dead
from postroad.ops.commands.debezium import debezium
from postroad.ops.commands.demo import demo
from postroad.ops.commands.doctor import doctor
from postroad.ops.commands.forget import forget
from postroad.ops.commands.health import health
from postroad.ops.commands.inbox import inbox
from postroad.ops.commands.key import key
from postroad.ops.commands.message import message
from postroad.ops.commands.messages import messages
from postroad.ops.commands.migrate import migrate
from postroad.ops.commands.pause import pause, resume
from postroad.ops.commands.payloads import payloads
from postroad.ops.commands.relay import relay
from postroad.ops.commands.relays import relays
from postroad.ops.commands.rewind import rewind
from postroad.ops.commands.schema import schema
from postroad.ops.commands.sink import sink
from postroad.ops.commands.status import status
from postroad.ops.commands.top import top
from postroad.ops.commands.why import why
from postroad.ops.logs import log_to_stderr
from postroad.ops.terminal import Command, Group

__all__ = ["app"]

# The sections of the help.
RUN: Final = "Run"
OPERATE: Final = "Operate"

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The transactional outbox and inbox for Python: a row and its event never part ways.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"postroad {postroad.__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="POSTROAD_DEBUG", help="Show tracebacks of errors.", show_default=False)
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Set up logging, until the command's own settings are known."""
    log_to_stderr("warning", debug=debug)


for command in (migrate, relay, consume, schema, console, debezium, health, config, demo):
    app.command(cls=Command, rich_help_panel=RUN)(command)
for command in (status, top, why, messages, relays, consumers, audit, pause, resume, rewind, cleanup, doctor, forget):
    app.command(cls=Command, rich_help_panel=OPERATE)(command)
groups = {"message": message, "dead": dead, "key": key, "sink": sink, "inbox": inbox, "payloads": payloads}
for name, group in groups.items():
    app.add_typer(group, name=name, rich_help_panel=OPERATE)
