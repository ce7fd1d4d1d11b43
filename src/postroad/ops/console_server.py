"""Serves a console on this machine until a signal stops it, and prints the address to open, with its one-time token."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import typer

from postroad.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from postroad.consumer import Consumer

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "listen", "serve_console"]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8420
LAST_SECONDS: Final = 2
"""How long open streams are waited for at the end."""
_ALL: Final = {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
_OF_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


def listen(host: str, port: int) -> socket.socket:
    """Bind the address before anything else is done. Raises InvalidSetting if it can't be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        raise InvalidSetting(f"--host {host} --port {port} can't be used: {error}; choose another --port") from None
    return listener


async def serve_console(
    databases: Iterable[str],
    listener: socket.socket,
    *,
    schema: str,
    who: str,
    role: str = "admin",
    payloads: bool = False,
    consumers: Sequence[Consumer[Any]] = (),
) -> None:
    """Serve until SIGTERM or Ctrl-C. The one-time token signs in this user."""
    try:
        import uvicorn

        from postroad.console import Console, Role, SignIn, User
    except ModuleNotFoundError as error:
        raise MissingExtra("postroad console", "console") from error

    class Server(uvicorn.Server):
        """Uvicorn, whose signals are ours: it would end the process by the signal, before all is closed."""

        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            typer.echo(f"Open {address(host, port)}sign-in?token={sign_in.token}")
            typer.echo("The address works once. Ctrl-C ends the console.")

    host, port = listener.getsockname()[:2]
    sign_in = SignIn(User(who, Role(role), payloads))
    hosts = None if host in _ALL else {host, *_OF_THIS_MACHINE}
    console = Console(databases, auth=sign_in, schema=schema, consumers=consumers, hosts=hosts)
    server = Server(
        uvicorn.Config(
            console,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=LAST_SECONDS,
            ws="none",
        )
    )
    _stop_by_signals(server)
    await server.serve(sockets=[listener])


def address(host: str, port: int) -> str:
    """The address of the console, as a browser on this machine takes it."""
    shown = "127.0.0.1" if host in _ALL else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def _stop_by_signals(server: Any) -> None:
    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop)
