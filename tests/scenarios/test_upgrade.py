"""A database from before messages in trouble had tables is migrated while an old application goes on adding."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.message import slot_of
from postroad.relay import Relay
from postroad.stores import store_for
from postroad.stores.dialects import POSTGRESQL, SQLITE

# What an application of version 1 runs; it is still there when this one is deployed.
ADD = """
    insert into {table} (id, topic, key, slot, type, payload, content_type, headers)
    values ({places})
    on conflict (id) do nothing
"""
ADD_TO_POSTGRESQL = ADD.format(table="postroad.outbox", places="$1, $2, $3, $4, $5, $6, $7, $8::text::json")
ADD_TO_SQLITE = ADD.format(table="postroad_outbox", places="?, ?, ?, ?, ?, ?, ?, ?")

Add = Callable[[UUID], Awaitable[None]]


def row(id: UUID) -> tuple[Any, ...]:
    return (id, "orders", None, slot_of(None, id), "order.placed", b"{}", "application/json", '{"source": "/shop"}')


def ids(number: int) -> list[UUID]:
    return [uuid4() for _ in range(number)]


class Writer:
    """An application that adds, one transaction after the other, until it is told to stop."""

    def __init__(self, add: Add) -> None:
        self.added: list[UUID] = []
        self._add = add
        self._stopping = False
        self._one_more = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            id = uuid4()
            await self._add(id)
            self.added.append(id)
            self._one_more.set()

    async def one_more(self) -> None:
        """Wait until something was added that was not begun before, or say why not."""
        for _ in range(2):
            self._one_more.clear()
            waiting = asyncio.create_task(self._one_more.wait())
            await asyncio.wait({waiting, self._task}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done(), "the application no longer adds"

    async def stop(self) -> list[UUID]:
        self._stopping = True
        await self._task
        return self.added


async def migrate(url: str) -> None:
    arguments = ("-m", "postroad", "migrate", "--database", url)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    applied, ready = output.decode().split("\n", 1)
    assert (process.returncode, applied) == (0, "applied 0002_trouble")
    assert ready.endswith("schema 'postroad' is ready\n")


async def delivered(url: str) -> list[UUID]:
    broker = MemoryBroker()
    await Relay(store_for(url), broker, settings=RelaySettings(lanes=4, grace="5s")).run_until_empty()
    return [message.id for message in broker.messages]


async def test_postgresql(database: str) -> None:
    async with AsyncExitStack() as stack:

        async def connect() -> Any:
            connection = await asyncpg.connect(database)
            stack.callback(connection.terminate)
            return connection

        def adding_through(connection: Any) -> Add:
            async def add(id: UUID) -> None:
                await connection.execute(ADD_TO_POSTGRESQL, *row(id))

            return add

        first, slow = await connect(), await connect()
        await first.execute(POSTGRESQL.sql_file("0001_log.sql", "postroad"))
        had, waiting, late, later = ids(50), ids(50), uuid4(), uuid4()
        await first.executemany(ADD_TO_POSTGRESQL, [row(id) for id in had])
        await first.execute(
            "insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot, owner, epoch, version) "
            "select 'default', n, n * 256, n * 256 + 255, 50, pg_current_snapshot(), gen_random_uuid(), 3, 7 "
            "from generate_series(0, 3) n"
        )
        await first.executemany(ADD_TO_POSTGRESQL, [row(id) for id in waiting])
        open_transaction = slow.transaction()
        await open_transaction.start()
        await slow.execute(ADD_TO_POSTGRESQL, *row(late))
        writers = [Writer(adding_through(await connect())) for _ in range(2)]
        for writer in writers:
            await writer.one_more()

        # The trigger needs the log for a moment, so the migration makes way for the open transaction, again and again;
        # nobody waits for it meanwhile.
        migrating = asyncio.create_task(migrate(database))
        for _ in range(20):
            for writer in writers:
                await writer.one_more()
        assert not migrating.done()
        await slow.execute(ADD_TO_POSTGRESQL, *row(later))
        await open_transaction.commit()
        await migrating
        for writer in writers:
            await writer.one_more()
        added = [id for writer in writers for id in await writer.stop()]
        assert sorted(await delivered(database)) == sorted([*waiting, *added, late, later])
        assert await first.fetchval("select min_client from postroad.installation") >= 10, (
            "a relay of version 1 is refused: it would publish what is held, and anywhere"
        )


async def test_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    had, waiting = ids(50), ids(50)

    def add(connection: sqlite3.Connection, *these: UUID) -> None:
        connection.executemany(ADD_TO_SQLITE, [(str(id), *row(id)[1:]) for id in these])

    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.executescript(SQLITE.sql_file("0001_log.sql", "postroad"))
        with connection:
            add(connection, *had)
            connection.executemany(
                "insert into postroad_lanes (sink, lane, first_slot, last_slot, position, owner, epoch, version) "
                "values ('default', ?, ?, ?, 50, ?, 3, 7)",
                [(n, n * 256, n * 256 + 255, str(uuid4())) for n in range(4)],
            )
            add(connection, *waiting)

    def add_and_commit(id: UUID) -> None:
        with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
            add(connection, id)

    async def add_in_a_thread(id: UUID) -> None:
        await asyncio.to_thread(add_and_commit, id)

    writer = Writer(add_in_a_thread)
    await writer.one_more()
    await migrate(f"sqlite:///{file}")
    await writer.one_more()
    added = await writer.stop()
    assert sorted(await delivered(f"sqlite:///{file}")) == sorted(waiting + added)
