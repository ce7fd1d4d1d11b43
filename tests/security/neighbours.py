"""One database that several roles share, some of them hostile."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, get_args

import asyncpg

from tests.services.postgresql import PostgreSQL

__all__ = ["Neighbours", "Role", "postroad"]

Role = Literal["postgres", "owner", "shop", "billing", "relay", "operator", "reader", "stranger"]
"""`shop` and `billing` are applications; `stranger` may connect, and nothing else."""

ROLES: Final = [role for role in get_args(Role) if role != "postgres"]


class Neighbours:
    """A fresh database of the owner's. Roles belong to the server, so their names are unique."""

    def __init__(self, server: PostgreSQL) -> None:
        self.server = server
        self._suffix = uuid.uuid4().hex[:8]
        self._database = f"shared_{self._suffix}"

    def create(self) -> None:
        roles = "".join(f"create role {self.name(role)} login;" for role in ROLES)
        self.server.execute(self.server.url(), roles)
        self.server.execute(self.server.url(), f"create database {self._database} owner {self.name('owner')}")

    def drop(self) -> None:
        self.server.execute(self.server.url(), f"drop database {self._database} with (force)")
        self.server.execute(self.server.url(), "".join(f"drop role {self.name(role)};" for role in ROLES))

    def name(self, role: Role) -> str:
        """What the role is called on this server."""
        return role if role == "postgres" else f"{role}_{self._suffix}"

    def url(self, role: Role) -> str:
        return self.server.url(self._database, self.name(role))

    def execute(self, role: Role, sql: str) -> str:
        return self.server.execute(self.url(role), sql)

    @asynccontextmanager
    async def connected(self, role: Role, **options: Any) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url(role), **options)
        try:
            yield connection
        finally:
            connection.terminate()


def postroad(*arguments: str, fails: bool = False) -> str:
    """Run the command line; gives what it prints, or its errors if it is to fail."""
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout
