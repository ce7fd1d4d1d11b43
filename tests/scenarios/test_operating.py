"""A night of an operator, through the command line, beside a relay that runs: look, retry, drop, hold, release, pause,
resume; and in the morning the audit tells who did what, and why.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from postroad import Outbox

WAIT_SECONDS = 120

RELAY = """
import asyncio, sys
from pathlib import Path
from postroad.brokers.local import LocalPublisher
from postroad.config import RelaySettings
from postroad.ops.process import run_relay
from postroad.relay import Relay
from postroad.stores import store_for

url, arrived, refused = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

async def deliver(message):
    if message.type in refused.read_text().split():
        raise ValueError(f"the warehouse wants no {message.type}\\x1b[2J")
    with arrived.open("a") as file:
        file.write(f"{message.id}\\n")

settings = RelaySettings(max_attempts=1, lanes=2, max_idle_backoff="100ms")
asyncio.run(run_relay(Relay(store_for(url), LocalPublisher(deliver), settings=settings)))
"""


class Shift:
    """A database, a relay beside it, and what arrived."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._arrived, self._refused = folder / "arrived", folder / "refused"
        self._arrived.touch()
        self._outbox = Outbox(source="/shop")

    def postroad(self, *arguments: str, code: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        done = subprocess.run(
            [sys.executable, "-m", "postroad", *arguments],
            env=environment | {"POSTROAD_DATABASE": self.url},
            capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def json(self, *arguments: str) -> Any:
        return json.loads(self.postroad(*arguments, "--json"))

    def add(self, type: str, key: str, messages: int = 1) -> list[UUID]:
        def added(connection: Any) -> list[UUID]:
            return [self._outbox.add(connection, {"number": n}, type=type, key=key) for n in range(messages)]

        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                return added(connection)
        with psycopg.connect(self.url) as server:
            return added(server)

    def refuse(self, *types: str) -> None:
        self._refused.write_text(" ".join(types))

    @property
    def arrived(self) -> list[UUID]:
        return [UUID(line) for line in self._arrived.read_text().splitlines()]

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for what the relay does in its own time."""
        end = time.monotonic() + WAIT_SECONDS
        while not reached():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

    @contextmanager
    def relay(self) -> Iterator[None]:
        command = [sys.executable, "-c", RELAY, self.url, str(self._arrived), str(self._refused)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield
                assert process.poll() is None, "the relay has ended"
            finally:
                process.kill()


@pytest.fixture(params=["sqlite", "postgresql"])
def shift(request: pytest.FixtureRequest, tmp_path: Path) -> Shift:
    if request.param == "sqlite":
        return Shift(f"sqlite:///{tmp_path / 'shop.sqlite'}", tmp_path)
    server = request.getfixturevalue("postgresql15")
    server.start()
    return Shift(server.create_database(), tmp_path)


def test_an_operators_shift(shift: Shift) -> None:
    shift.postroad("migrate")
    shift.refuse("parcel.lost", "parcel.odd")
    with shift.relay():
        (lost,) = shift.add("parcel.lost", "parcel-1")
        (odd,) = shift.add("parcel.odd", "parcel-2")
        (fine,) = shift.add("parcel.sent", "parcel-3")
        shift.until(lambda: fine in shift.arrived and shift.json("status")["totals"]["dead"] == 2)

        # two are dead: they are listed, and one is looked at
        assert {UUID(each["id"]) for each in shift.json("dead", "list")["messages"]} == {lost, odd}
        listed = shift.postroad("dead", "list", "--error", "NO PARCEL.LOST")
        assert str(lost) in listed
        assert str(odd) not in listed
        shown = shift.postroad("dead", "show", str(lost), "--payload")
        assert "attempt 1 failed: ValueError: the warehouse wants no parcel.lost\\x1b[2J" in shown
        assert '| {\n  |   "number": 0\n' in shown
        assert "\x1b" not in listed + shown

        # the warehouse takes it now
        shift.refuse("parcel.odd")
        assert shift.postroad("dead", "retry", "--type", "parcel.lost", "--dry-run").startswith("1 dead message would")
        assert "Retry 1 dead message?" in shift.postroad("dead", "retry", str(lost), code=2)
        assert lost not in shift.arrived
        shift.postroad("dead", "retry", str(lost), "--yes", "--who", "anna", "--reason", "binding is back")
        shift.until(lambda: lost in shift.arrived)

        # no queue takes the other one
        shift.postroad("dead", "drop", "--type", "parcel.odd", "--yes", "--who", "anna", "--reason", "a test order")
        assert shift.json("dead", "list")["messages"] == []
        (row,) = shift.json("messages", "--state", "dropped")["messages"]
        assert UUID(row["id"]) == odd

        # a key is held: its messages wait, others don't, and then they go in order
        shift.postroad("key", "hold", "parcel-3", "--who", "ben", "--reason", "customs")
        held = shift.add("parcel.sent", "parcel-3", 3)
        (other,) = shift.add("parcel.sent", "parcel-4")
        shift.until(lambda: other in shift.arrived)
        shift.until(lambda: len(shift.json("messages", "--state", "held")["messages"]) == 3)
        assert "key 'parcel-3' is held by ben" in shift.postroad("status")
        assert not set(held) & set(shift.arrived)
        shift.postroad("key", "release", "parcel-3", "--who", "ben", "--reason", "customs are done")
        shift.until(lambda: set(held) <= set(shift.arrived))
        assert [id for id in shift.arrived if id in held] == held

        # a sink is paused, under a relay that runs
        shift.postroad("pause", "default", "--who", "ben", "--reason", "the warehouse moves")
        (late,) = shift.add("parcel.sent", "parcel-5")
        status = shift.postroad("status")
        assert "PAUSED" in status
        assert "sink 'default' is paused" in status
        assert late not in shift.arrived
        shift.postroad("resume", "default", "--who", "ben", "--reason", "it has moved")
        shift.until(lambda: late in shift.arrived)
        assert "PAUSED" not in shift.postroad("status")

        # what was published by other means is not published again; what is wrong is taken out
        shift.postroad("pause", "default", "--reason", "to be quick enough")
        (known,) = shift.add("parcel.sent", "parcel-6")
        (wrong,) = shift.add("parcel.sent", "parcel-7")
        shift.postroad("message", "skip", str(known), "--yes", "--who", "ben", "--reason", "sent by mail")
        shift.postroad("message", "poison", str(wrong), "--who", "ben", "--reason", "has no address")
        shift.postroad("resume", "default")
        (last,) = shift.add("parcel.sent", "parcel-6")
        shift.until(lambda: last in shift.arrived)
        assert "has no address" in shift.postroad("message", "show", str(wrong))

        # and the day is sent again
        before = shift.arrived.count(last)
        shift.postroad(
            "rewind", "--to", "1h", "--key", "parcel-6", "--yes", "--who", "ben", "--reason", "lost in the move"
        )
        shift.until(lambda: shift.arrived.count(last) == before + 1)
        assert not {known, wrong, odd} & set(shift.arrived)

    logged = [(each["who"], each["command"], each["reason"], each["changed"]) for each in shift.json("audit")]
    user = shift.json("audit")[1]["who"]
    assert [(who, reason) for who, _, reason, _ in reversed(logged)] == [
        ("anna", "binding is back"),
        ("anna", "a test order"),
        ("ben", "customs"),
        ("ben", "customs are done"),
        ("ben", "the warehouse moves"),
        ("ben", "it has moved"),
        (user, "to be quick enough"),
        ("ben", "sent by mail"),
        ("ben", "has no address"),
        (user, None),
        ("ben", "lost in the move"),
    ]
    assert all(changed >= 1 for *_, changed in logged)
    for words in ("anna", "binding is back", "retry", "drop", "hold", "release", "pause", "resume", "skip", "rewind"):
        assert words in shift.postroad("audit")
