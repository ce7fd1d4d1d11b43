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


class Night:
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
def night(request: pytest.FixtureRequest, tmp_path: Path) -> Night:
    if request.param == "sqlite":
        return Night(f"sqlite:///{tmp_path / 'shop.sqlite'}", tmp_path)
    server = request.getfixturevalue("postgresql15")
    server.start()
    return Night(server.create_database(), tmp_path)


def test_a_night(night: Night) -> None:
    night.postroad("migrate")
    night.refuse("parcel.lost", "parcel.odd")
    with night.relay():
        (lost,) = night.add("parcel.lost", "parcel-1")
        (odd,) = night.add("parcel.odd", "parcel-2")
        (fine,) = night.add("parcel.sent", "parcel-3")
        night.until(lambda: fine in night.arrived and night.json("status")["totals"]["dead"] == 2)

        # two are dead: they are listed, and one is looked at
        assert {UUID(each["id"]) for each in night.json("dead", "list")["messages"]} == {lost, odd}
        listed = night.postroad("dead", "list", "--error", "NO PARCEL.LOST")
        assert str(lost) in listed
        assert str(odd) not in listed
        shown = night.postroad("dead", "show", str(lost), "--payload")
        assert "attempt 1 failed: ValueError: the warehouse wants no parcel.lost\\x1b[2J" in shown
        assert '| {\n  |   "number": 0\n' in shown
        assert "\x1b" not in listed + shown

        # the warehouse takes it now
        night.refuse("parcel.odd")
        assert night.postroad("dead", "retry", "--type", "parcel.lost", "--dry-run").startswith("1 dead message would")
        assert "Retry 1 dead message?" in night.postroad("dead", "retry", str(lost), code=2)
        assert lost not in night.arrived
        night.postroad("dead", "retry", str(lost), "--yes", "--who", "anna", "--reason", "binding is back")
        night.until(lambda: lost in night.arrived)

        # nobody wants the other one
        night.postroad("dead", "drop", "--type", "parcel.odd", "--yes", "--who", "anna", "--reason", "a test order")
        assert night.json("dead", "list")["messages"] == []
        (row,) = night.json("messages", "--state", "dropped")["messages"]
        assert UUID(row["id"]) == odd

        # a key is held: its messages wait, others don't, and then they go in order
        night.postroad("key", "hold", "parcel-3", "--who", "ben", "--reason", "customs")
        held = night.add("parcel.sent", "parcel-3", 3)
        (other,) = night.add("parcel.sent", "parcel-4")
        night.until(lambda: other in night.arrived)
        night.until(lambda: len(night.json("messages", "--state", "held")["messages"]) == 3)
        assert "key 'parcel-3' is held by ben" in night.postroad("status")
        assert not set(held) & set(night.arrived)
        night.postroad("key", "release", "parcel-3", "--who", "ben", "--reason", "customs are done")
        night.until(lambda: set(held) <= set(night.arrived))
        assert [id for id in night.arrived if id in held] == held

        # a sink is paused, under a relay that runs
        night.postroad("pause", "default", "--who", "ben", "--reason", "the warehouse moves")
        (late,) = night.add("parcel.sent", "parcel-5")
        status = night.postroad("status")
        assert "PAUSED" in status
        assert "sink 'default' is paused" in status
        assert late not in night.arrived
        night.postroad("resume", "default", "--who", "ben", "--reason", "it has moved")
        night.until(lambda: late in night.arrived)
        assert "PAUSED" not in night.postroad("status")

        # what was published by other means is not published again; what is wrong is taken out
        night.postroad("pause", "default", "--reason", "to be quick enough")
        (known,) = night.add("parcel.sent", "parcel-6")
        (wrong,) = night.add("parcel.sent", "parcel-7")
        night.postroad("message", "skip", str(known), "--yes", "--who", "ben", "--reason", "sent by mail")
        night.postroad("message", "poison", str(wrong), "--who", "ben", "--reason", "has no address")
        night.postroad("resume", "default")
        (last,) = night.add("parcel.sent", "parcel-6")
        night.until(lambda: last in night.arrived)
        assert "has no address" in night.postroad("message", "show", str(wrong))

        # and the day is sent again
        before = night.arrived.count(last)
        night.postroad(
            "rewind", "--to", "1h", "--key", "parcel-6", "--yes", "--who", "ben", "--reason", "lost in the move"
        )
        night.until(lambda: night.arrived.count(last) == before + 1)
        assert not {known, wrong, odd} & set(night.arrived)

    told = [(each["who"], each["command"], each["reason"], each["changed"]) for each in night.json("audit")]
    user = night.json("audit")[1]["who"]
    assert [(who, reason) for who, _, reason, _ in reversed(told)] == [
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
    assert all(changed >= 1 for *_, changed in told)
    for words in ("anna", "binding is back", "retry", "drop", "hold", "release", "pause", "resume", "skip", "rewind"):
        assert words in night.postroad("audit")
