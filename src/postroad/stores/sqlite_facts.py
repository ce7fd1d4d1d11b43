"""The facts of `postroad doctor` from an SQLite file, which is opened for reading only."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any, Final, Self

from postroad.config import checked_schema
from postroad.errors import StoreUnavailable
from postroad.findings import SCHEMA_MISSING, NotKnown
from postroad.stores.dialects import SQLITE

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path
    from types import TracebackType

__all__ = ["SQLiteFacts"]

BUSY_SECONDS: Final = 5.0


class SQLiteFacts:
    """See `FactReader` for the contract."""

    def __init__(self, path: Path, *, schema: str) -> None:
        self._path = path
        self._schema = checked_schema(schema)
        self._sql = SQLITE.fact_queries(schema)

    @property
    def names(self) -> Collection[str]:
        return set(self._sql)

    async def __aenter__(self) -> Self:
        try:
            if not await asyncio.to_thread(self._path.exists):
                raise StoreUnavailable(f"SQLite: there is no file {self._path}; `postroad migrate` creates it")
            await asyncio.to_thread(self._fetch, "select 1 from sqlite_master")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite ({self._path}): {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is open between two facts."""

    async def read(self, name: str) -> Any:
        try:
            return await asyncio.to_thread(self._fetch, self._sql[name])
        except sqlite3.Error as error:
            missing = "no such table" in str(error)
            raise NotKnown(SCHEMA_MISSING if missing else str(error)) from error

    def _fetch(self, sql: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]
        finally:
            connection.close()
