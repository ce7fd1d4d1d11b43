"""The command line: names the commands. Each is a file in `commands`, imported when it is called, so that no command
waits for what others need; settings become options in `options`; errors become one line in `terminal`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
from typer.main import get_command, get_group

from postroad.ops.logs import log_to_stderr
from postroad.ops.terminal import Command, Group
from postroad.version import __version__

__all__ = ["app"]

# The commands in the order of the help, each with the first paragraph of its own help.
_RUN: Final = {
    "migrate": "Create or update postroad's tables.",
    "relay": "Publish every committed message to its destination, until a signal stops it.",
    "consume": "Handle every message of a consumer's queue, until a signal stops it.",
    "schema": "Write the JSON Schema of all events of a module, or compare it with an earlier one.",
    "console": "Serve the console on this machine, and print an address that signs in once.",
    "debezium": "Print a configuration for Debezium's connector, as Kafka Connect takes it, and check what it needs.",
    "health": "Ask the relay or consumer that serves metrics on this port whether it is ready. Fails if it is not.",
    "config": "Show every setting, its value and where it comes from. Takes the same options as `postroad relay`.",
    "demo": "Run an example: a shop, a relay that is killed twice, and an audit. Needs no server and ends by itself.",
}
_OPERATE: Final = {
    "status": "Show pending, failing, held and dead messages, throughput, and what needs attention.",
    "top": "Show sinks, lanes, rates, lag, notices and the audit, live.",
    "why": "Explain why a message is not sent, or what became of it: one answer per sink, and what to do.",
    "messages": "List messages, newest first, one line per sink.",
    "relays": "List the relays: sink, state, lanes, host, process id, start, last heartbeat and owner id.",
    "consumers": (
        "List the consumers: state, host, process id, heartbeat, what they have done since their start, and source."
    ),
    "audit": "List what operators changed: when, who, what and why; newest first.",
    "pause": "Publish nothing to a sink until `postroad resume`. Messages wait; running relays keep running.",
    "resume": "Publish to a paused sink again.",
    "rewind": "Re-publish retained messages that were already delivered to this sink, with a header that marks them.",
    "cleanup": (
        "Delete old messages that every sink has had, in small batches. Undelivered messages stay, whatever their age."
    ),
    "doctor": "Check the database, relays, broker, inbox and settings, and show what is wrong and how to fix it.",
    "forget": "Erase the delivered messages of a key: payloads, headers, errors, and the key in the audit.",
    "message": "Show, skip or poison a message.",
    "dead": "Inspect, retry or drop dead messages, or restore dropped ones.",
    "key": "List held keys; hold, release or skip a key's messages.",
    "sink": "List sinks and their destinations; retarget, filter or remove a sink, or adopt its replication slot.",
    "inbox": "What consumers have received.",
    "payloads": "Payloads that are stored elsewhere than in the log.",
}
_SHARES_A_FILE: Final = {"resume": "pause"}

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
        typer.echo(f"postroad {__version__}")
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


class _OnCall(Command):
    """A command, or a group of commands, whose module is imported when it is called."""

    def loaded(self) -> Any:
        """The command itself, with its options."""
        name = str(self.name)
        module = importlib.import_module(f"postroad.ops.commands.{_SHARES_A_FILE.get(name, name)}")
        found = getattr(module, name)
        if isinstance(found, typer.Typer):
            return get_group(found)
        alone = typer.Typer(add_completion=False)
        alone.command(cls=Command)(found)
        return get_command(alone)

    def make_context(self, *given: Any, **named: Any) -> Any:
        return self.loaded().make_context(*given, **named)


def _called_instead() -> None:
    """Stands in for a command: typer wants a function, and `_OnCall` never calls it."""


for _section, _commands in {"Run": _RUN, "Operate": _OPERATE}.items():
    for _name, _help in _commands.items():
        app.command(_name, cls=_OnCall, help=_help, rich_help_panel=_section)(_called_instead)
