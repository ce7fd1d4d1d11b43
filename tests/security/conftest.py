"""Roles that share a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.stores.grants import grants_script
from tests.security.neighbours import Neighbours, Role, postroad
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
        postroad("migrate", "--database", neighbours.url("owner"))
        for role, kind in KINDS.items():
            neighbours.psql("owner", grants_script(neighbours.name(role), kind=kind))
        yield neighbours


def _created(server: PostgreSQL) -> Iterator[Neighbours]:
    server.start()
    neighbours = Neighbours(server)
    neighbours.create()
    yield neighbours
    server.start()
    neighbours.drop()
