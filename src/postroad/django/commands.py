"""What the commands of `manage.py` have in common: they are those of `postroad`, with Django's database and schema."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from postroad.config import DEFAULT_SCHEMA
from postroad.django.databases import database_url
from postroad.errors import InvalidSetting
from postroad.ops import main

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["PostroadCommand"]


class PostroadCommand(BaseCommand):
    """Runs a command of `postroad`. All options but Django's own and `--database` are that command's."""

    command = ""
    """Empty if the arguments name it."""
    requires_system_checks: list[str] | tuple[str, ...] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The one option that is not the command's own."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="An alias of DATABASES.")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Django's options, and then those of the command."""
        super().print_help(prog_name, subcommand)
        self._call("--help")

    def run_from_argv(self, argv: list[str]) -> None:
        """As `manage.py` calls it. Django has read its own options already."""
        # Without argparse's --help, which would show Django's options alone.
        parser = self.create_parser(argv[0], argv[1], allow_abbrev=False, add_help=False)
        known, rest = parser.parse_known_args(argv[2:])
        if {"-h", "--help"} & set(rest):
            super().print_help(argv[0], argv[1])
            sys.exit(self._call(*rest))
        try:
            code = self._run(known.database, rest)
        except CommandError as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            sys.exit(error.returncode)
        sys.exit(code)

    def handle(self, *_: Any, **options: Any) -> None:
        """As `call_command` calls it: with a database and no other options."""
        if code := self._run(options["database"], []):
            raise CommandError(f"postroad {self.command}".rstrip() + " has failed", returncode=code)

    def _run(self, alias: str, arguments: Sequence[str]) -> int:
        if alias not in connections:
            raise CommandError(f"--database is {alias!r}; DATABASES has {', '.join(map(repr, connections))}")
        connection = connections[alias]
        try:
            # As a variable: an option with a password in it would be warned of.
            os.environ["POSTROAD_DATABASE"] = database_url(connection.vendor, connection.settings_dict)
        except InvalidSetting as error:
            raise CommandError(f"DATABASES[{alias!r}]: {error}") from None
        # The schema that `manage.py migrate` has made, also where a file or a variable names another.
        os.environ["POSTROAD_SCHEMA"] = getattr(settings, "POSTROAD_SCHEMA", DEFAULT_SCHEMA)
        return self._call(*arguments)

    def _call(self, *arguments: str) -> int:
        return _postroad(*filter(None, (self.command,)), *arguments)


def _postroad(*arguments: str) -> int:
    """How it ended."""
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
