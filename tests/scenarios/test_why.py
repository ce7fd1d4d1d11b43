"""An operator types `postroad why` and `postroad status`: real relays, PostgreSQL and RabbitMQ, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad import Message
from postroad.message import new_id
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import PostgreSQLLog, log_fixture
from tests.services.rabbitmq import RabbitMQ

log = log_fixture("postgresql15")

SECONDS = 90
ROUTE = "order.created"


class Shift:
    """What an operator can type, with a database and a broker."""

    def __init__(self, log: PostgreSQLLog, to: str, folder: Path) -> None:
        self._log = log
        self._folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | {
            "POSTROAD_DATABASE": log.url, "POSTROAD_TO": to, "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
        }  # fmt: skip

    def postroad(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "postroad", *arguments], env=self.environment, cwd=self._folder,
            capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def why(self, id: str) -> dict[str, Any]:
        (answer,) = json.loads(self.postroad("why", id, "--json"))["answers"]
        assert isinstance(answer, dict)
        return answer

    def until(self, id: str, reason: str) -> dict[str, Any]:
        return self._until(lambda: self.why(id), lambda answer: bool(answer["reason"] == reason))

    def until_notice(self, kind: str) -> dict[str, Any]:
        def found() -> dict[str, Any]:
            listed = json.loads(self.postroad("status", "--json"))["notices"]
            return next((each for each in listed if each["kind"] == kind), {})

        return self._until(found, bool)

    @staticmethod
    def _until(ask: Callable[[], dict[str, Any]], good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while not good(answer := ask()):
            assert time.monotonic() < end, answer
            time.sleep(0.2)
        return answer

    async def add(self, text: str = "{}", key: str = "k") -> str:
        id = new_id()
        await self._log.add(Message(text, type=ROUTE, key=key, id=id))
        return str(id)

    @contextmanager
    def relay(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / "relay.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "postroad", "relay", "--lanes", "2", "--lease", "3s", *options],
                env=self.environment, cwd=self._folder, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def shift(log: PostgreSQLLog, vhost: str, tmp_path: Path) -> Shift:
    return Shift(log, vhost, tmp_path)


async def bind(vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", ROUTE)


async def test_a_missing_binding(shift: Shift, vhost: str) -> None:
    first, second = await shift.add(), await shift.add()
    with shift.relay():
        answer = shift.until(first, "route blocked")
        assert answer["evidence"]["route"] == ROUTE
        assert "bind a queue" in answer["advice"]
        behind = shift.until(second, "behind")
        assert (behind["evidence"]["head"], behind["because"]["reason"]) == (first, "route blocked")
        assert shift.until_notice("route blocked")["command"] == "postroad messages --state held"
        assert "! sink 'default': 1 message waits for a blocked route, such as 'order.created'" in shift.postroad(
            "status"
        )
        shift.postroad("status", "--check", code=1)
        await bind(vhost)
        shift.until(second, "published")
        shift.until(first, "published")
        assert "All is well; running: 1 relay." in shift.postroad("status", "--check")


async def test_a_relay_that_is_killed(shift: Shift, vhost: str) -> None:
    await bind(vhost)
    with shift.relay() as relay:
        shift.until(await shift.add(), "published")
        relay.send_signal(signal.SIGKILL)
        relay.wait()
    id = await shift.add()
    answer = shift.until(id, "lease expired")
    assert answer["command"] == "postroad relay --sink default"
    assert answer["evidence"]["relays"] == 0
    notice = shift.until_notice("no relay")
    assert "1 message waits" in notice["text"]
    with shift.relay():
        shift.until(id, "published")


async def test_a_held_key_and_a_dead_message(shift: Shift, vhost: str) -> None:
    await bind(vhost)
    with shift.relay("--rabbitmq-max-message-size", "1000"):
        shift.until(await shift.add(), "published")
        shift.postroad("key", "hold", "k", "--reason", "customs", "--who", "anna")
        id = await shift.add()
        answer = shift.until(id, "key held")
        assert answer["text"].endswith(": customs")
        assert f"its first message, {id}: key 'k' is held, by anna since " in shift.postroad("why", "--key", "k")
        assert answer["command"] == "postroad key release k --sink default"
        shift.postroad(*answer["command"].split()[1:])
        shift.until(id, "published")
        large = await shift.add("x" * 2000)
        answer = shift.until(large, "dead")
        assert "2,000 bytes" in answer["text"] or "1000" in answer["text"] or "1,000" in answer["text"]
        assert shift.until_notice("dead")["command"] == "postroad dead list"
        shift.postroad("dead", "drop", large, "--reason", "too large", "--who", "ben", "--yes")
        answer = shift.until(large, "dropped")
        assert answer["text"].startswith("ben dropped it at ")


async def test_a_broker_that_is_out(shift: Shift, vhost: str, rabbitmq: RabbitMQ) -> None:
    await bind(vhost)
    with shift.relay("--outage-backoff", "500ms"):
        shift.until(await shift.add(), "published")
        rabbitmq.stop()
        id = await shift.add()
        answer = shift.until(id, "stalled")
        assert "its broker may be unavailable" in answer["advice"]
        assert answer["evidence"]["host"]
        rabbitmq.start()
        shift.until(id, "published")


async def test_bad_input(shift: Shift) -> None:
    for arguments in ([], ["1234", "--key", "k"], ["x"], ["--key", ""], ["1234", "--sink", "none"]):
        shift.postroad("why", *arguments, code=1 if arguments == ["1234", "--sink", "none"] else 2)
    text = shift.postroad("why", str(new_id()), code=1)
    assert "\nunknown\n  no message has this id" in text
