"""Where and when something was measured: without these facts a figure says nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "autovacuum")


def facts(server: PostgreSQL | None) -> dict[str, str]:
    """What a reader has to know."""
    known = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": platform.system(),
        "load at the beginning": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": f"{sys.version.split()[0]}, asyncpg {version('asyncpg')}, SQLite {sqlite3.sqlite_version}",
    }
    if server is not None:
        settings = (f"{name} {server.psql(server.url(), f'show {name}').strip()}" for name in SETTINGS)
        known["postgresql"] = f"{server.server_version}, on the same machine, {', '.join(settings)}"
    return known


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
