"""The sweep deletes payloads that no message refers to, and none that a transaction may still commit."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroad import InvalidSetting, Outbox, PayloadsUnavailable, StoreUnavailable
from postroad.admin import Admin, By, Count
from postroad.codecs import ClaimCheck, payload_store
from postroad.stores.admin import payloads as sweeping
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.payload_stores import Payloads
from tests.services.postgresql import PostgreSQL

BY = By("anna", "a test")
AT_ONCE = timedelta(0)
LARGE = b"0" * 10_000


class Place:
    """A migrated database: how applications and operators connect to it."""

    def __init__(self, connect: Callable[[], Any], database: Callable[[], Any]) -> None:
        self.connect = connect
        self._database = database

    @asynccontextmanager
    async def admin(self, watched: Callable[[Any], Any] = lambda database: database) -> AsyncIterator[Admin]:
        async with Admin(watched(self._database())) as admin:
            yield admin


@pytest.fixture(params=["postgresql15", "postgresql18", "sqlite"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        path = tmp_path / "shop.sqlite"
        migrate_sqlite(path)
        return Place(lambda: closing(sqlite3.connect(path)), lambda: SQLiteAdminDatabase(path))
    server: PostgreSQL = request.getfixturevalue(request.param)
    log = await PostgreSQLLog.fresh(server)
    return Place(lambda: psycopg.connect(log.url), lambda: PostgreSQLAdminDatabase(log.url))


def outbox(payloads: Payloads) -> Outbox:
    return Outbox(source="/orders", codecs=[ClaimCheck(payloads, above=100)])


async def test_what_no_message_refers_to_is_deleted(place: Place) -> None:
    payloads = Payloads()
    foreign = f"2026-11-18/{uuid4()}-not-ours"
    payloads.objects |= {"readme.txt": b"", foreign: b""}
    with place.connect() as connection:
        outbox(payloads).add(connection, LARGE, type="kept")
        outbox(payloads).add(connection, LARGE, type="later", deliver_at=datetime.now(UTC) + timedelta(days=1))
        connection.commit()
        wanted = set(payloads.objects)
        id = uuid4()
        outbox(payloads).add(connection, LARGE, type="rolled.back", id=id)
        connection.rollback()
        orphan = set(payloads.objects) - wanted
        outbox(payloads).add(connection, LARGE, type="added.again", id=id)  # the same id, and a path of its own
        connection.commit()
        wanted = set(payloads.objects) - orphan
    async with place.admin() as admin:
        assert await admin.preview_sweep_payloads(payloads, AT_ONCE) == Count(1)
        assert (await admin.sweep_payloads(payloads, AT_ONCE, BY)).changed == 1
        assert set(payloads.objects) == wanted
        assert (await admin.sweep_payloads(payloads, AT_ONCE, BY)).changed == 0
        [line] = await admin.audit()
    assert (line.command, line.who, line.reason, line.changed) == ("payloads_sweep", "anna", "a test", 1)
    assert line.arguments == {"older_than_seconds": 0.0, "store": "Payloads()"}


class Watched:
    """An AdminDatabase that tells when a sweep waits for open transactions."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.waits = asyncio.Event()
        self._horizon = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self) -> AbstractAsyncContextManager[Any]:
        self._horizon = True
        if isinstance(self._database, SQLiteAdminDatabase):  # which waits here
            self.waits.set()
        within: AbstractAsyncContextManager[Any] = self._database.write()
        return within

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Any]:
        async with self._database.read() as query:
            yield query
        if self._horizon:
            self.waits.set()


@pytest.mark.parametrize("commits", [True, False])
async def test_an_open_transaction_is_waited_for(place: Place, commits: bool) -> None:
    payloads = Payloads()
    found: list[Watched] = []

    def watched(database: Any) -> Watched:
        found.append(Watched(database))
        return found[0]

    async with place.admin(watched) as admin:
        with place.connect() as connection:
            outbox(payloads).add(connection, LARGE, type="open")
            sweep = asyncio.create_task(admin.sweep_payloads(payloads, AT_ONCE, BY))
            waits = asyncio.create_task(found[0].waits.wait())
            await asyncio.wait({sweep, waits}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            waits.cancel()
            (connection.commit if commits else connection.rollback)()
        done = await asyncio.wait_for(sweep, 60)
    assert (done.changed, len(payloads.objects)) == ((0, 1) if commits else (1, 0))


async def test_a_transaction_that_does_not_end_ends_the_sweep(
    postgresql15: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "WAIT_SECONDS", 0.0)
    log, payloads = await PostgreSQLLog.fresh(postgresql15), Payloads()
    with psycopg.connect(log.url) as connection:
        outbox(payloads).add(connection, LARGE, type="open")
        async with Admin(PostgreSQLAdminDatabase(log.url)) as admin:
            with pytest.raises(StoreUnavailable, match="has not ended for 0 s"):
                await admin.sweep_payloads(payloads, AT_ONCE, BY)
    assert len(payloads.objects) == 1


async def test_a_store_that_is_unavailable_is_named(place: Place) -> None:
    payloads = Payloads()
    payloads.fails = True
    async with place.admin() as admin:
        with pytest.raises(PayloadsUnavailable, match="the test's store is unavailable"):
            await admin.sweep_payloads(payloads, AT_ONCE, BY)
        assert await admin.audit() == []


async def test_only_old_payloads_are_listed(tmp_path: Path) -> None:
    store = payload_store(f"file://{tmp_path}/payloads")
    path = f"2026-11-18/{uuid4()}-{'0' * 16}"
    await store.put_async(path, LARGE)
    listed: list[Sequence[Any]] = [page async for page in store.older_than(timedelta(days=1))]
    assert listed == []
    yesterday = datetime.now(UTC).timestamp() - 86_401
    os.utime(tmp_path / "payloads" / path, (yesterday, yesterday))
    [[found]] = [page async for page in store.older_than(timedelta(days=1))]
    assert found == (path, len(LARGE))
    await store.delete([path, path])
    assert [page async for page in store.older_than(AT_ONCE)] == []


def test_a_store_that_is_none_is_refused() -> None:
    for wrong in ("nowhere", "ftp://host/x", object()):
        with pytest.raises(InvalidSetting, match="it must be a URL such as"):
            payload_store(wrong)
