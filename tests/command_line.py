"""The command line with all its commands, which it imports one by one, when they are called."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from postroad.ops.cli import app

__all__ = ["command_line"]


def command_line() -> Any:
    """The group `postroad`, in which each command has its options, and each group its commands."""
    group: Any = get_command(app)
    group.commands = {name: command.loaded() for name, command in group.commands.items()}
    return group
