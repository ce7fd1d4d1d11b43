"""The facts of `postroad doctor` from PostgreSQL: one session of its own, a read-only transaction for each query."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import asyncpg

from postroad.config import checked_schema
from postroad.errors import NotMigrated, PostroadError
from postroad.findings import SCHEMA_MISSING, NotKnown
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.postgresql import CONNECT_SECONDS, bad_url_named, errors_translated
from postroad.stores.search_path import PIN_TRANSACTION
from postroad.stores.services import check_service
from postroad.stores.tls_files import check_tls_files
from postroad.stores.urls import driver_url

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

__all__ = ["PostgreSQLFacts"]

QUERY_MS: Final = 5_000
"""How long a query may take. One that takes longer is no fact."""
LOCK_MS: Final = 500
ECHO_SECONDS: Final = 5.0
LOCKED_SECONDS: Final = 1.0
"""A session that holds a lock for less than this does not block anything for long."""

_SAME_PLACE: Final = "select current_database()::text, (select system_identifier from pg_control_system())"


class PostgreSQLFacts:
    """See `FactReader` for the contract. Beside the queries there are `listen` and `clock`."""

    def __init__(self, url: str, *, schema: str, direct: str | None) -> None:
        self._url = driver_url(url)
        self._direct = None if direct is None else driver_url(direct)
        self._schema = checked_schema(schema)
        self._sql = POSTGRESQL.fact_queries(schema)
        self._connection: Any = None
        self._values: dict[str, tuple[Any, ...]] = {
            "blockers": (LOCKED_SECONDS, [f"{schema}.lanes", f"{schema}.deferred"])
        }

    @property
    def names(self) -> Collection[str]:
        return {*self._sql, "listen", "clock"}

    async def __aenter__(self) -> Self:
        self._connection = await self._connect(self._url, "database")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.terminate()

    async def read(self, name: str) -> Any:
        try:
            with errors_translated(self._schema, self._url):
                match name:
                    case "listen":
                        return await self._listen()
                    case "clock":
                        return await self._clock()
                    case _:
                        return await self._rows(self._connection, self._sql[name], *self._values.get(name, ()))
        except NotMigrated as error:
            raise NotKnown(SCHEMA_MISSING) from error
        except PostroadError as error:
            raise NotKnown(str(error)) from error

    async def _connect(self, url: str, setting: str) -> Any:
        check_service(url, setting)
        with errors_translated(self._schema, url), bad_url_named(setting):
            check_tls_files(url, setting)
            return await asyncpg.connect(
                url,
                timeout=CONNECT_SECONDS,
                command_timeout=CONNECT_SECONDS,
                statement_cache_size=0,  # behind a pooler, a prepared statement would stay in another client's session
                server_settings={"application_name": "postroad doctor"},
            )

    async def _rows(self, connection: Any, sql: str, *values: Any) -> list[dict[str, Any]]:
        async with connection.transaction(readonly=True):
            await connection.execute(
                f"{PIN_TRANSACTION}; set local statement_timeout = {QUERY_MS}; set local lock_timeout = {LOCK_MS}"
            )
            return [dict(row) for row in await connection.fetch(sql, *values)]

    async def _is_pooled(self, connection: Any) -> bool:
        ((process,),) = [row.values() for row in await self._rows(connection, "select pg_backend_pid() as process")]
        return bool(process != connection.get_server_pid())

    async def _clock(self) -> dict[str, float]:
        """The server's clock less ours, and how exactly that is known."""
        before = time.time()
        ((there,),) = [
            row.values()
            for row in await self._rows(
                self._connection, "select extract(epoch from clock_timestamp())::float8 as seconds"
            )
        ]
        after = time.time()
        return {"difference_seconds": there - (before + after) / 2, "uncertainty_seconds": (after - before) / 2}

    async def _listen(self) -> dict[str, Any]:
        """Whether a notification that we send comes back, on a session such as a relay would listen on."""
        pooled = await self._is_pooled(self._connection)
        if pooled and self._direct is None:
            return {"pooled": True, "direct": False, "echo": False}
        if self._direct is None:
            return {"pooled": False, "direct": False, "echo": await self._echoes(self._connection)}
        direct = await self._connect(self._direct, "direct")
        try:
            here, there = [await self._rows(each, _SAME_PLACE) for each in (self._connection, direct)]
            return {
                "pooled": pooled,
                "direct": True,
                "direct_pooled": await self._is_pooled(direct),
                "same_place": here == there,
                "echo": not await self._is_pooled(direct) and await self._echoes(direct),
            }
        finally:
            direct.terminate()

    async def _echoes(self, connection: Any) -> bool:
        """Notify ourselves on a channel that no other session listens on. NOTIFY writes no table."""
        channel, heard = f"postroad_doctor_{uuid4().hex[:16]}", asyncio.Event()
        await connection.add_listener(channel, lambda *_: heard.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(ECHO_SECONDS):
                await connection.execute(f"notify {channel}")
                await heard.wait()
        return heard.is_set()
