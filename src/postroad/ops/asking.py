"""Before something is changed for good, a person is asked, with the count. Questions and progress go to stderr.

Where nobody can answer, only `--yes` is an answer.
"""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from postroad.errors import InvalidSetting
from postroad.ops.given import read_text
from postroad.safe_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DryRun", "Reason", "Who", "Yes", "actor", "given_reason", "needed_reason", "progress", "sure"]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal nothing is changed without it.")]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; `postroad audit` tells it to those who come later.")
]
Who = Annotated[
    str | None, typer.Option("--who", metavar="NAME", help="Who does it. Otherwise the user of this process.")
]


def actor(who: str | None) -> str:
    """Who acts."""
    if who is not None:
        return read_text("--who", who.strip())
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        return f"uid {os.getuid()}"


def needed_reason(reason: str | None) -> str:
    """What is changed for good has a reason. It is asked for where a person can answer."""
    if reason is None and _can_answer():
        reason = typer.prompt("Why? (for `postroad audit`)", err=True)
    if reason is None or not reason.strip():
        raise InvalidSetting("--reason is missing; say why, for those who read `postroad audit` later")
    return read_text("--reason", reason.strip())


def given_reason(reason: str | None) -> str | None:
    """Where a reason is welcome, but not needed."""
    return None if reason is None else read_text("--reason", reason.strip())


def sure(question: str, *, yes: bool) -> None:
    """Ask, unless the answer was given. Whoever is not sure ends the command, and nothing was changed."""
    if yes:
        return
    if not _can_answer():
        raise InvalidSetting(f"{question} Nobody can be asked here: say --yes to do it, --dry-run to only look")
    if not typer.confirm(harmless(question), err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def _can_answer() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many were done so far; only a terminal shows it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task(what, total=total)
        yield lambda so_far: shown.update(task, completed=so_far)
