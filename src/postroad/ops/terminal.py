"""Output of the command line: results on stdout, logs and errors on stderr. An error is one line; --debug adds the
traceback.
"""

from __future__ import annotations

import io
import json
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from postroad.errors import InvalidSetting, PostroadError
from postroad.events import CommandFailed
from postroad.listeners import tell
from postroad.ops.logs import in_json
from postroad.ops.settings import all_settings, ways_to_set
from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "Group", "as_json", "output", "print_error", "run"]

_PIPED_WIDTH = 120
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has it from click, or from its own copy of click


def output() -> Console:
    """Stdout. A pipe gets no control characters, whatever the environment says about colours."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, force_terminal=False, width=_PIPED_WIDTH)


def as_json(value: Any, *, compact: bool = False) -> str:
    """JSON, in ASCII only, so that it can't contain terminal control characters. `compact`: on one line."""
    return json.dumps(msgspec.to_builtins(value), indent=None if compact else 2)


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Wrong usage is one line on stderr, like any error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can print every character
    try:
        return app(arguments, prog_name="postroad", standalone_mode=False) or 0
    except typer.Abort:
        return 1
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed already, or is the message
            typer.echo(error.message, nl=bool(error.message))
        else:
            command = error.ctx.command_path if error.ctx else "postroad"
            print_error(f"{error.format_message().rstrip('.')}; see: {command} --help", 2)
        return 2


def print_error(text: str, code: int) -> None:
    """Print the error that ends a command; as a JSON line if the log is JSON."""
    line = harmless(" ".join(without_passwords(text).split()))
    if in_json():
        tell(CommandFailed(reason=line, exit_code=code))
    else:
        typer.echo(f"postroad: {line}", err=True)


class _PlainInPipes:
    """Help is drawn in boxes on a terminal, and as plain lines in a pipe."""

    rich_markup_mode: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if not sys.stdout.isatty():
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Group(_PlainInPipes, TyperGroup):
    """A group of commands."""


class Command(_PlainInPipes, TyperCommand):
    """A command whose errors are one line, `postroad: <error>`. A wrong setting exits with 2, other errors with 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """An option whose metavar is in brackets may be given without a value: its value is then empty."""
        names = {name for each in self.params if re.fullmatch(r"\[\w+\]", each.metavar or "") for name in each.opts}
        given: list[str] = []
        for at, arg in enumerate(args):
            has_value = at + 1 < len(args) and not args[at + 1].startswith("-")
            given += [arg, ""] if arg in names and not has_value else [arg]
        return super().parse_args(ctx, given)

    def invoke(self, ctx: Any) -> Any:
        debug = bool(ctx.find_root().params.get("debug"))
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer's own ways to end
        except Exception as error:
            if debug:
                typer.echo(without_passwords(traceback.format_exc()), err=True, nl=False)
            code = 2 if isinstance(_first_of(error), InvalidSetting) else 1
            print_error(_error_text(_first_of(error)), code)
            raise typer.Exit(code) from None


def _first_of(error: BaseException) -> BaseException:
    """The first error of a group: lanes run concurrently, so their errors are raised in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _error_text(error: BaseException) -> str:
    # A consumer has settings that are given in its code alone.
    if isinstance(error, InvalidSetting) and error.settings and all_settings().keys() >= set(error.settings):
        return f"{error} ({ways_to_set(error.settings)})"
    if isinstance(error, PostroadError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; set POSTROAD_DEBUG=1 or use postroad --debug for the traceback"
