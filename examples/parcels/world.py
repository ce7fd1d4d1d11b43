"""The whole service on a real PostgreSQL: parcels, and three instances that send messages to their recipients."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from examples.parcels.parcels import Base, Session, connect
from examples.running import Processes, processes, until
from postroad.stores import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTANCES = ("instance 1", "instance 2", "instance 3")


class World:
    """The service while it is open."""

    def __init__(self, running: Processes, database: str) -> None:
        self.running = running
        self.database = database

    def open(self) -> None:
        asyncio.run(migrate(self.database))
        connect(self.database)
        with Session.begin() as session:
            Base.metadata.create_all(session.connection())

    def start_instances(self) -> None:
        for name in INSTANCES:
            self.running.start(name, "examples.parcels.instance", DATABASE=self.database, INSTANCE=name)

    def until_shared(self) -> None:
        """Wait until each instance owns two of the six lanes."""
        shares = "select count(*) from postroad.lanes where owner is not null group by owner"
        until(lambda: self.ask(shares) == [(2,)] * len(INSTANCES), self.running)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with Session() as session:
            return [tuple(row) for row in session.execute(text(sql))]

    def state(self, message: object) -> str | None:
        """What has become of a message; None if it is not in the log."""
        found = self.ask(f"select state from postroad.outbox_status where id = '{message}'")  # noqa: S608 - our own id
        return str(found[0][0]) if found else None

    def calls(self) -> dict[str, int]:
        """How often each instance has called the function that sends a text."""
        return dict(self.ask("select instance, count(*) from texts group by 1 order by 1"))

    def until_sent(self, number: int) -> None:
        until(lambda: sum(self.calls().values()) >= number, self.running)


@contextmanager
def opened(database: str, folder: Path) -> Iterator[World]:
    with processes(folder) as running:
        world = World(running, database)
        world.open()
        try:
            yield world
        finally:
            Session.kw["bind"].dispose()
