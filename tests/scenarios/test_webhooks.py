"""Two services without a broker: a relay that sends webhooks, and one that receives them and is killed with SIGKILL."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from postroad import Outbox
from postroad.stores.sqlite import migrate_sqlite
from tests.polling import until
from tests.services.server import free_port

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ORDERS, CUSTOMERS = 600, 20


@contextmanager
def process(*command: str, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=output, env=os.environ | environment
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def shipped(database: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        return connection.execute("select customer, number from shipped order by rowid").fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A log with orders of several customers."""
    path = tmp_path / "shop.sqlite"
    migrate_sqlite(path)
    outbox = Outbox(source="/shop")
    with closing(sqlite3.connect(path)) as connection:
        for number in range(ORDERS):
            outbox.add(connection, {"number": number}, type="order.placed", key=f"customer-{number % CUSTOMERS}")
        connection.commit()
    return path


async def test_each_order_is_shipped_once_and_in_order_though_the_receiver_is_killed(
    shop: Path, tmp_path: Path
) -> None:
    warehouse, secrets, port = tmp_path / "warehouse.sqlite", tmp_path / "secrets", str(free_port())
    migrate_sqlite(warehouse)
    with closing(sqlite3.connect(warehouse)) as connection:
        connection.execute("create table shipped (customer text, number int)")
    secrets.write_text(f"{SECRET}\n")
    secrets.chmod(0o600)
    environment = {"WAREHOUSE": str(warehouse), "WAREHOUSE_SECRETS": str(secrets)}
    receiver = ["uvicorn", "tests.scenarios.webhook_service:app", "--port", port, "--log-level", "warning"]
    options = [
        "--to",
        f"http://127.0.0.1:{port}/",
        "--http-allow-plaintext",
        "true",
        "--http-secrets-file",
        str(secrets),
    ]
    options += ["--http-allow-networks", "127.0.0.1", "--database", f"sqlite:///{shop}", "--outage-backoff", "200ms"]
    log = tmp_path / "log"
    with process("postroad", "relay", *options, log=log):
        for target in (ORDERS // 4, ORDERS // 2):
            with process(*receiver, log=log, **environment):
                await until(lambda target=target: len(shipped(warehouse)) >= target)  # type: ignore[misc]
            assert len(shipped(warehouse)) < ORDERS, log.read_text()
        with process(*receiver, log=log, **environment):
            await until(lambda: len(shipped(warehouse)) >= ORDERS)
    found = shipped(warehouse)
    assert sorted(number for _, number in found) == list(range(ORDERS)), "each once"
    for customer in range(CUSTOMERS):
        numbers = [number for name, number in found if name == f"customer-{customer}"]
        assert numbers == sorted(numbers), "in order"
    assert "Traceback" not in log.read_text()
