"""Questions to the operator: a confirmation, a reason. Questions and progress go to stderr.

Without a terminal, only `--yes` confirms a change.
"""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from postroad.errors import InvalidSetting
from postroad.ops.parsing import parse_text
from postroad.safe_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["actor", "confirm", "optional_reason", "progress", "required_reason"]


def actor(who: str | None) -> str:
    """The name for the audit: the one that was given, or the user of this process."""
    if who is not None:
        return parse_text("--who", who.strip())
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user id may have no name
        return f"uid {os.getuid()}"


def required_reason(reason: str | None) -> str:
    """The reason. If it was not given, ask for it on a terminal, or raise InvalidSetting."""
    if reason is None and _has_terminal():
        reason = typer.prompt("Reason (for `postroad audit`)", err=True)
    if reason is None or not reason.strip():
        raise InvalidSetting("--reason is missing; `postroad audit` shows it to other operators")
    return parse_text("--reason", reason.strip())


def optional_reason(reason: str | None) -> str | None:
    return None if reason is None else parse_text("--reason", reason.strip())


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`. If the answer is no, end the command with exit code 1; nothing has been changed."""
    if yes:
        return
    if not _has_terminal():
        raise InvalidSetting(
            f"{question} Without a terminal, confirm it with --yes, or see what it would do with --dry-run"
        )
    if not typer.confirm(harmless(question), err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, on a terminal. The function it yields takes the number of messages done so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)
        yield lambda so_far: shown.update(task, completed=so_far)
