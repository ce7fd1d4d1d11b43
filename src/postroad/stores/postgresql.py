"""The log in PostgreSQL 13 or newer, through asyncpg.

Beyond the contract: every connection is checked before it reads, because a standby's snapshots are incomplete and
another cluster's transaction ids mean nothing here. Any error of the driver becomes StoreUnavailable, upon which the
relay drops its state and loads its lanes again. A call for a lane that was loaded from a server that has been restarted
since fails with the same error: the server may have crashed and lost commits that were not durable.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting, LogNotReadable, MissingExtra, StoreUnavailable
from postroad.stores.base import ANY_SIZE, Blocker, Claim, Cleaned, Lease, Loaded, Moved, Recorded
from postroad.stores.connections.errors import is_transient
from postroad.stores.cursor import Cursor, make_page, xmax_and_xip
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.dialects.postgresql import LAST_XID
from postroad.stores.migrations import check_version, not_migrated, wrong_schema
from postroad.stores.postgresql_copies import PostgreSQLCopies
from postroad.stores.postgresql_deferred import PostgreSQLDeferred, tally_values
from postroad.stores.postgresql_leases import PostgreSQLLeases
from postroad.stores.postgresql_lock_waits import LONG_SECONDS, LockWaits
from postroad.stores.postgresql_many import (
    PostgreSQLManyLanes,
    all_fit,
    has_too_large,
    messages_of,
    reading,
    row_limit_bytes,
)
from postroad.stores.postgresql_mover import Mover
from postroad.stores.postgresql_naps import PostgreSQLNaps
from postroad.stores.postgresql_pool import acquired, in_transaction
from postroad.stores.postgresql_replication import PostgreSQLReplication
from postroad.stores.search_path import PIN_SESSION, PIN_TRANSACTION
from postroad.stores.services import check_service
from postroad.stores.tls_files import check_tls_files
from postroad.stores.urls import driver_url, place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence

    from postroad.stores.base import Deferred, Held, Tally
    from postroad.stores.cursor import Page, PageLimit

try:
    import asyncpg
except ImportError as error:
    raise MissingExtra("a postgresql:// database", "postgresql") from error

__all__ = ["CONNECT_SECONDS", "PostgreSQLStore", "bad_url_named", "errors_translated", "migrate_postgresql"]

logger = logging.getLogger("postroad.stores.postgresql")

CONNECT_SECONDS: Final = 10
RESTORE_SECONDS: Final = 24 * 60 * 60  # a large log is rewritten once; a shorter timeout would abort it every time
STATEMENTS_KEPT: Final = 100
MIGRATION_TRIES: Final = 100
MIGRATION_LOCK_MS: Final = 200
MIGRATION_PAUSE_SECONDS: Final = 0.4
_MICROSECONDS_1970_TO_2000: Final = 946_684_800_000_000
# A page's statement must be planned for its own snapshot and position: a generic plan walks the whole log, and so does
# a sequential scan, which the planner may choose because it can't estimate ranges of xid8.
# A relay that is frozen between two statements of a transaction must not keep its lane locked, or no other can take it
# (in the middle of a statement: end_frozen_sessions).
_SESSION_SETTINGS: Final = f"""
    {PIN_SESSION};
    set plan_cache_mode = force_custom_plan; set enable_seqscan = off;
    set jit = off; set max_parallel_workers_per_gather = 0; set idle_in_transaction_session_timeout = '10s';
"""


class PostgreSQLStore:
    """A store in a PostgreSQL database; see `Store` for the contract."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        direct: str | None = None,
        connections: int = 5,
        statement_timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self._url = driver_url(url)
        self._schema = checked_schema(schema)
        self._sql = POSTGRESQL.queries(schema)
        self._direct = None if direct is None else driver_url(direct)
        self.naps = PostgreSQLNaps(
            schema, self._sql, self._connection, lambda: self._connect_to_stay("postroad listen")
        )
        self.leases = PostgreSQLLeases(
            schema,
            self._sql,
            connection=self._connection,
            connect=lambda: self._connect_to_stay("postroad liveness"),
            has_sessions=lambda: self._direct is not None or not self._pooled,
            translated=lambda: errors_translated(self._schema, self._url),
            taken=self._taken,
            locked=lambda: self._lock_waits.skipped("lanes"),
        )
        self.many = PostgreSQLManyLanes(self._sql, self._connection, lambda: self._pooled)
        self.copies = PostgreSQLCopies(self._sql, self._connection)
        self.replication = PostgreSQLReplication(self._sql, self._connection)
        self._lock_waits = LockWaits()
        self._mover = Mover(self._sql)
        self._connections = connections
        self._timeout = statement_timeout.total_seconds()
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._pooled = False
        """A pooler is in between: a session is ours for one transaction at a time."""
        self._server_started: str | None = None
        self._servers = 0
        """How many server starts were seen; a recovery from a crash counts as one."""
        self._loaded: dict[tuple[str, int], int] = {}
        """The value of `_servers` when each lane was loaded."""
        self._large: set[tuple[str, int]] = set()
        """Lanes in whose last page a message was larger than `row_limit_bytes`."""

    async def open(self) -> None:
        if self._pool is not None:
            raise InvalidSetting("this store is open already; give each relay a store of its own")
        self._lock_waits = LockWaits()  # it belongs to one event loop
        check_service(self._url)
        check_service(self._direct, "direct")
        with errors_translated(self._schema, self._url), bad_url_named():
            check_tls_files(self._url)
            check_tls_files(self._direct, "direct")
            self._pooled = await self._is_pooled()
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,  # with a floor, the pool would log tracebacks while the server is away
                max_size=self._connections,
                max_inactive_connection_lifetime=0,  # neither idle nor much used connections are replaced by themselves
                max_queries=sys.maxsize,
                timeout=CONNECT_SECONDS,
                command_timeout=self._timeout,
                init=self._prepare,
                reset=_leave_as_it_is,
                server_settings={"application_name": "postroad"},
                # A prepared statement belongs to a session, so behind a pooler none can be kept.
                statement_cache_size=0 if self._pooled else STATEMENTS_KEPT,
            )
            try:
                await self._fill(self._pool)
            except BaseException:
                await self.close()
                raise

    async def _fill(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        # The first one alone: it may have to restore the log.
        made = [await pool.acquire()]
        made += await asyncio.gather(*(pool.acquire() for _ in range(1, self._connections)))
        for connection in made:
            await pool.release(connection)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()  # no call is under way, and a dead server would not answer
            self._pool = None

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        async with self._connection() as connection:
            # The schema may have been restored from another cluster while this connection was open.
            await self._check_server(connection)
        async with self._connection() as connection, in_transaction(connection):
            servers = self._servers
            owner = (lease.sink, lease.lane, lease.owner, lease.epoch)
            row = await connection.fetchrow(self._sql["load_lane"], *owner)
            if row is None:
                raise lease.lost()
            *lane, filter, paused = row
            deferred_rows = PostgreSQLDeferred(connection, self._sql, lease)
            blocked_keys, routes = await deferred_rows.make_ready(by_source=by_source)
            skipped = await deferred_rows.skipped()
            log_end = await connection.fetchval(self._sql["log_end"])
            due_in = await deferred_rows.due_in()
            loaded = Loaded(
                _lease(lane, filter), blocked_keys, list(routes), due_in, skipped, paused, log_end, deferred_rows.locked
            )
        self._report_locks(deferred_rows)
        self._loaded[lease.sink, lease.lane] = servers
        return loaded

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        if cursor.catching_up:
            late = (cursor.late_position, cursor.late_snapshot)
            values = _page_values(lease, cursor, limit.rows, limit.payload_bytes)
            async with self._connection(lease) as connection:
                rows = await connection.fetch(self._sql[reading("read_late_page", lease)], *values, *late)
        else:
            rows = await self._fetch_page(lease, cursor, limit)
        end = rows.pop()
        log_end, snapshot, version = end["position"], end["topic"], int(end["key"] or 0)
        horizon, reach = (None if end[name] is None else int(end[name]) for name in ("type", "content_type"))
        lease.check_read(cursor, version or None, log_end)
        return make_page(
            cursor,
            messages_of(rows),
            limit=limit,
            snapshot=snapshot,
            log_end=log_end,
            horizon=horizon,
            version=version,
            reach=reach,
        )

    async def _fetch_page(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> list[Any]:
        """The rows of a page. The cheap statement does not return rows that are larger than `row_limit_bytes`;
        when there are any, the lane uses the other statement until a page has none.

        Each is a transaction of its own, also behind a pooler: `{next_xid}` keeps its value for a whole transaction.
        """
        lane, row_bytes = (lease.sink, lease.lane), row_limit_bytes(limit)
        horizon = LAST_XID if cursor.horizon is None else cursor.horizon
        if lane not in self._large:
            values = (*_page_values(lease, cursor, limit.rows, row_bytes), horizon)
            async with self._connection(lease) as connection:
                rows: list[Any] = await connection.fetch(self._sql[reading("read_page", lease)], *values)
            if not has_too_large(rows):
                return rows
            self._large.add(lane)
        values = (*_page_values(lease, cursor, limit.rows, limit.payload_bytes), horizon)
        async with self._connection(lease) as connection:
            rows = await connection.fetch(self._sql[reading("read_large_page", lease)], *values)
        if len(rows) > 1 and all_fit(rows[:-1], row_bytes):
            self._large.remove(lane)
        return rows

    async def is_current(self, lease: Lease) -> bool:
        fence = (lease.sink, lease.lane, lease.owner, lease.epoch, lease.version)
        async with self._connection(lease) as connection:
            return bool(await connection.fetchval(self._sql["is_current"], *fence))

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        fence = _fence(lease, cursor)
        async with self._connection(lease) as connection:
            if tally is None:
                changed = await connection.execute(self._sql["settle"], *fence, self._pooled)
            else:
                query = self._sql["settle_and_note"]
                changed = await connection.execute(query, *fence, self._pooled, *tally_values(tally))
        if not changed.endswith(" 1"):
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
        async with self._fenced(lease, cursor) as deferred_rows:
            await deferred_rows.defer(deferred)
            await deferred_rows.hold(held, unsure_through)
            await deferred_rows.forget(published)
            blocked_keys = await deferred_rows.free(freed)
            await deferred_rows.note(tally)
        self._report_locks(deferred_rows)
        return Recorded(lease.settled(cursor), blocked_keys, locked=deferred_rows.locked)

    async def claim(
        self, lease: Lease, limit: int, *, payload_bytes: int = ANY_SIZE, routes: Collection[str] = ()
    ) -> Claim:
        async with self._fenced(lease, lease.cursor) as deferred_rows:
            claimed, more = await deferred_rows.claim(limit, payload_bytes, routes)
            due_in = 0.0 if more else await deferred_rows.due_in(later_than_now=True)
            gone = await deferred_rows.forget_gone() if claimed is None else 0
        if claimed is None:
            changed = lease.without_messages(gone)
            logger.warning("%s", changed)
            raise changed
        self._report_locks(deferred_rows)
        return Claim(lease.settled(lease.cursor), claimed, due_in, locked=deferred_rows.locked)

    async def move_scheduled(self, limit: int) -> Moved:
        async with self._connection() as connection:
            return await self._mover.move(connection, limit)

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        async with self._connection() as connection, in_transaction(connection):
            if not await connection.fetchval(self._sql["try_to_clean"]):
                return Cleaned(deleted=0, through=after, more=False, busy=True)
            return Cleaned(*await connection.fetchrow(self._sql["delete_passed"], after, batch, older_than, key))

    async def forget_progress(self, *, older_than: timedelta, batch: int) -> int:
        async with self._connection() as connection:
            return int(await connection.fetchval(self._sql["forget_progress"], older_than, batch))

    async def blocked(self) -> Sequence[Blocker]:
        skipped = await self._lock_waits.wait()
        async with self._connection_beside() as connection:
            await connection.execute(self._sql["end_frozen_sessions"])
        if skipped:
            return await self.blockers(longer_than=timedelta(seconds=LONG_SECONDS), tables=list(skipped))
        return await self.blockers()

    async def blockers(
        self, *, longer_than: timedelta | None = None, tables: Sequence[str] = ("lanes", "deferred")
    ) -> Sequence[Blocker]:
        """Sessions for which a statement of ours waits; and, if `longer_than` is given, those that have had rows of
        these tables locked for longer than that, which our statements skip.
        """
        async with self._connection_beside() as connection:
            seconds = None if longer_than is None else longer_than.total_seconds()
            names = [f"{self._schema}.{table}" for table in tables]
            rows = await connection.fetch(self._sql["blockers"], seconds, names)
        return [Blocker(*row) for row in rows]

    # -- connections -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self, *leases: Lease) -> AsyncIterator[Any]:
        """A connection; for lanes, only if it is to the server from which they were loaded."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        with errors_translated(self._schema, self._url):
            async with acquired(self._pool) as connection, self._session(connection):
                if any(self._loaded.get((lease.sink, lease.lane)) != self._servers for lease in leases):
                    restarted = "PostgreSQL: the server was restarted since the lane was loaded"
                    raise StoreUnavailable(restarted, transient=True)
                with self._lock_waits.watching():
                    yield connection

    @asynccontextmanager
    async def _connection_beside(self) -> AsyncIterator[Any]:
        """A connection of its own: those of the pool may all be waiting for a lock."""
        with errors_translated(self._schema, self._url):
            connection = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                command_timeout=CONNECT_SECONDS,
                statement_cache_size=0,
                server_settings={"application_name": "postroad blockers"},
            )
            try:
                await connection.execute(PIN_SESSION)
                yield connection
            finally:
                connection.terminate()

    def _taken(self, row: Any) -> Lease:
        """A lane that was taken just now counts as loaded."""
        lease = _lease(row)
        self._loaded[lease.sink, lease.lane] = self._servers
        return lease

    def _report_locks(self, deferred_rows: PostgreSQLDeferred) -> None:
        if deferred_rows.locked:
            self._lock_waits.skipped("deferred")

    @asynccontextmanager
    async def _fenced(self, lease: Lease, cursor: Cursor) -> AsyncIterator[PostgreSQLDeferred]:
        """A transaction that holds the lock on the lane's row. Raises LaneChanged if the lane has changed."""
        async with self._connection(lease) as connection, in_transaction(connection):
            if await connection.execute(self._sql["fence"], *_fence(lease, cursor)) != "UPDATE 1":
                raise lease.changed()
            yield PostgreSQLDeferred(connection, self._sql, lease)

    @asynccontextmanager
    async def _session(self, connection: Any) -> AsyncIterator[None]:
        """The connection's own session; behind a pooler, a borrowed one, for one transaction."""
        if not self._pooled:
            yield
            return
        async with in_transaction(connection):
            self._note_server((await connection.fetchrow(self._sql["borrow_session"]))["started"])
            yield

    def _note_server(self, started: str) -> None:
        """Count it if the server is another one than before, or was restarted."""
        if started != self._server_started:
            self._server_started = started
            self._servers += 1

    async def _is_pooled(self) -> bool:
        connection = await asyncpg.connect(self._url, timeout=CONNECT_SECONDS, statement_cache_size=0)
        try:
            async with in_transaction(connection):
                return bool(await connection.fetchval(self._sql["server_process"]) != connection.get_server_pid())
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _connect_to_stay(self, name: str) -> AsyncIterator[Any]:
        """A session outside the pool: closed if the block fails, and otherwise the caller's to close."""
        if self._pooled and self._direct is None:
            raise StoreUnavailable(
                "PostgreSQL is behind a pooler, and LISTEN does not work there; set direct to the server's own URL"
            )
        url, setting = (self._direct, "direct") if self._direct else (self._url, "database")
        with errors_translated(self._schema, url), bad_url_named(setting):
            connection = await asyncpg.connect(
                url,
                timeout=CONNECT_SECONDS,
                command_timeout=self._timeout,
                server_settings={"application_name": name},
            )
            try:
                await connection.execute(PIN_SESSION)
                yield connection
            except BaseException:
                connection.terminate()
                raise

    async def _prepare(self, connection: Any) -> None:
        """Set up a new connection, and refuse a server whose log must not be read."""
        if not self._pooled:
            await connection.execute(_SESSION_SETTINGS)
        async with self._session(connection):
            await self._check(connection)

    async def _check(self, connection: Any) -> None:
        await connection.set_type_codec(
            # As a datetime it would cost more than all the other columns of a row together.
            "timestamptz",
            schema="pg_catalog",
            format="tuple",
            encoder=_no_encoder,
            decoder=_microseconds_since_1970,
        )
        # In pages it would cost as much as all the other columns again, so there it comes as a timestamp, which is read
        # as an integer without a call; see {created_us} in dialects/postgresql.py.
        await connection.set_builtin_type_codec("timestamp", schema="pg_catalog", codec_name="int8", format="binary")
        await self._check_server(connection)

    async def _check_server(self, connection: Any) -> None:
        """Raise LogNotReadable unless the log may be read. Called on every new connection, and whenever a lane is
        loaded: so after every failed fence and every lane that was taken.
        """
        check_version(await connection.fetchrow(self._sql["schema_version"]), self._schema)
        facts = await connection.fetchrow(self._sql["server_facts"])
        self._note_server(facts["started"])
        if facts["standby"]:
            raise LogNotReadable(
                "this PostgreSQL server is a standby, whose snapshots don't show the transactions in progress; "
                "connect the relay to the primary (target_session_attrs=primary)"
            )
        if facts["subscribed"]:
            raise LogNotReadable(
                f"{self._schema}.outbox is filled by a logical replication subscription, whose rows carry another "
                "cluster's transaction ids; run the relay on the publisher, or drop the subscription first"
            )
        if not facts["complete"]:
            raise LogNotReadable(
                f"{self._schema}.outbox has no primary key: the schema is being restored, or the restore has failed"
            )
        if facts["sequence_cache"] > 1:
            raise LogNotReadable(
                f"the sequence of {self._schema}.outbox.position has cache {facts['sequence_cache']}, so messages "
                f"could be out of order or missed; it must be 1: alter table {self._schema}.outbox alter position "
                "set cache 1; then end the sessions that add messages"
            )
        if facts["moved"] or facts["future"]:
            await self._restore(connection)

    async def _restore(self, connection: Any) -> None:
        """The log was copied from another cluster: convert its transaction ids."""
        async with in_transaction(connection):
            logger.warning("schema %s came from another PostgreSQL cluster: converting its log", self._schema)
            await connection.execute(self._sql["lock_for_restore"], timeout=RESTORE_SECONDS)
            facts = await connection.fetchrow(self._sql["server_facts"])
            if not (facts["moved"] or facts["future"]):
                return  # another relay was faster
            await connection.execute(self._sql["restore"], timeout=RESTORE_SECONDS)
        logger.warning(
            "schema %s was restored from another PostgreSQL cluster: the log and all cursors were converted",
            self._schema,
        )


async def migrate_postgresql(url: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply the missing migrations in one transaction, and return their numbers. Of two at the same time, one waits.

    A migration that needs an exclusive lock on the log waits for its writers, and new writers queue behind it. So it
    waits for a moment only, gives way, and tries again.
    """
    check_service(url)
    with errors_translated(schema, url):
        with bad_url_named():
            check_tls_files(url)
            # Without prepared statements, which would stay in a pooler's session.
            connection = await asyncpg.connect(driver_url(url), timeout=CONNECT_SECONDS, statement_cache_size=0)
        try:
            for left in reversed(range(MIGRATION_TRIES)):
                try:
                    return await _migrate(connection, schema)
                except asyncpg.LockNotAvailableError as error:
                    if not left:
                        users = await _users(connection, schema)
                        raise StoreUnavailable(
                            f"the tables of schema {schema} were in use all the time, by {users}, so the migration "
                            "could not lock them; nothing was changed: migrate again when that has ended"
                        ) from error
                    await asyncio.sleep(MIGRATION_PAUSE_SECONDS)
            raise AssertionError("the last try has returned or raised")
        finally:
            connection.terminate()


async def _migrate(connection: Any, schema: str) -> list[int]:
    async with connection.transaction():
        await connection.execute(PIN_TRANSACTION)
        await connection.execute(f"set local lock_timeout = '{MIGRATION_LOCK_MS}ms'")
        await connection.execute(POSTGRESQL.lock_statement(schema))
        version = await connection.fetchval(POSTGRESQL.version_statement(schema))
        missing = POSTGRESQL.missing_migrations(version)
        for name in missing.values():
            await connection.execute(POSTGRESQL.sql_file(name, schema))
        if not missing:
            await _check_schema(connection, POSTGRESQL.queries(schema), schema)
    return list(missing)


async def _check_schema(connection: Any, queries: Mapping[str, str], schema: str) -> None:
    """Refuse a schema of this version, or a newer one, that the queries do not fit. None of them is run."""
    check_version(await connection.fetchrow(queries["schema_version"]), schema)
    for query in queries.values():
        await connection.prepare(query, name="")  # unnamed: nothing stays in a pooler's session


async def _users(connection: Any, schema: str) -> str:
    """The transactions that a migration waits for."""
    users = await connection.fetchval(POSTGRESQL.queries(schema)["table_users"])
    return users or "transactions that have ended since"


@contextmanager
def errors_translated(schema: str, url: str) -> Iterator[None]:
    """The driver's errors, as the contract names them."""
    try:
        yield
    except asyncpg.InvalidSchemaNameError as error:
        raise not_migrated(schema) from error
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError) as error:
        raise wrong_schema(schema, error) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreUnavailable(
            f"PostgreSQL: {error}; `postroad migrate --grants` prints what each kind of role needs",
            transient=is_transient(error),
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise StoreUnavailable(f"PostgreSQL: {error}", transient=is_transient(error)) from error
    except (OSError, TimeoutError) as error:
        place = f" at {place}" if (place := place_of(url)) else ""
        reason = str(error) or type(error).__name__
        transient = is_transient(error)
        raise StoreUnavailable(f"PostgreSQL{place} can't be reached: {reason}", transient=transient) from error


@contextmanager
def bad_url_named(setting: str = "database") -> Iterator[None]:
    """A URL that can't be parsed is not quoted: the wrong part is often a piece of the password."""
    try:
        yield
    except ssl.SSLError:
        raise  # a ValueError too, but the URL was fine
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise InvalidSetting(f"{setting} is a URL that can't be used: {error}", settings=(setting,)) from error
    except (ValueError, OverflowError):
        raise InvalidSetting(
            f"{setting} is not a valid URL; it must be postgresql://user@host:port/name, "
            "with special characters of user and password percent-encoded",
            settings=(setting,),
        ) from None


def _lease(row: Any, filter: str | None = None) -> Lease:
    sink, lane, first_slot, last_slot, owner, epoch, version, *cursor = row
    return Lease(sink, lane, first_slot, last_slot, owner, epoch, version, Cursor(*cursor), filter=filter)


def _page_values(lease: Lease, cursor: Cursor, rows: int, size: int) -> tuple[object, ...]:
    snapshot = xmax_and_xip(cursor.snapshot)
    lane = (lease.sink, lease.lane, lease.owner, lease.epoch)
    return (lease.first_slot, lease.last_slot, cursor.position, *snapshot, rows, size, *lane)


def _fence(lease: Lease, cursor: Cursor) -> tuple[object, ...]:
    owner = (lease.sink, lease.lane, lease.owner, lease.epoch, lease.version)
    return (*owner, cursor.position, cursor.snapshot, cursor.late_position, cursor.late_snapshot, cursor.horizon)


def _microseconds_since_1970(value: tuple[int]) -> int:
    return value[0] + _MICROSECONDS_1970_TO_2000


def _no_encoder(_: object) -> tuple[int]:
    raise NotImplementedError("times come from the database; none is ever sent")


async def _leave_as_it_is(_: object) -> None:
    """Without this, asyncpg would reset the session's settings between two uses, which costs a round trip."""
