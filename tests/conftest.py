"""The real servers, one of each per session, started by the first test that needs it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis
from tests.services.server import Server, ServerMissing

AnyServer = TypeVar("AnyServer", bound=Server)


MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 6 << 30  # the servers of three workers use up to 3 GB


def pytest_configure() -> None:
    # When terminated, as by `timeout`, Python would leave the servers running; interrupted, it stops them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Tests start many processes of `postroad`; without bytecode each of them would compile it anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Files in memory: a disk takes most of the time that a new schema needs, and tests kill servers, not machines.
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH_MEMORY:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


SLOW_FIRST = ("scenarios", "examples", "security", "properties", "integrations", "contracts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: when one worker has only those left, the others have nothing to do."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)

    items.sort(key=rank)


@contextmanager
def serving(make: Callable[[], AnyServer]) -> Iterator[AnyServer]:
    """A started server; where it isn't installed the test is skipped, or fails in CI, which must run every test."""
    try:
        server = make()
    except ServerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgresql15() -> Iterator[PostgreSQL]:
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql18() -> Iterator[PostgreSQL]:
    with serving(lambda: PostgreSQL(18, durable=False)) as server:
        yield server


@pytest.fixture(scope="session", params=["postgresql15", "postgresql18"])
def postgresql(request: pytest.FixtureRequest) -> PostgreSQL:
    """Each version in turn."""
    server: PostgreSQL = request.getfixturevalue(request.param)
    return server


GUARDED_PASSWORD = "Tr0ub4dor"


@pytest.fixture(scope="session")
def guarded() -> Iterator[PostgreSQL]:
    """A server whose role `shop` has to give its password, GUARDED_PASSWORD."""
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        server.guard("shop", GUARDED_PASSWORD)
        yield server


@pytest.fixture
def database(postgresql: PostgreSQL) -> Iterator[str]:
    """The URL of a fresh database, on each version in turn."""
    postgresql.start()  # the test before may have left it down
    url = postgresql.create_database()
    yield url
    postgresql.start()
    postgresql.drop_database(url)


@pytest.fixture(scope="session")
def pgbouncer15(postgresql15: PostgreSQL) -> Iterator[PgBouncer]:
    """A pooler in transaction mode, before PostgreSQL 15."""
    with serving(lambda: PgBouncer(postgresql15)) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    with serving(RabbitMQ) as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    with serving(Redis) as server:
        yield server


@pytest.fixture
def vhost(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The URL of a fresh virtual host."""
    rabbitmq.start()
    url = rabbitmq.create_vhost()
    yield url
    rabbitmq.start()
    rabbitmq.delete_vhost(url)
