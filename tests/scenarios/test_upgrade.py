"""A database is migrated to a newer schema, which the tests make up, while an application goes on adding.

The application and the relay here are the older code: they know the schema of the package, and the database has a newer
one afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from postroad import ClientTooOld
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.message import slot_of
from postroad.relay import Relay
from postroad.stores import store_for
from postroad.stores.dialects import DIALECTS
from postroad.stores.postgresql import migrate_postgresql
from postroad.stores.sqlite import migrate_sqlite

# What the application runs.
ADD = """
    insert into {table} (id, topic, key, slot, type, payload, content_type, headers)
    values ({places})
"""
ADD_TO_POSTGRESQL = ADD.format(table="postroad.outbox", places="$1, $2, $3, $4, $5, $6, $7, $8::text::json")
ADD_TO_SQLITE = ADD.format(table="postroad_outbox", places="?, ?, ?, ?, ?, ?, ?, ?")

# A migration that needs the log for itself, for a moment, and one after which older code is refused.
NEWER = {
    "postgresql": {
        "0002_tenant.sql": """
            alter table {schema}.outbox add column tenant text;
            create table {schema}.tenants (name text primary key);
            insert into {schema}.migrations (version) values (2);
        """,
        "0003_required.sql": """
            update {schema}.installation set min_client = 3;
            insert into {schema}.migrations (version) values (3);
        """,
    },
    "sqlite": {
        "0002_tenant.sql": """
            alter table {schema}_outbox add column tenant text;
            create table {schema}_tenants (name text primary key);
            insert into {schema}_migrations (version) values (2);
        """,
        "0003_required.sql": """
            update {schema}_installation set min_client = 3;
            insert into {schema}_migrations (version) values (3);
        """,
    },
}
# The command line of the newer version.
NEWER_POSTROAD = """
import sys
from pathlib import Path
from postroad.stores.dialects import DIALECTS
for dialect in DIALECTS.values():
    dialect.folder = Path(sys.argv[1]) / dialect.name
from postroad.ops import main
main(sys.argv[2:])
"""

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


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The SQL files of a newer version: those of the package, and two more migrations for each database."""
    folder = tmp_path / "newer"
    for name, dialect in DIALECTS.items():
        shutil.copytree(str(dialect.folder), folder / name)
        for file, text in NEWER[name].items():
            (folder / name / file).write_text(text)
    return folder


def up_to(number: int, newer: Path) -> None:
    """Leave only the migrations through a number."""
    for file in newer.glob("*/0*.sql"):
        if int(file.name[:4]) > number:
            file.unlink()


async def migrate(url: str, newer: Path, *applied: str) -> None:
    """`postroad migrate` of the newer version, which must apply these migrations."""
    arguments = ("-c", NEWER_POSTROAD, str(newer), "migrate", "--database", url)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    lines = [*(f"applied {name}" for name in applied), "schema 'postroad' is ready"]
    assert (process.returncode, output.decode().splitlines()) == (0, lines)


async def delivered(url: str) -> list[UUID]:
    broker = MemoryBroker()
    await Relay(store_for(url), broker, settings=RelaySettings(lanes=4, grace="5s")).run_until_empty()
    return [message.id for message in broker.messages]


async def test_postgresql(database: str, newer: Path) -> None:
    up_to(2, newer)
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
        await migrate_postgresql(database)
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

        # The migration needs the log for itself for a moment, so it makes way for the open transaction, again and
        # again; no writer waits for it meanwhile.
        migrating = asyncio.create_task(migrate(database, newer, "0002_tenant"))
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
        assert await first.fetchval("select count(tenant) from postroad.outbox") == 0, "the column is there"


async def test_sqlite(tmp_path: Path, newer: Path) -> None:
    up_to(2, newer)
    file = tmp_path / "shop.sqlite"
    had, waiting = ids(50), ids(50)

    def add(connection: sqlite3.Connection, *these: UUID) -> None:
        connection.executemany(ADD_TO_SQLITE, [(str(id), *row(id)[1:]) for id in these])

    migrate_sqlite(file)
    with closing(sqlite3.connect(file)) as connection, connection:
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
    await migrate(f"sqlite:///{file}", newer, "0002_tenant")
    await writer.one_more()
    added = await writer.stop()
    assert sorted(await delivered(f"sqlite:///{file}")) == sorted(waiting + added)


async def older_code_is_refused(url: str, newer: Path) -> None:
    await migrate(url, newer, "0001_initial", "0002_tenant", "0003_required")
    with pytest.raises(ClientTooOld, match="asks for a client of version 3 and this one knows 1"):
        await delivered(url)


async def test_older_code_is_refused_when_the_newer_schema_asks_for_more(database: str, newer: Path) -> None:
    await older_code_is_refused(database, newer)


async def test_older_code_is_refused_in_a_file_too(tmp_path: Path, newer: Path) -> None:
    await older_code_is_refused(f"sqlite:///{tmp_path / 'shop.sqlite'}", newer)
