"""Roles that share a database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from postroad import migrate
from postroad.stores.grants import grants_script
from tests.security.neighbours import Neighbours, Role
from tests.services.postgresql import PostgreSQL

KINDS: dict[Role, str] = {
    "shop": "application",
    "billing": "application",
    "relay": "relay",
    "operator": "operator",
    "reader": "reader",
}


@pytest.fixture
def empty(postgresql15: PostgreSQL) -> Iterator[Neighbours]:
    """A database that has not been migrated."""
    yield from _created(postgresql15)


@pytest.fixture(params=["postgresql15", "postgresql18"])
def neighbours(request: pytest.FixtureRequest) -> Iterator[Neighbours]:
    """The owner has migrated, and each role has its grants."""
    for neighbours in _created(request.getfixturevalue(request.param)):
        with ThreadPoolExecutor(1) as thread:  # pytest's own thread may have a loop
            thread.submit(asyncio.run, migrate(neighbours.url("owner"))).result()
        for role, kind in KINDS.items():
            neighbours.execute("owner", grants_script(neighbours.name(role), kind=kind))
        yield neighbours


def _created(server: PostgreSQL) -> Iterator[Neighbours]:
    server.start()
    neighbours = Neighbours(server)
    neighbours.create()
    yield neighbours
    server.start()
    neighbours.drop()
