"""How the command line speaks: results on stdout, logs and errors on stderr, one line per error, never a traceback
that nobody asked for.
"""

from __future__ import annotations

import io
import json
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
from postroad.ops.settings import ways_to_set
from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "Group", "as_json", "output", "run", "say_error"]

_PIPED_WIDTH = 120
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has it from click, or from its own copy of click


def output() -> Console:
    """Stdout. What is not a terminal gets no control characters, whatever the environment says of colours."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, force_terminal=False, width=_PIPED_WIDTH)


def as_json(value: Any) -> str:
    """Results for programs. All of it is ASCII, so nothing in it can do anything to a terminal either."""
    return json.dumps(msgspec.to_builtins(value), indent=2)


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the command that was asked for, and say how it ended. What can't be understood is one line, too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal knows every letter
    try:
        return app(arguments, prog_name="postroad", standalone_mode=False) or 0
    except typer.Abort:
        return 1
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which has shown the help in boxes, or has it in plain lines
            typer.echo(error.message, nl=bool(error.message))
        else:
            command = error.ctx.command_path if error.ctx else "postroad"
            say_error(f"{error.format_message().rstrip('.')}; see: {command} --help", 2)
        return 2


def say_error(text: str, code: int) -> None:
    """The last line of a command that failed. Where stderr is JSON, it is JSON as well."""
    line = harmless(" ".join(without_passwords(text).split()))
    if in_json():
        tell(CommandFailed(reason=line, exit_code=code))
    else:
        typer.echo(f"postroad: {line}", err=True)


class _PlainInPipes:
    """Help is in boxes in a terminal, and plain lines elsewhere."""

    rich_markup_mode: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        if not sys.stdout.isatty():
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Group(_PlainInPipes, TyperGroup):
    """Several commands."""


class Command(_PlainInPipes, TyperCommand):
    """A command whose errors are lines: `postroad: <what is wrong>`. A wrong setting exits with 2, all else with 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        debug = bool(ctx.find_root().params.get("debug"))
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer's own ways to end
        except Exception as error:
            if debug:
                typer.echo(without_passwords(traceback.format_exc()), err=True, nl=False)
            code = 2 if isinstance(_first_of(error), InvalidSetting) else 1
            say_error(_in_words(_first_of(error)), code)
            raise typer.Exit(code) from None


def _first_of(error: BaseException) -> BaseException:
    """Lanes run side by side, so what one of them raises comes in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_words(error: BaseException) -> str:
    if isinstance(error, InvalidSetting) and error.settings:
        return f"{error} ({ways_to_set(error.settings)})"
    if isinstance(error, PostroadError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; set POSTROAD_DEBUG=1 or use postroad --debug for the traceback"
