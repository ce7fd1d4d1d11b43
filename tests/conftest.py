"""The real servers, one of each per session, started by the first test that needs it."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.services import chromium
from tests.services.kafka import Kafka
from tests.services.nats import NATS
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis
from tests.services.s3 import S3
from tests.services.server import Server, ServerMissing

if TYPE_CHECKING:
    from playwright.async_api import Browser

AnyServer = TypeVar("AnyServer", bound=Server)


# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 6 << 30  # the servers of three workers use up to 3 GB


def pytest_configure() -> None:
    # When terminated, as by `timeout`, Python would leave the servers running; interrupted, it stops them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # In the background of a shell, SIGINT is ignored, and every process that a test starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start many processes of `postroad`; without bytecode each of them would compile it anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Files in memory: a disk takes most of the time that a new schema needs, and tests kill servers, not machines.
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH_MEMORY:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


SLOW_FIRST = ("scenarios", "browser", "examples", "security", "properties", "integrations", "contracts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: when one worker has only those left, the others have nothing to do."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)

    items.sort(key=rank)


@contextmanager
def serving(make: Callable[[], AnyServer]) -> Iterator[AnyServer]:
    """A started server, if it is installed."""
    with found(make) as server:
        yield server


def found(look: Callable[[], Any]) -> Any:
    """What is there; where it isn't installed the test is skipped, or fails in CI, which must run every test."""
    try:
        return look()
    except ServerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


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
def redis_server() -> Iterator[Redis]:
    with serving(lambda: Redis(tls=True)) as server:
        yield server


@pytest.fixture
def redis(redis_server: Redis) -> Redis:
    """A server with nothing in it, which serves."""
    redis_server.start()  # the test before may have left it down, or frozen
    redis_server.call("FLUSHALL")
    return redis_server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Kafka]:
    with serving(Kafka) as server:
        yield server


@pytest.fixture
def kafka(kafka_server: Kafka) -> Kafka:
    """One broker, which serves; tests create topics of their own."""
    kafka_server.start()  # the test before may have left it down, or frozen
    return kafka_server


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[Kafka]:
    with serving(lambda: Kafka(3)) as server:
        yield server


@pytest.fixture
def kafka3(kafka_servers: Kafka) -> Kafka:
    """Three brokers, which serve."""
    kafka_servers.start()
    return kafka_servers


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NATS]:
    with serving(NATS) as server:
        yield server


@pytest.fixture
def nats(nats_server: NATS) -> NATS:
    """One server, which serves; tests create streams of their own."""
    nats_server.start()  # the test before may have left it down, or frozen
    return nats_server


@pytest.fixture(scope="session")
def nats_servers() -> Iterator[NATS]:
    with serving(lambda: NATS(3)) as server:
        yield server


@pytest.fixture
def nats3(nats_servers: NATS) -> NATS:
    """A cluster of three servers, which serve."""
    nats_servers.start()
    return nats_servers


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    with serving(S3) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A server with S3's interface, which serves; the environment has its credentials. Tests create buckets."""
    s3_server.start()  # the test before may have left it down
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """Chromium; each test makes a context of its own. Tests that use it run in the loop of the session."""
    found(chromium.find)
    async with chromium.chromium() as browser:
        yield browser


@pytest.fixture
def vhost(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The URL of a fresh virtual host."""
    rabbitmq.start()
    url = rabbitmq.create_vhost()
    yield url
    rabbitmq.start()
    rabbitmq.delete_vhost(url)
