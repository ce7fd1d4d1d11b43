"""deploy/orderflow/compose.yaml fits its schema, and its services, as processes on real servers, do what they should.

Each runs with the command and the variables that the file has; only addresses are replaced. A container has ports of
its own, so each process gets a port for its metrics.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.running import Processes, processes, until
from tests.deploy.dockerfile import exec_form, stages
from tests.deploy.tools import DEPLOY, ROOT, from_pypi, run
from tests.services.postgresql import PostgreSQL
from tests.services.server import free_port

FILE = DEPLOY / "orderflow" / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
IMAGE = stages(DEPLOY / "docker" / "Dockerfile")[""]
SERVERS = ("postgresql", "rabbitmq")


def test_it_fits_the_schema_of_compose_files() -> None:
    run(from_pypi("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", FILE)


def test_every_service_that_another_needs_is_there_and_reports_what_is_waited_for() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            other = SERVICES[needed]
            checked = other.get("healthcheck", {}).get("disable") is None and (needed in SERVERS or "build" in other)
            assert how["condition"] != "service_healthy" or checked, (name, needed)
            assert how["condition"] != "service_completed_successfully" or other["restart"] == "no", (name, needed)


def test_own_services_are_read_only_and_without_privileges() -> None:
    for name, service in SERVICES.items():
        if name not in SERVERS:
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
            for volume in service["volumes"]:
                assert volume.endswith(":ro"), name


class Project:
    """The services of the file, as processes."""

    def __init__(self, running: Processes, postgresql: PostgreSQL, vhost: str) -> None:
        self.running = running
        self.web, self._smtp = free_port(), free_port()
        self._metrics = {name: free_port() for name in SERVICES}
        self._addresses = {
            r"orderflow:orderflow@postgresql:5432/": postgresql.url("").partition("://")[2],
            r"amqp://orderflow:orderflow@rabbitmq:5672$": vhost,
            r"^(mailbox|0\.0\.0\.0)$": "127.0.0.1",
            r"^0\.0\.0\.0:8025$": f"127.0.0.1:{self._smtp}",
            r"^8025$": str(self._smtp),
            r"^8000$": str(self.web),
            r"^/app$": str(ROOT),
        }

    def start(self, name: str) -> None:
        """When what it depends on is there, as the file says."""
        for needed, how in SERVICES[name].get("depends_on", {}).items():
            if needed not in SERVERS and how["condition"] == "service_healthy":
                until(lambda needed=needed: self._is_healthy(needed), self.running)  # type: ignore[misc]
        self.running.start(name, *self._modules(name), **self._variables(name))

    def complete(self, name: str) -> None:
        command = [sys.executable, "-m", *self._modules(name)]
        subprocess.run(command, cwd=ROOT, env=os.environ | self._variables(name), check=True, timeout=300)

    def _modules(self, name: str) -> list[str]:
        """The command, to be run with `python -m`."""
        service = SERVICES[name]
        command = [*service.get("entrypoint", exec_form(IMAGE, "ENTRYPOINT")), *service.get("command", [])]
        return [self._here(word) for word in (command[2:] if command[:2] == ["python", "-m"] else command)]

    def _variables(self, name: str) -> dict[str, str]:
        own = {variable: self._here(value) for variable, value in SERVICES[name]["environment"].items()}
        return own | {"POSTROAD_METRICS_PORT": str(self._metrics[name]), "PYTHONUNBUFFERED": "1"}

    def _here(self, text: str) -> str:
        for pattern, address in self._addresses.items():
            text = re.sub(pattern, address, text)
        return text

    def _is_healthy(self, name: str) -> bool:
        check = [sys.executable, "-m", *exec_form(IMAGE, "HEALTHCHECK")]
        done = subprocess.run(
            check, cwd=ROOT, env=os.environ | self._variables(name), capture_output=True, timeout=120, check=False
        )
        return done.returncode == 0


def test_an_order_becomes_an_e_mail(postgresql15: PostgreSQL, vhost: str, tmp_path: Path) -> None:
    postgresql15.psql(postgresql15.url(), (FILE.parent / "databases.sql").read_text(encoding="utf-8"))
    try:
        with processes(tmp_path) as running:
            project = Project(running, postgresql15, vhost)
            project.complete("setup")
            project.complete("setup")
            for name in ("mailbox", "inventory", "mail", "relay-orders", "relay-inventory", "orders"):
                project.start(name)
            assert set(SERVICES) == {*SERVERS, "setup", *running.names()}
            address = f"http://127.0.0.1:{project.web}"
            until(lambda: answers(f"{address}/docs"), running)
            placed = httpx.post(f"{address}/orders", json={"email": "ann@example.org", "product": "kettle"})
            assert placed.status_code == 201
            subject = f"Subject: Order {placed.json()['order']}: your kettle is on its way"
            until(lambda: subject in running.log("mailbox"), running)
    finally:
        for name in ("orders", "inventory", "mail"):
            postgresql15.drop_database(postgresql15.url(name))


def answers(url: str) -> bool:
    """Whether it answers as the file's health check of the web service wants it."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
