"""A handler's failure is seen: its traceback is in the log, wherever the handler runs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from postroad import Consumer, LocalPublisher, Received, Relay, RelaySettings, StoredMessage, events
from postroad.brokers.memory import MemoryQueue
from postroad.events import Event
from postroad.ops.logs import JsonLines, Lines
from tests.consumers import AT_ONCE, Numbered, consumed, consumer, put
from tests.logs import MemoryLog, SQLiteLog, numbered
from tests.places import on_sqlite


def about(records: list[logging.LogRecord], *kinds: type[Event]) -> list[logging.LogRecord]:
    return [record for record in records if vars(record).get("event") in {kind.name() for kind in kinds}]


def fail(number: int) -> None:
    raise LookupError(f"no order {number} at amqp://me:geheim@host/x")


def check(record: logging.LogRecord) -> None:
    """It has the exception, and whatever formatter shows it shows where it was raised, and no password."""
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
    plain = logging.Formatter("%(message)s").format(record)
    text = Lines(debug=False).format(record)
    fields = json.loads(JsonLines(debug=False).format(record))
    for shown in (plain, text, fields["traceback"]):
        assert "in fail\n" in shown
        assert "LookupError: no order 1 at amqp://me:***@host/x" in shown
        assert "Traceback (most recent call last)" in shown
        assert "geheim" not in shown
    assert fields["error"] == "LookupError: no order 1 at amqp://me:***@host/x"
    first_file = next(line for line in text.splitlines() if line.lstrip().startswith("File "))
    assert "/tests/" in first_file, "it begins with the user's code"
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


@pytest.mark.parametrize("driver", ["aiosqlite", "sqlite3"])
async def test_in_a_consumer(driver: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, queue = on_sqlite(driver, tmp_path / "app.sqlite"), MemoryQueue()
    it = consumer(place, queue)
    it.on(Numbered)(place.handler(lambda event, message: fail(event.number)))
    put(queue, 1)
    assert (await consumed(it)).dead == 1
    failed = about(caplog.records, events.HandlerFailed, events.MessageDeadLettered)
    assert [record.levelname for record in failed] == ["WARNING", "WARNING", "ERROR"]
    for record in failed:
        check(record)


async def test_in_a_relay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, log = on_sqlite("aiosqlite", tmp_path / "app.sqlite"), SQLiteLog(tmp_path / "log.sqlite")
    it: Consumer[Any] = Consumer(name="stock", begin=place.begin)
    it.on(bytes, type="test.number")(_handler)
    await log.add(*numbered(1))
    await Relay(log.store, it.publisher(), settings=RelaySettings(lanes=1)).run_until_empty()
    (refused,) = about(caplog.records, events.MessageRefused)
    check(refused)


async def _handler(event: bytes, tx: Any, message: Received) -> None:
    await asyncio.sleep(0)
    fail(int(event))


async def test_in_a_function_as_destination(caplog: pytest.LogCaptureFixture) -> None:
    async def destination(message: StoredMessage) -> None:
        fail(int(message.payload))

    log = MemoryLog()
    await log.add(*numbered(1))
    settings = RelaySettings(lanes=1, max_attempts=1)
    await Relay(log.store, LocalPublisher(destination), settings=settings).run_until_empty()
    (dead,) = about(caplog.records, events.MessageDead)
    check(dead)


async def test_in_a_publisher_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name = destination = "broken"

        async def open(self) -> None: ...

        async def publish(self, messages: Any) -> Any:
            fail(1)

        async def close(self) -> None: ...

    log = MemoryLog()
    await log.add(*numbered(1, 2))
    await Relay(log.store, Broken(), settings=RelaySettings(lanes=1)).run_until_empty()
    seen = about(caplog.records, events.MessagesSuspected, events.MessageRefused)
    assert len(seen) == 3
    for record in seen:
        check(record)


async def test_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, queue = on_sqlite("aiosqlite", tmp_path / "app.sqlite"), MemoryQueue()
    it = consumer(place, queue)

    async def handle(pairs: Any, tx: Any) -> None:
        if len(pairs) > 1:
            fail(1)

    it.on_batch(Numbered)(handle)
    put(queue, 1, 2)
    assert (await consumed(it)).handled == 2
    (failed,) = about(caplog.records, events.GroupFailed)
    check(failed)


async def test_an_event_with_an_exception_is_the_same_event() -> None:
    made = [events.RelayFailed("s", reason="x") for _ in range(2)]
    assert made[0].exception is None
    assert made[0].caused_by(error := ValueError()) is made[0]
    assert made[0].exception is error
    assert made[0] == made[1]
    assert made[0].caused_by(None).exception is error


async def test_a_consumer_reports_while_messages_move(tmp_path: Path) -> None:
    class Progress:
        seen = asyncio.Event()
        handled = 0

        def on_event(self, event: Event) -> None:
            if isinstance(event, events.ConsumerProgress):
                self.handled += event.handled
                self.seen.set()

    place, queue, progress = on_sqlite("aiosqlite", tmp_path / "app.sqlite"), MemoryQueue(), Progress()
    it = consumer(place, queue, retry=AT_ONCE, report_interval="1ms", listeners=[progress])
    it.on(Numbered)(place.handler())
    put(queue, 1)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        await progress.seen.wait()
    it.stop()
    await running
    assert progress.handled == 1
