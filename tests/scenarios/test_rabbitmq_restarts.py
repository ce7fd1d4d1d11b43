"""From PostgreSQL to RabbitMQ while one or the other goes away underway: everything arrives, and each key in order.

The relay is a process of its own. What arrives twice is counted, and the relay's log, or the cursor that it had saved,
must say why.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pamqp.frame
import pytest
from pamqp import commands
from yarl import URL

from postroad import Message
from postroad.message import UNSET
from tests.conftest import serving
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import OUTBOX, PostgreSQLLog
from tests.services.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedRWPair
    from pathlib import Path

    from tests.services.postgresql import PostgreSQL

QUEUE = "all"
PER_TRANSACTION = 2_000
PATIENCE = 120


# -- what is sent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """The numbers from 1 to `count`, with so many keys in no regular order; one message in ten has none."""

    count: int
    keys: int

    def key_of(self, number: int) -> str | None:
        return f"key-{crc32(b'%d' % number) % self.keys}" if self.keys and number % 10 else None

    async def add_to(self, log: PostgreSQLLog) -> None:
        """Commit them in many transactions, and roll back some more."""
        connection = await log.connect()
        for first in range(1, self.count + 1, PER_TRANSACTION):
            async with connection.transaction():
                await OUTBOX.add_many(connection, self._messages(first, min(first + PER_TRANSACTION, self.count + 1)))
        await connection.close()
        await log.add_in_vain(*self._messages(self.count + 1, self.count + 100))

    def _messages(self, first: int, end: int) -> list[Message]:
        return [Message(str(n), type="test.number", key=self.key_of(n) or UNSET) for n in range(first, end)]

    def check(self, arrived: list[int]) -> Counter[int]:
        """Each number arrived, no other did, and each key's came in order, not counting what came before. How often
        each came again.
        """
        times = Counter(arrived)
        missing = [number for number in range(1, self.count + 1) if number not in times]
        assert not missing, f"{len(missing)} did not arrive, the first of them is {missing[0]}"
        assert len(times) == self.count, f"{max(times)} was never committed"
        latest: dict[str, int] = {}
        for number in dict.fromkeys(arrived):
            key = self.key_of(number)
            if key is not None:
                assert latest.get(key, 0) < number, f"{number} came after {latest[key]}, which has the same key"
                latest[key] = number
        assert len(latest) == self.keys
        return +Counter({number: count - 1 for number, count in times.items()})


@pytest.fixture
async def log(postgresql15: PostgreSQL) -> PostgreSQLLog:
    return await PostgreSQLLog.fresh(postgresql15)


class Place(NamedTuple):
    """Where a message stands in the log, which lane reads it, and how far that lane's saved cursor has come."""

    lane: int
    position: int
    saved: int


async def places(log: PostgreSQLLog, numbers: Sequence[int]) -> list[Place]:
    rows = await log.execute(
        """
        select lanes.lane, outbox.position, lanes.position
          from postroad.outbox join postroad.lanes on slot between first_slot and last_slot
         where payload = any($1)
        """,
        [b"%d" % number for number in numbers],
    )
    assert len(rows) == len(numbers)
    return [Place(*row) for row in rows]


async def pending(log: PostgreSQLLog) -> int:
    await log.store.open()
    try:
        return sum(lane.pending for lane in await log.store.status())
    finally:
        await log.store.close()


# -- the relay -------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A page: what a lane reads of the log after one position and up to another."""

    lane: int
    after: int
    through: int

    def holds(self, place: Place) -> bool:
        return self.lane == place.lane and self.after < place.position <= self.through


class RunningRelay:
    """`postroad relay --until-empty` in a process of its own, and what it writes to its log."""

    def __init__(self, log: PostgreSQLLog, to: str, log_file: Path, *options: str) -> None:
        self._log_file = log_file
        options = ("--until-empty", "--log-format", "json", "--log-level", "debug", *options)
        with log_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "postroad", "relay", *options],
                env=os.environ | {"POSTROAD_DATABASE": log.url, "POSTROAD_TO": to},
                cwd=log_file.parent,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    async def until(self, published: int) -> None:
        """Wait until it has published so many messages."""
        async with asyncio.timeout(PATIENCE):
            while sum(page["published"] for page in self.told("page_published")) < published:
                assert self.process.poll() is None, self._log_file.read_text()
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, PATIENCE)

    async def ended_by(self, number: signal.Signals) -> int:
        """Its exit code after a signal in the middle of its work."""
        assert self.process.poll() is None
        self.process.send_signal(number)
        return await self.ended()

    def told(self, *events: str) -> list[dict[str, Any]]:
        """The lines of its log about these events."""
        lines = self._log_file.read_text().splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.endswith("\n")]  # it may be writing the last one
        return [line for line in told if line.get("event") in events]

    def interrupted(self) -> Counter[Span]:
        """Of each page that was under way when the broker could not be asked: how many messages were not confirmed.

        Only for a relay that began at the beginning of the log.
        """
        pages: dict[int, Span] = {}
        out: set[int] = set()
        interrupted: Counter[Span] = Counter()
        for line in self.told("page_taken", "broker_out", "broker_back"):
            lane = line["lane"]
            if line["event"] != "broker_out":
                out.discard(lane)
            if line["event"] == "page_taken":
                before = pages.get(lane, Span(lane, 0, 0))
                pages[lane] = Span(lane, before.through, line["position"])
            elif line["event"] == "broker_out" and lane not in out:
                out.add(lane)
                interrupted[pages[lane]] += line["waiting"]
        return interrupted


@contextmanager
def relay(log: PostgreSQLLog, to: str, log_file: Path, *options: str) -> Iterator[RunningRelay]:
    running = RunningRelay(log, to, log_file, *options)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


# -- what arrives ----------------------------------------------------------------------------------------------------


async def with_queue(url: str) -> None:
    """A durable queue that takes everything."""
    async with rabbitmq_channel(url) as channel:
        await bound_queue(channel, QUEUE)


async def arrivals(url: str) -> list[int]:
    """The numbers in the queue, in order, duplicates and all."""

    def bodies(server: URL) -> list[bytes]:
        address = str(server.host), server.port or 5672
        with socket.create_connection(address, PATIENCE) as connection, connection.makefile("rwb") as stream:
            return Bare(stream, server).drain(QUEUE)

    return [int(body) for body in await asyncio.to_thread(bodies, URL(url))]


class Bare:
    """A connection with one channel, without a client library: those take ten times as long to read a queue."""

    def __init__(self, stream: BufferedRWPair, url: URL) -> None:
        self._stream = stream
        stream.write(b"AMQP\0\0\x09\x01")
        self._method()
        login = f"\0{url.user}\0{url.password}"
        tune = self._ask(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        assert isinstance(tune, commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._ask(commands.Connection.Open(url.path[1:].replace("%2F", "/") or "/"), channel=0)
        self._ask(commands.Channel.Open())

    def drain(self, queue: str) -> list[bytes]:
        """The bodies of all that is in the queue, in order."""
        declared = self._ask(commands.Queue.Declare(queue=queue, passive=True))
        assert isinstance(declared, commands.Queue.DeclareOk)
        self._ask(commands.Basic.Consume(queue=queue, no_ack=True))
        bodies = []
        for _ in range(declared.message_count or 0):
            self._frame()  # basic.deliver
            self._frame()  # the properties
            bodies.append(self._frame())
        return bodies

    def _ask(self, request: pamqp.frame.FrameTypes, channel: int = 1) -> pamqp.frame.FrameTypes:
        self._send(request, channel)
        return self._method()

    def _send(self, frame: pamqp.frame.FrameTypes, channel: int) -> None:
        self._stream.write(pamqp.frame.marshal(frame, channel))

    def _method(self) -> pamqp.frame.FrameTypes:
        self._stream.flush()
        payload = self._frame()
        return pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")[2]

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">xxxI", self._stream.read(7))
        return self._stream.read(size + 1)[:-1]


def report(text: str) -> None:
    """What a test has counted; `pytest -rP` shows it."""
    print(text)  # noqa: T201


# -- the scenarios ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RabbitMQ]:
    """One of its own, because it is restarted and killed."""
    with serving(RabbitMQ) as server:
        yield server


async def test_the_broker_is_restarted_and_killed(log: PostgreSQLLog, server: RabbitMQ, tmp_path: Path) -> None:
    """Twice may come what was sent and not confirmed when the broker went away, and nothing else."""
    traffic = Traffic(100_000, keys=400)
    await with_queue(server.url())
    await traffic.add_to(log)
    with relay(log, server.url(), tmp_path / "log") as running:
        await running.until(25_000)
        assert not running.interrupted()
        await asyncio.to_thread(server.restart)
        once = running.interrupted()
        assert once
        await running.until(60_000)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert await running.ended() == 0
    assert await pending(log) == 0
    (end,) = running.told("relay_ended")
    assert end["published"] == traffic.count
    assert not running.told("message_refused", "lane_lost", "lane_reloaded", "store_out")
    under_way = running.interrupted()
    assert len(under_way) > len(once)

    again = traffic.check(await arrivals(server.url()))
    explained: Counter[Span] = Counter()
    for place in await places(log, list(again)):
        (page,) = [each for each in under_way if each.holds(place)]
        explained[page] += 1
    assert explained <= under_way
    report(
        f"{traffic.count:,} arrived, {again.total()} of them again: "
        f"{under_way.total()} in {len(under_way)} pages were under way when the broker went away"
    )


@pytest.mark.parametrize("keys", [0, 400])
async def test_a_relay_that_is_asked_to_stop_sends_nothing_again(
    log: PostgreSQLLog, vhost: str, tmp_path: Path, keys: int
) -> None:
    traffic = Traffic(20_000, keys)
    await with_queue(vhost)
    await traffic.add_to(log)
    # Nothing is saved in time, so it must be done when the relay stops.
    with relay(log, vhost, tmp_path / "first", "--settle-interval", "1h") as running:
        await running.until(5_000)
        assert await running.ended_by(signal.SIGTERM) == 0
    left = await pending(log)
    assert 0 < left < traffic.count
    with relay(log, vhost, tmp_path / "second") as running:
        assert await running.ended() == 0
    assert await pending(log) == 0
    again = traffic.check(await arrivals(vhost))
    report(f"{traffic.count:,} arrived, {again.total()} of them again; {left:,} were left to the second relay")
    assert not again


async def test_a_relay_that_is_killed_sends_again_what_it_had_not_saved(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    traffic = Traffic(20_000, keys=400)
    await with_queue(vhost)
    await traffic.add_to(log)
    with relay(log, vhost, tmp_path / "first") as running:
        await running.until(5_000)
        assert await running.ended_by(signal.SIGKILL) == -signal.SIGKILL
    saved = {place.lane: place.saved for place in await places(log, range(1, traffic.count + 1))}
    with relay(log, vhost, tmp_path / "second") as running:
        assert await running.ended() == 0
    assert await pending(log) == 0
    again = traffic.check(await arrivals(vhost))
    report(f"{traffic.count:,} arrived, {again.total()} of them again")
    assert all(place.position > saved[place.lane] for place in await places(log, list(again)))
    assert set(again.values()) <= {1}
