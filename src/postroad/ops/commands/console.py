"""`postroad console`: a web console on this machine, for one or several databases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.errors import InvalidSetting
from postroad.events import PasswordInArguments
from postroad.listeners import tell
from postroad.ops.apps import consumer_named
from postroad.ops.console_server import DEFAULT_HOST, DEFAULT_PORT, listen, serve_console
from postroad.ops.options import takes
from postroad.ops.parsing import Who  # noqa: TC001 - options are read from annotations
from postroad.ops.prompts import actor
from postroad.ops.settings import all_settings
from postroad.safe_text import has_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.settings import Settings

__all__ = ["console"]

_ROLES = ("viewer", "operator", "admin")


@takes("database_password_file", "schema", "log_level", "log_format")
def console(
    *,
    settings: Settings,
    databases: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            metavar="[NAME=]URL",
            help=all_settings()["database"].help,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; there is no TLS.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="The port to listen on; 0: any that is free.")
    ] = DEFAULT_PORT,
    apps: Annotated[
        list[str] | None,
        typer.Option("--app", metavar="MODULE:NAME", help=all_settings()["app"].help),
    ] = None,
    role: Annotated[
        str, typer.Option("--role", metavar="viewer|operator|admin", help="What may be done in this console.")
    ] = "admin",
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Allow to read payloads; each look is written into the audit.")
    ] = False,
    who: Who = None,
) -> None:
    """Serve the console on this machine, and print an address that signs in once.

    Others reach it through a tunnel such as ssh -L, or in an application that it is mounted in.
    """
    if role not in _ROLES:
        raise InvalidSetting(f"--role is {role!r}; it must be {', '.join(_ROLES)}")
    urls = _urls(settings, databases)
    consumers = [consumer_named(app) for app in apps or ()]
    name = actor(who)
    listener = listen(host, port)
    with listener:
        asyncio.run(
            serve_console(
                urls,
                listener,
                schema=settings.command.schema,
                who=name,
                role=role,
                payloads=payloads,
                consumers=consumers,
            )
        )


def _urls(settings: Settings, databases: Sequence[str] | None) -> Sequence[str]:
    if not databases:
        return [settings.needed("database")]
    if any(has_password(each) for each in databases):
        tell(PasswordInArguments(option="--database", instead="POSTROAD_DATABASE, or a passfile"))
    return databases
