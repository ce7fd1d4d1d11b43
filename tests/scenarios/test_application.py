"""A relay in each of four workers of a FastAPI application: they share the lanes, and a killed one is not missed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lanes import pending
from tests.logs import PostgreSQLLog, log_fixture
from tests.queues import arrivals, with_queue
from tests.services.postgresql import PostgreSQL
from tests.services.server import free_port
from tests.traffic import Traffic

ROOT = Path(__file__).parents[2]


log = log_fixture("postgresql15")


@contextmanager
def application(log: PostgreSQLLog, to: str) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--workers", "4", "--port", str(free_port()), "--log-level", "warning"]
    with subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "tests.application:app", *options],
        env=os.environ | {"POSTROAD_DATABASE": log.url, "POSTROAD_TO": to},
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


PAGE = (ROOT / "docs" / "relays.md").read_text(encoding="utf-8")


def started(folder: Path, database: str, to: str, *, logs: bool = True, until: str = "") -> tuple[int, str]:
    """Run the application of docs/relays.md until it ends by itself, or prints this; its exit code, and its log."""
    [page] = [
        each for each in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "lifespan" in each
    ]
    # From the environment, so that no URL is in a line of a traceback.
    text = page.replace('"postgresql://localhost/shop"', "os.environ['DATABASE']")
    text = "import os\n" + text.replace('"amqp://localhost"', "os.environ['TO']")
    (folder / "shop.py").write_text(text if logs else text.replace("logging.basicConfig", "dict"))
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(free_port())]
    environment = os.environ | {"DATABASE": database, "TO": to}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(120, process.kill)
        limit.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if until and until in line:
                process.terminate()
                lines.append(process.stdout.read())
                break
        limit.cancel()
    return process.returncode, "".join(lines)


@pytest.mark.parametrize("logs", [True, False])
def test_an_application_whose_relay_can_t_reach_the_broker_says_so(
    log: PostgreSQLLog, tmp_path: Path, *, logs: bool
) -> None:
    code, output = started(tmp_path, log.url, "amqp://127.0.0.1:1", logs=logs, until="messages wait")
    assert code != 3, "it has started, and was ended by the signal"
    assert "relay default: amqp://127.0.0.1:1" in output
    assert ("relay default: started" in output) is logs, "without any setup, warnings are seen and nothing else"


def test_an_application_whose_relay_waits_for_the_database_can_be_stopped(tmp_path: Path) -> None:
    complete = "Application startup complete"
    code, output = started(tmp_path, "postgresql://shop@127.0.0.1:1/shop", "null://", logs=False, until=complete)
    assert code not in {3, -signal.SIGKILL}, "it has started, and was ended by the first signal"
    assert "waiting for the database" in output.partition(complete)[0]


def test_an_application_with_a_wrong_password_of_the_broker_does_not_start(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    code, output = started(tmp_path, log.url, vhost.replace("guest:guest", "guest:Tr0ub4dor"), logs=False)
    assert code == 3
    assert "the login was refused; check username and password" in output
    assert "Application startup failed" in output
    assert "Tr0ub4dor" not in output


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("password", 'password authentication failed for user "shop"'),
        ("role", 'role "stranger" does not exist'),
        ("database", 'database "nowhere" does not exist'),
        ("schema", "run: postroad migrate"),
    ],
)
def test_an_application_whose_relay_can_t_start_does_not_start(
    guarded: PostgreSQL, tmp_path: Path, wrong: str, words: str
) -> None:
    url = guarded.create_database()
    urls = {
        "password": url.replace("postgres@", "shop:battery-staple@"),
        "role": url.replace("postgres@", "stranger:battery-staple@"),
        "database": guarded.url("nowhere"),
        "schema": url,
    }
    code, output = started(tmp_path, urls[wrong], "null://", logs=False)
    assert code == 3
    assert words in output
    assert "Application startup failed" in output
    assert "battery-staple" not in output


async def owners(log: PostgreSQLLog) -> dict[int, int]:
    """Each worker's process, and how many lanes it has."""
    rows = await log.execute(
        "select pid, count(*) from postroad.lanes join postroad.relays using (owner) group by pid, owner"
    )
    return {row["pid"]: row["count"] for row in rows}


async def until_owners(log: PostgreSQLLog, *expected: int, gone: int | None = None) -> dict[int, int]:
    async with asyncio.timeout(120):
        while sorted((found := await owners(log)).values()) != list(expected) or gone in found:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def until_carried(log: PostgreSQLLog) -> None:
    async with asyncio.timeout(120):
        while await pending(log.url):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.05)


async def test_four_workers_carry_together_and_one_that_is_killed_is_not_missed(log: PostgreSQLLog, vhost: str) -> None:
    await with_queue(vhost)
    traffic = Traffic(5_000, keys=100)
    with application(log, vhost) as process:
        workers = await until_owners(log, 1, 1, 1, 1)
        assert process.pid not in workers
        await traffic.add_to(log)
        await until_carried(log)
        victim = min(workers)
        os.kill(victim, signal.SIGKILL)
        # uvicorn starts another worker, which gets the share of the one that died.
        await until_owners(log, 1, 1, 1, 1, gone=victim)
        async with traffic.growing(log):
            await asyncio.sleep(0.3)
        await until_carried(log)
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
    assert not traffic.check(await arrivals(vhost)), "nothing was under way when the worker was killed"
    rows = await log.execute("select pid from postroad.relays")
    assert [row["pid"] for row in rows] == [victim], "all others have left"
