"""Metrics and probes of real processes, scraped by a real Prometheus: every metric comes out, and every panel of the
dashboard and every alert gets an answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroad import Message
from postroad.metrics import DatabaseReader, Metrics, MetricsServer
from postroad.metrics.catalog import CATALOG, CONSUMER, DATABASE
from postroad.metrics.database import EVERY_SECONDS
from tests.conftest import serving
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import PostgreSQLLog
from tests.polling import until
from tests.relays import ROOT, relay
from tests.services.postgresql import PostgreSQL
from tests.services.prometheus import Prometheus
from tests.services.server import free_port

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "postroad.json"
SUCCESS = "postroad_exporter_last_success_timestamp_seconds"
VARIABLES = {"$job": ".*", "$sink": ".*", "$__rate_interval": "1m"}


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def postroad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def get(port: int, path: str) -> httpx.Response | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60)
    except httpx.TransportError:
        return None


def status(port: int, path: str) -> int:
    answer = get(port, path)
    return 0 if answer is None else answer.status_code


def scraped(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each metric, by its labels' values."""
    answer = get(port, "/metrics")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text if answer else ""):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


class Processes(NamedTuple):
    log: PostgreSQLLog
    relay: int
    consumer: int
    """Their ports."""
    prometheus: Prometheus


@pytest.fixture
async def processes(postgresql15: PostgreSQL, vhost: str, tmp_path: Path) -> AsyncIterator[Processes]:
    """A relay, a consumer and a Prometheus; messages of which some are refused, fail, or have no queue."""
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.execute("drop table if exists effects")
    await log.execute('create table effects ("order" integer, attempt integer)')
    ports = free_port(), free_port()
    with ExitStack() as stack:
        stack.enter_context(
            relay(log, vhost, tmp_path / "relay.log", "--metrics-port", str(ports[0]), "--settle-interval", "0")
        )
        stack.enter_context(
            running(
                tmp_path,
                "consume",
                "--app",
                "tests.scenarios.services:alone",
                "--metrics-port",
                str(ports[1]),
                SERVICE_DATABASE=log.url,
                SERVICE_BROKER=vhost,
            )
        )
        prometheus = stack.enter_context(serving(lambda: Prometheus(ports, [ALERTS])))
        await until(lambda: status(ports[1], "/readyz") == 200)
        async with rabbitmq_channel(vhost) as channel:
            await bound_queue(channel, "rest", "other.#")
        orders = [Message({"order": n}, type="order.created", key=n) for n in range(50)]
        orders.append(Message({"order": 99, "poison": "fails three times"}, type="order.created", key=99))
        await until(lambda: status(ports[0], "/readyz") == 200)
        await log.add(*orders, Message({}, type="nobody.wants.this"))
        yield Processes(log, *ports, prometheus)
    await log.close()


async def test_every_metric_comes_out_and_every_panel_and_alert_has_an_answer(processes: Processes) -> None:
    handled = ("alone", "handled")
    await until(lambda: scraped(processes.consumer).get("postroad_consumer_messages_total", {}).get(handled) == 51)
    await until(lambda: scraped(processes.relay).get("postroad_outbox_log_position", {}).get(()) == 52)

    relay, consumer = scraped(processes.relay), scraped(processes.consumer)
    assert sum(relay["postroad_relay_published_messages_total"].values()) == 51
    assert relay["postroad_relay_refusals_total"]["default", "route"] >= 1
    assert relay["postroad_relay_routes_blocked"] == {("default",): 1}
    assert relay["postroad_relay_broker_up"] == relay["postroad_relay_listening"] == {("default",): 1}
    assert relay["postroad_relay_lanes"] == {("default",): 4}
    assert relay["postroad_relays"] == {("default", "active"): 1, ("default", "standby"): 0, ("default", "dead"): 0}
    assert relay["postroad_relay_delivery_latency_seconds_count"] == {("default",): 51}
    assert consumer["postroad_consumer_messages_total"]["alone", "failed"] == 3
    assert consumer["postroad_consumer_end_to_end_seconds_count"] == {("alone",): 51}

    parts = {name: [name] if metric.kind != "histogram" else [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
             for name, metric in CATALOG.items()}  # fmt: skip
    of_consumer = {part for metric in CONSUMER for part in parts[metric.name]}
    assert of_consumer <= set(consumer)
    assert {part for each in parts.values() for part in each} - of_consumer <= set(relay)

    await asyncio.to_thread(ask_every_panel, processes.prometheus)
    await until(lambda: rules(processes.prometheus) == {"ok"})
    assert processes.prometheus.query("count(up == 1)")[0]["value"][1] == "2"


def ask_every_panel(prometheus: Prometheus) -> None:
    """Each query of the dashboard is answered, with values: a metric that does not exist would give none."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = {
        f"{panel['title']}: {target['expr']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    assert len(queries) > 30

    async def ask() -> None:
        for name, query in queries.items():
            try:
                await until(partial(answered, prometheus, query))
            except TimeoutError:
                pytest.fail(f"no value for {name}")

    asyncio.run(ask())
    for annotation in dashboard["annotations"]["list"]:
        answered(prometheus, annotation["expr"])


def answered(prometheus: Prometheus, query: str) -> bool:
    """Whether a query of the dashboard has values, for all jobs and sinks."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return bool(prometheus.query(query))


def rules(prometheus: Prometheus) -> set[str]:
    """How the evaluation of the alerts went."""
    groups = prometheus.get("rules")["groups"]
    found: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
    assert len(found) == 12
    assert [rule for rule in found if rule["lastError" if "lastError" in rule else "health"] == "err"] == []
    return {rule["health"] for rule in found}


async def test_a_standby_is_ready_and_a_relay_whose_broker_is_out_too(postgresql15: PostgreSQL, tmp_path: Path) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    nowhere = f"amqp://127.0.0.1:{free_port()}"
    ports = free_port(), free_port()
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            options = ("--lanes", "1", "--metrics-port", str(port))
            stack.enter_context(relay(log, nowhere, tmp_path / f"{number}.log", *options))
        lanes = ("postroad_relay_lanes", ("default",))
        await until(lambda: sorted(scraped(port).get(lanes[0], {}).get(lanes[1], -1) for port in ports) == [0, 1])
        for port in ports:
            assert (status(port, "/livez"), status(port, "/readyz")) == (200, 200)
            assert scraped(port)["postroad_relay_broker_up"] == {("default",): 0}
        said = sorted(postroad("health", "--metrics-port", str(port)).stdout for port in ports)
        assert said == ["ready: relay default: owns 1 lane\n", "ready: relay default: standing by\n"]
        done = postroad("health", "--live", "--json", POSTROAD_METRICS_PORT=str(ports[0]))
        assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    await log.close()


async def test_the_connections_of_a_relay_are_as_many_as_the_pages_say(
    postgresql15: PostgreSQL, tmp_path: Path
) -> None:
    log, port = await PostgreSQLLog.fresh(postgresql15), free_port()
    with relay(log, "null://", tmp_path / "relay.log", "--metrics-port", str(port)):
        await until(lambda: scraped(port).get(SUCCESS, {}).get((), 0) > 0)
        expected = [("postroad", 5 + 1), ("postroad listen", 1), ("postroad liveness", 1)]
        query = "select application_name, count(*) from pg_stat_activity where datname = current_database() and \
            application_name like 'postroad%' group by 1 order by 1"
        async with asyncio.timeout(60):
            while list(map(tuple, await log.execute(query))) != expected:  # noqa: ASYNC110 - there is no signal
                await asyncio.sleep(0.05)
    await log.close()
    docs = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("deployment", "capacity")}
    assert "holds seven connections to PostgreSQL: five for its work" in docs["deployment"]
    assert "each relay of a sink: seven, and one for its process's metrics" in docs["capacity"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def locked(log: PostgreSQLLog) -> AsyncIterator[None]:
    """Who reads the lanes waits for a transaction, as behind a migration that waits itself."""
    async with log.connected() as connection, connection.transaction():
        await connection.execute("lock table postroad.lanes in access exclusive mode")
        yield


@asynccontextmanager
async def frozen(server: PostgreSQL) -> AsyncIterator[None]:
    with server.frozen():
        yield


@pytest.mark.parametrize("trouble", ["locked", "frozen"])
async def test_while_the_database_hangs_the_last_values_are_served(trouble: str, postgresql15: PostgreSQL) -> None:
    log, clock = await PostgreSQLLog.fresh(postgresql15), Clock()
    metrics = Metrics(database=DatabaseReader(log.url, monotonic=clock))
    async with MetricsServer(metrics, port=0) as server:

        async def scrape() -> dict[str, dict[tuple[str, ...], float]]:
            clock.now += EVERY_SECONDS  # so that each scrape causes a reading
            return await asyncio.to_thread(scraped, server.port)

        before = await scrape()
        assert before[SUCCESS][()] > 0
        async with locked(log) if trouble == "locked" else frozen(postgresql15):
            for _ in range(2):
                found = await scrape()
                assert "postroad_relay_event_loop_lag_seconds" in found, "there was no answer"
                assert {each.name: found.get(each.name) for each in DATABASE} == {
                    each.name: before.get(each.name) for each in DATABASE
                }
        async with asyncio.timeout(60):
            while (await scrape())[SUCCESS][()] <= before[SUCCESS][()]:
                pass
    await log.close()


async def test_before_the_database_is_reached_a_relay_is_live_and_not_ready(tmp_path: Path) -> None:
    port, database = free_port(), f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    arguments = ("relay", "--database", database, "--to", "null://", "--metrics-port", str(port))
    with running(tmp_path, *arguments) as process:
        await until(lambda: status(port, "/livez") == 200)
        assert status(port, "/readyz") == 503
        done = postroad("health", "--metrics-port", str(port))
        assert (done.returncode, done.stdout) == (1, "not ready: relay default: waiting for its database\n")
        assert postroad("health", "--live", "--metrics-port", str(port)).returncode == 0
        assert scraped(port)[SUCCESS] == {(): 0}
        process.send_signal(signal.SIGTERM)
        _, stderr = await asyncio.to_thread(process.communicate, None, 60)
    assert stderr.count("metrics: the database can't be read") == 1
    assert f"metrics: http://127.0.0.1:{port}/metrics" in stderr
    assert "Traceback" not in stderr


def test_nothing_answers(tmp_path: Path) -> None:
    port = free_port()
    done = postroad("health", "--metrics-port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"postroad: no relay or consumer answers on 127\.0\.0\.1:{port}: .*refused\n", done.stderr)
    without = postroad("health")
    assert (without.returncode, without.stderr.count("\n")) == (2, 1)
    assert "metrics_port is not set; give it as --metrics-port N, as POSTROAD_METRICS_PORT" in without.stderr


def test_another_server_is_no_postroad(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with running(tmp_path, "health", "--metrics-port", str(port)) as process:
            connection, _ = other.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            connection.close()
            stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (1, "")
    assert stderr == f"postroad: what answers on 127.0.0.1:{port}/readyz is no postroad\n"


@pytest.mark.parametrize("command", ["relay", "consume"])
def test_a_port_in_use_is_one_line(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ("--database", f"sqlite:///{tmp_path}/none.sqlite", "--to", "null://")
        app = ("--app", "tests.scenarios.services:alone")
        done = postroad(
            command, *(where if command == "relay" else app), "--metrics-port", str(port), PYTHONPATH=str(ROOT)
        )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"metrics_port {port}: address already in use" in done.stderr.lower()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "80.5"])
def test_a_port_that_is_none_is_one_line(port: str) -> None:
    done = postroad("relay", "--database", "sqlite:///none", "--to", "null://", "--metrics-port", port)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "metrics_port is" in done.stderr
    assert "a whole number from 1 to 65,535" in done.stderr
