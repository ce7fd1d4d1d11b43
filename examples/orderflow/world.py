"""The whole shop on real servers: three databases, RabbitMQ, a mail server, and five processes."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from email import message_from_bytes
from typing import TYPE_CHECKING, Any

import httpx
from aiosmtpd.controller import Controller
from sqlalchemy import text

from examples.orderflow.setup import engine, set_up
from examples.running import Processes, processes, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message
    from pathlib import Path


class Mailbox:
    """What the mail server has taken."""

    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's own name
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"

    def subjects(self, to: str) -> list[str]:
        return [str(mail["Subject"]) for mail in self.mails if mail["To"] == to]


class World:
    """The shop while it is open."""

    def __init__(self, running: Processes, databases: dict[str, str], broker: str, folder: Path) -> None:
        self.running = running
        self.databases = databases
        self.broker = broker
        self.mailbox = Mailbox()
        self._mail_server = Controller(self.mailbox, hostname="127.0.0.1", port=free_port())
        self._http_port = free_port()
        self._folder = folder

    def open(self) -> None:
        set_up(self.databases)
        self._mail_server.start()
        # A queue must be bound before a message is sent: the consumers declare theirs.
        for name in ("inventory", "mail"):
            self.start_consumer(name)
        until(lambda: all("receiving from" in self.running.log(name) for name in ("inventory", "mail")), self.running)
        for name in ("orders", "inventory"):
            self.start_relay(name)
        web = ("uvicorn", "examples.orderflow.orders:app", "--port", str(self._http_port))
        self.running.start("web", *web, **self.environment)
        until(self._web_answers, self.running)

    def close(self) -> None:
        self.running.end()
        self._mail_server.stop()

    @property
    def environment(self) -> dict[str, str]:
        url = {name: database.partition("://")[2] for name, database in self.databases.items()}
        return {
            "ORDERS_DATABASE": f"postgresql+asyncpg://{url['orders']}",
            "INVENTORY_DATABASE": f"postgresql+asyncpg://{url['inventory']}",
            "MAIL_DATABASE": f"postgresql+psycopg://{url['mail']}",
            "BROKER": self.broker,
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(self._mail_server.port),
        }

    def start_consumer(self, name: str) -> None:
        app = f"examples.orderflow.{name}:consumer"
        self.running.start(name, "postroad", "consume", "--app", app, "--log-level", "debug", **self.environment)

    def start_relay(self, name: str) -> None:
        where = {"POSTROAD_DATABASE": self.databases[name], "POSTROAD_TO": self.broker}
        self.running.start(f"relay of {name}", "postroad", "relay", **where)

    def place(self, email: str, product: str = "kettle", **more: Any) -> httpx.Response:
        """Order something, as a browser would."""
        new = {"email": email, "product": product} | more
        return httpx.post(f"http://127.0.0.1:{self._http_port}/orders", json=new, headers={"X-Correlation-Id": email})

    def ask(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        with engine(self.databases[name]).connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def _web_answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._http_port)) == 0


@contextmanager
def opened(server: Any, broker: str, folder: Path) -> Iterator[World]:
    """The shop, on a PostgreSQL server that makes databases and on a broker's virtual host."""
    databases = {name: server.create_database() for name in ("orders", "inventory", "mail")}
    with processes(folder) as running:
        world = World(running, databases, broker, folder)
        try:
            world.open()
            yield world
        finally:
            world.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
