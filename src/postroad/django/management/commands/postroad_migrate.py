"""`manage.py postroad_migrate`: `postroad migrate` on a database of `DATABASES`."""

from __future__ import annotations

from postroad.django.commands import PostroadCommand

__all__ = ["Command"]


class Command(PostroadCommand):
    """Takes the options of `postroad migrate`; `--database` is an alias."""

    help = "As `postroad migrate`, whose options it takes; --database is an alias of DATABASES."
    command = "migrate"
