"""The log in SQLite, embedded: a file beside the application's own tables, or the very same file.

SQLite has one writer at a time and AUTOINCREMENT, so position order is commit order: there are no late rows, and a
cursor is a position alone. The driver blocks, so all work is done by one thread that owns the one connection.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import StoreUnavailable
from postroad.message import StoredMessage
from postroad.sink_filter import takes
from postroad.stores.base import ANY_SIZE, Claim, Cleaned, Lease, Loaded, Moved, Recorded, as_held, not_moved
from postroad.stores.connections.errors import is_transient
from postroad.stores.cursor import Cursor, make_page
from postroad.stores.dialects import SQLITE
from postroad.stores.migrations import check_version, wrong_schema
from postroad.stores.sqlite_copies import SQLiteCopies
from postroad.stores.sqlite_deferred import SQLiteDeferred
from postroad.stores.sqlite_leases import SQLiteLeases
from postroad.stores.sqlite_naps import SQLiteNaps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import timedelta

    from postroad.stores.base import Blocker, Deferred, Held, Tally
    from postroad.stores.cursor import Page, PageLimit

__all__ = ["SQLiteStore", "migrate_sqlite"]

logger = logging.getLogger("postroad.stores.sqlite")

T = TypeVar("T")


class SQLiteStore:
    """A store in an SQLite file; see `Store` for the contract."""

    def __init__(self, path: Path | str, *, schema: str = DEFAULT_SCHEMA, busy_timeout: float = 30.0) -> None:
        self._path = Path(path)
        self._schema = checked_schema(schema)
        self._sql = SQLITE.queries(schema)
        self._busy_timeout = busy_timeout
        self.leases = SQLiteLeases(self._sql, self._run, self._open, self._on_disk, _lease)
        self.naps = SQLiteNaps(self._fetch, self.leases)
        self.copies = SQLiteCopies(self._sql, self._fetch, self._run, self._on_disk)
        self.many = None  # a file has few lanes
        self.replication = None
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="postroad-sqlite")
        await self._run(self._connect)

    async def close(self) -> None:
        if self._thread is not None:
            if self._connection is not None:
                await self._run(self._connection.close)
                self._connection = None
            self._thread.shutdown()
            self._thread = None

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        def load() -> Loaded:
            with self._on_disk() as connection:
                owner = (lease.sink, lease.lane, str(lease.owner), lease.epoch)
                rows = connection.execute(self._sql["load_lane"], owner).fetchall()
                if not rows:
                    raise lease.lost()
                *lane, filter, paused, now = rows[0]
                deferred_rows = SQLiteDeferred(connection, self._sql, lease, now)
                blocked_keys, routes = deferred_rows.make_ready(by_source=by_source)
                skipped = deferred_rows.skipped()
                ((log_end,),) = connection.execute(self._sql["log_end"])
                due_in = deferred_rows.due_in()
                return Loaded(_lease(lane, filter), blocked_keys, list(routes), due_in, skipped, bool(paused), log_end)

        return await self._run(load)

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        slots = (lease.first_slot, lease.last_slot)
        limits = (limit.rows, limit.payload_bytes)
        lane = (lease.sink, lease.lane, str(lease.owner), lease.epoch, lease.incarnation)
        query, filter = ("read_page", ()) if lease.filter is None else ("read_page_filtered", (lease.filter,))
        *rows, end = await self._fetch(query, *slots, cursor.position, *limits, *lane, *filter)
        log_end, _, _, version, _, _, _, reach, *_ = end
        lease.check_read(cursor, version, log_end)
        messages = [StoredMessage(position, UUID(id), *rest) for position, id, *rest in rows]
        return make_page(cursor, messages, limit=limit, snapshot=None, log_end=log_end, version=version, reach=reach)

    async def is_current(self, lease: Lease) -> bool:
        fence = (lease.sink, lease.lane, str(lease.owner), lease.epoch, lease.version, lease.incarnation)
        ((current,),) = await self._fetch("is_current", *fence)
        return bool(current)

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        fence = _fence(lease, cursor)

        def settle() -> int:
            if tally is None:
                return self._open().execute(self._sql["settle"], fence).rowcount
            with self._immediate() as connection:
                changed = connection.execute(self._sql["settle"], fence).rowcount
                if changed:
                    SQLiteDeferred(connection, self._sql, lease, now=0).note(tally)
                return changed

        if await self._run(settle) != 1:
            raise lease.changed()
        return lease.settled(cursor)

    async def record(
        self,
        lease: Lease,
        cursor: Cursor,
        *,
        deferred: Sequence[Deferred] = (),
        held: Sequence[Held] = (),
        unsure_through: int = 0,
        published: Sequence[int] = (),
        freed: Collection[str] = (),
        tally: Tally | None = None,
    ) -> Recorded:
        def record() -> Recorded:
            with self._fenced(lease, cursor) as deferred_rows:
                deferred_rows.defer([*deferred, *as_held(held, unsure_through)])
                deferred_rows.forget(published)
                deferred_rows.note(tally)
                return Recorded(lease.settled(cursor), deferred_rows.free(freed))

        return await self._run(record)

    async def claim(
        self, lease: Lease, limit: int, *, payload_bytes: int = ANY_SIZE, routes: Collection[str] = ()
    ) -> Claim:
        def claim() -> Claim:
            with self._fenced(lease, lease.cursor) as deferred_rows:
                claimed, more = deferred_rows.claim(limit, payload_bytes, routes)
                if claimed is not None:
                    due_in = 0.0 if more else deferred_rows.due_in(later_than_now=True)
                    return Claim(lease.settled(lease.cursor), claimed, due_in)
                gone = deferred_rows.forget_gone()
            changed = lease.without_messages(gone)
            logger.warning("%s", changed)
            raise changed

        return await self._run(claim)

    async def move_scheduled(self, limit: int) -> Moved:
        def due_in() -> float | None:
            seconds = self._open().execute(self._sql["scheduled_due_in"]).fetchone()[0]
            return None if seconds is None else max(0.0, seconds)

        def move() -> Moved:
            first = due_in()  # without the write lock: mostly there is nothing to do
            if first != 0.0:
                return Moved(0, first)
            with self._on_disk() as connection:
                taken = connection.execute(self._sql["move_scheduled"], (limit,)).fetchall()
                for _, _, *row in sorted(taken):
                    if connection.execute(self._sql["add_moved"], row).fetchone():
                        continue
                    if connection.execute(self._sql["has_another"], (row[0], row[5])).fetchone():
                        logger.warning("%s", not_moved(row[0]))
            return Moved(len(taken), 0.0 if len(taken) == limit else due_in())

        return await self._run(move)

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        age = older_than.total_seconds() * 1e6

        def delete() -> Cleaned:
            with self._immediate() as connection:
                through, more, behind = connection.execute(self._sql["look_at_batch"], (after, batch, age)).fetchone()
                values = (after, through, age, key)
                deleted = connection.execute(self._sql["delete_passed"], values).rowcount if more else 0
                if deleted:
                    for query in ("delete_finished", "delete_history", "delete_delivered", "delete_rewound"):
                        connection.execute(self._sql[query], (after, through))
            return Cleaned(deleted=deleted, through=through, more=bool(more), behind=behind)

        return await self._run(delete)

    async def blocked(self) -> Sequence[Blocker]:
        """There is one writer at a time, and no way to name it."""
        await asyncio.Event().wait()
        return ()

    async def forget_progress(self, *, older_than: timedelta, batch: int) -> int:
        age = older_than.total_seconds() * 1e6

        def forget() -> int:
            with self._immediate() as connection:
                old = connection.execute(self._sql["find_old_progress"], (age, batch)).fetchall()
                last = {(sink, lane): (sink, lane, *rest) for sink, lane, *rest in sorted(old)}
                gone = [row for row in old if row != last[row[0], row[1]]]
                connection.executemany(self._sql["forget_progress"], gone)
                connection.executemany(self._sql["undate_progress"], [row for row in last.values() if row[3]])
            return len(gone)

        return await self._run(forget)

    # -- the connection and its thread -------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if not self._path.is_file():
            raise StoreUnavailable(f"SQLite: there is no file {self._path}; `postroad migrate` creates it")
        self._connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",  # a relay never creates the file
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        _add_functions(self._connection)
        # Moving a cursor need not wait for the disk: after a power cut the last pages are published again.
        self._connection.execute("pragma synchronous = normal")
        check_version(self._connection.execute(self._sql["schema_version"]).fetchone(), self._schema)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable("the store is not open")
        return self._connection

    def _immediate(self) -> _Immediate:
        return _Immediate(self._open())

    @contextmanager
    def _on_disk(self) -> Iterator[sqlite3.Connection]:
        """A transaction whose commit survives a power cut."""
        connection = self._open()
        connection.execute("pragma synchronous = full")
        try:
            with _Immediate(connection):
                yield connection
        finally:
            connection.execute("pragma synchronous = normal")

    @contextmanager
    def _fenced(self, lease: Lease, cursor: Cursor) -> Iterator[SQLiteDeferred]:
        """A transaction that has checked the lane. Raises LaneChanged if the lane has changed."""
        with self._on_disk() as connection:
            rows = connection.execute(self._sql["fence"], _fence(lease, cursor)).fetchall()
            if not rows:
                raise lease.changed()
            yield SQLiteDeferred(connection, self._sql, lease, now=rows[0][0])

    async def _fetch(self, query: str, *values: object) -> list[Any]:
        return await self._run(lambda: self._open().execute(self._sql[query], values).fetchall())

    async def _run(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise StoreUnavailable("the store is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            if _names_nothing(error):
                raise wrong_schema(self._schema, error) from error
            raise StoreUnavailable(f"SQLite ({self._path}): {error}", transient=is_transient(error)) from error


class _Immediate:
    """A transaction that holds the write lock from its beginning, so it never fails half-way because of another."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("begin immediate")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._connection.execute("commit" if kind is None else "rollback")
        except sqlite3.Error:
            if self._connection.in_transaction:  # after a failed commit; the next `begin` would fail
                self._connection.execute("rollback")
            raise


def migrate_sqlite(path: Path | str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply the missing migrations in one transaction, and return their numbers. Of two at the same time, one waits."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            _add_functions(connection)
            connection.execute("pragma journal_mode = wal")  # writers and the relay must not block each other
            with _Immediate(connection):
                there = connection.execute(SQLITE.exists_statement(schema)).fetchone()
                version = connection.execute(SQLITE.version_statement(schema)).fetchone()[0] if there else 0
                missing = SQLITE.missing_migrations(version)
                for name in missing.values():
                    for statement in SQLITE.split(SQLITE.sql_file(name, schema)):
                        connection.execute(statement)
                if not missing:
                    _check_schema(connection, SQLITE.queries(schema), schema)
    except (sqlite3.Error, ValueError) as error:
        if _names_nothing(error):
            raise wrong_schema(schema, error) from error
        raise StoreUnavailable(f"SQLite did not take the migration of {path}; nothing was changed: {error}") from error
    return list(missing)


def _check_schema(connection: sqlite3.Connection, queries: Mapping[str, str], schema: str) -> None:
    """Refuse a schema of this version, or a newer one, that the queries do not fit. None of them is run."""
    check_version(connection.execute(queries["schema_version"]).fetchone(), schema)
    for query in queries.values():
        with suppress(sqlite3.ProgrammingError):  # it could be compiled, and only its values are missing
            connection.execute(f"explain {query}")


def _names_nothing(error: BaseException) -> bool:
    """Whether a statement names a table or a column that is not there."""
    return "no such table" in str(error) or "no such column" in str(error) or "has no column named" in str(error)


def _lease(row: Any, filter: str | None = None) -> Lease:
    sink, lane, first_slot, last_slot, owner, epoch, version, position, incarnation = row
    place, cursor = (sink, lane, first_slot, last_slot), Cursor(position)
    return Lease(*place, UUID(owner), epoch, version, cursor, incarnation, filter=filter)


def _add_functions(connection: sqlite3.Connection) -> None:
    """What our own queries need beside SQLite's functions."""
    connection.create_function("postroad_takes", 4, takes, deterministic=True)


def _fence(lease: Lease, cursor: Cursor) -> tuple[object, ...]:
    return (lease.sink, lease.lane, str(lease.owner), lease.epoch, lease.version, cursor.position, lease.incarnation)
