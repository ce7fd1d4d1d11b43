"""`manage.py postroad_consume`: `postroad consume` on a database of `DATABASES`."""

from __future__ import annotations

from postroad.django.commands import PostroadCommand

__all__ = ["Command"]


class Command(PostroadCommand):
    """Takes the options of `postroad consume`; `--database` is an alias."""

    help = "As `postroad consume`, whose options it takes; --database is an alias of DATABASES."
    command = "consume"
