"""How PostgreSQL carries out the statements that a store reads with, in the cases that matter; from auto_explain."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from benchmarks.backlog import LANES, fill_sql
from benchmarks.sections import median
from postroad.config import RelaySettings
from postroad.message import new_id
from postroad.stores import store_for
from postroad.stores.cursor import PageLimit
from postroad.stores.leases import RelayIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.stores.base import Lease, Store
    from postroad.stores.cursor import Cursor, Page
    from tests.services.postgresql import PostgreSQL

_EXPLAIN_EVERYTHING = """
alter database {database} set session_preload_libraries = 'auto_explain';
alter database {database} set auto_explain.log_min_duration = 0;
alter database {database} set auto_explain.log_analyze = on;
alter database {database} set auto_explain.log_buffers = on;
"""
_LOGGED = re.compile(r"duration: ([\d.]+) ms  plan:\n((?:\t.*\n?)+)")


@contextmanager
def explain_everything(server: PostgreSQL, url: str) -> Iterator[None]:
    """Connections that are made in the block write the plan of each statement to the server's log."""
    database = url.rpartition("/")[2]
    server.psql(url, _EXPLAIN_EVERYTHING.format(database=database))
    try:
        yield
    finally:
        server.psql(url, f"alter database {database} reset all")


def logged_plans(server: PostgreSQL) -> list[tuple[str, str]]:
    """The milliseconds and the plan of each statement that was explained."""
    return _LOGGED.findall((server.folder / "log").read_text())


class Explained(msgspec.Struct, frozen=True):
    """One reading of a page."""

    title: str
    rows: int
    statement_ms: float
    read_ms: float
    plan: str


class Reader:
    """Reads pages as lane 0 of a sink does, and finds the plan of the last one in the server's log."""

    def __init__(self, server: PostgreSQL, url: str, store: Store, lease: Lease) -> None:
        self._server = server
        self._url = url
        self._store = store
        self._lease = lease
        settings = RelaySettings()
        self._limit = PageLimit(settings.batch_size, settings.page_bytes)

    async def read(self, cursor: Cursor) -> Page:
        return await self._store.read(self._lease, cursor, self._limit)

    async def read_all(self, cursor: Cursor) -> Cursor:
        while (page := await self.read(cursor)).messages:
            cursor = page.after
        return page.after

    async def explained(self, title: str, cursor: Cursor) -> Explained:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            page = await self.read(cursor)
            seconds.append(time.perf_counter() - began)
        with explain_everything(self._server, self._url):
            store = store_for(self._url)  # a new connection, which the settings are for
            await store.open()
            try:
                await store.load(self._lease)
                page = await store.read(self._lease, cursor, self._limit)
            finally:
                await store.close()
        duration, plan = logged_plans(self._server)[-1]
        return Explained(title, len(page.messages), float(duration), median(seconds) * 1000, plan)


async def after_absence(server: PostgreSQL, url: str, sink: str) -> list[Explained]:
    """The first page of a lane that was away while everything was added that it has to read, and the page after it."""
    store = store_for(url)
    await store.open()
    try:
        lease = (await store.leases.take(RelayIdentity(new_id(), sink, "plans", 0, "", "null://"), LANES, 3600))[0]
        reader = Reader(server, url, store, lease)
        first = await reader.explained("The first page after an absence", lease.cursor)
        cursor = (await reader.read(lease.cursor)).after
        return [first, await reader.explained("The page after it", cursor)]
    finally:
        await store.close()


async def explained(server: PostgreSQL, url: str, sink: str) -> list[Explained]:
    """The plans with new rows ahead, with late rows behind, and with more late rows than a page holds."""
    store = store_for(url)
    await store.open()
    writer: Any = await asyncpg.connect(url)
    try:
        await store.leases.create(sink, "null://", lanes=LANES, start="now")
        lease = (await store.leases.take(RelayIdentity(new_id(), sink, "plans", 0, "", "null://"), LANES, 3600))[0]
        reader = Reader(server, url, store, lease)
        found = [await reader.explained("Next rows, all of them newer than the cursor's snapshot", lease.cursor)]
        cursor = await reader.read_all(lease.cursor)
        found.append(await reader.explained("Nothing new", cursor))
        cursor = await _overtake(writer, server, url, reader, cursor, late=400)
        found.append(await reader.explained("Some late rows", cursor))
        cursor = await reader.read_all(cursor)
        cursor = await _overtake(writer, server, url, reader, cursor, late=40_000)
        found.append(await reader.explained("More late rows than a page holds, first page", cursor))
        cursor = (await reader.read(cursor)).after
        found.append(await reader.explained("More late rows than a page holds, next page", cursor))
        return found
    finally:
        await writer.close()
        await store.close()


async def _overtake(writer: Any, server: PostgreSQL, url: str, reader: Reader, cursor: Cursor, *, late: int) -> Cursor:
    """Let a transaction commit after the lane has gone past its rows."""
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute(fill_sql(1, late))
    server.psql(url, fill_sql(1, 4000))
    cursor = await reader.read_all(cursor)
    await transaction.commit()
    return cursor
