"""How the command line speaks: results on stdout, logs and errors on stderr, one line per error, never a traceback
that nobody asked for.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from postroad.errors import InvalidSetting, PostroadError
from postroad.ops.passwords import without_passwords

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Command", "log_to_stderr", "output"]

_PIPED_WIDTH = 120


def output() -> Console:
    """Stdout. What is not a terminal gets no control characters, whatever the environment says of colours."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, force_terminal=False, width=_PIPED_WIDTH)


def log_to_stderr(level: str = "warning", *, debug: bool = False) -> None:
    """Show postroad's log from this level on, and everybody else's warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_ForPeople(debug=debug))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("postroad").setLevel(level.upper())


class Command(TyperCommand):
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
            typer.echo(f"postroad: {_in_one_line(_first_of(error))}", err=True)
            raise typer.Exit(2 if isinstance(_first_of(error), InvalidSetting) else 1) from None


def _first_of(error: BaseException) -> BaseException:
    """Lanes run side by side, so what one of them raises comes in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_one_line(error: BaseException) -> str:
    text = " ".join(without_passwords(str(error)).split())
    if isinstance(error, PostroadError):
        return text
    return f"unexpected {type(error).__name__}: {text}; set POSTROAD_DEBUG=1 or use postroad --debug for the traceback"


class _ForPeople(logging.Formatter):
    """A line per record. An exception is named; its traceback is only for those who asked for it."""

    def __init__(self, *, debug: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s")
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """The line, without passwords."""
        return without_passwords(super().format(record))

    def formatException(  # noqa: N802 - logging's own name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """What was raised."""
        return super().formatException(ei) if self._debug else f"{type(ei[1]).__name__}: {ei[1]}"
