"""What a PostgreSQL server did while something was measured: tuples written, write-ahead log, processor time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

_READ = """
select pg_current_wal_insert_lsn() - '0/0',
       coalesce(sum(n_tup_ins), 0), coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_del), 0)
  from pg_stat_user_tables
"""
_OTHERS = """
select count(*) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


class Work(msgspec.Struct, frozen=True):
    """What the server has done, or did between two looks."""

    wal_bytes: float
    inserted: float
    updated: float
    deleted: float
    cpu_seconds: float

    def since(self, before: Work) -> Work:
        return Work(*(now - then for now, then in zip(_values(self), _values(before), strict=True)))

    def per(self, messages: int) -> Work:
        return Work(*(value / messages for value in _values(self)))


class Ledger:
    """Reads what the server did in one database since this was made. No other client may use the server meanwhile."""

    def __init__(self, server: PostgreSQL, url: str) -> None:
        self._server = server
        self._url = url
        self._before = self._read()

    def close(self) -> Work:
        """What was done. The clients must be about to go: figures are complete when their connections have ended."""
        while int(self._server.psql(self._url, _OTHERS)):
            time.sleep(0.02)
        return self._read().since(self._before)

    def _read(self) -> Work:
        figures = self._server.psql(self._url, _READ).strip().split("|")
        wal_bytes, inserted, updated, deleted = map(float, figures)
        return Work(wal_bytes, inserted, updated, deleted, self._cpu_of_ended_processes())

    def _cpu_of_ended_processes(self) -> float:
        """The processor time of all server processes that have ended; not known outside Linux."""
        postmaster = (self._server.data / "postmaster.pid").read_text().split("\n")[0]
        try:
            fields = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _values(work: Work) -> tuple[float, ...]:
    values: tuple[float, ...] = msgspec.structs.astuple(work)
    return values
