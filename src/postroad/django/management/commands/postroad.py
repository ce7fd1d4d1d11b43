"""`manage.py postroad …`: any command of `postroad`, on a database of `DATABASES`."""

from __future__ import annotations

from postroad.django.commands import PostroadCommand

__all__ = ["Command"]


class Command(PostroadCommand):
    """Takes a command of `postroad` and its options; `--database` is an alias."""

    help = "Any command of `postroad`, such as `dead list`, with its options; --database is an alias of DATABASES."
