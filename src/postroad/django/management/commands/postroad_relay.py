"""`manage.py postroad_relay`: `postroad relay` on a database of `DATABASES`."""

from __future__ import annotations

from postroad.django.commands import PostroadCommand

__all__ = ["Command"]


class Command(PostroadCommand):
    """Takes the options of `postroad relay`; `--database` is an alias."""

    help = "As `postroad relay`, whose options it takes; --database is an alias of DATABASES."
    command = "relay"
