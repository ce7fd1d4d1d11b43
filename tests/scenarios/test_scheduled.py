"""Canceling, while a relay moves what is due, is killed and begins again, or sends again what was refused.

Whatever was answered is what happened.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from postroad import Cancellation, Message, Refusal, StoredMessage
from postroad.config import RelaySettings
from postroad.message import new_id
from postroad.relay import Relay
from tests.logs import PLENTY, Arrivals, PostgreSQLLog, SQLiteLog, numbered

MESSAGES = 400
SPREAD = 5.0  # seconds over which they fall due

# Another process: it cancels each message around the moment in which it falls due, in a transaction of its own, and
# rolls some of those back. It tells what it was answered when the transaction is over.
CANCELER = """
import json, random, sys, time
from contextlib import closing
from uuid import UUID
from postroad import Outbox

def connect(database):
    if database.startswith("postgresql:"):
        import psycopg
        return psycopg.connect(database)
    import sqlite3
    return sqlite3.connect(database, timeout=60)

outbox, chance = Outbox(source="/tests"), random.Random(7)
plan = sorted((due + chance.uniform(-0.03, 0.03), id) for id, due in json.load(sys.stdin))
with closing(connect(sys.argv[1])) as connection:
    for moment, id in plan:
        time.sleep(max(0.0, moment - time.time()))
        answer = outbox.cancel(connection, UUID(id))
        time.sleep(chance.choice([0, 0, 0, 0.005]))
        kept = chance.random() < 0.9
        (connection.commit if kept else connection.rollback)()
        print(json.dumps([id, answer.value, kept]), flush=True)
"""


@pytest.fixture(params=["sqlite", "postgresql15"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLiteLog | PostgreSQLLog]:
    if request.param == "sqlite":
        yield SQLiteLog(tmp_path / "log.sqlite")
    else:
        yield await PostgreSQLLog.fresh(request.getfixturevalue(request.param))


def database_of(log: SQLiteLog | PostgreSQLLog) -> str:
    return log.url if isinstance(log, PostgreSQLLog) else f"sqlite:///{log.path}"


def command(log: SQLiteLog | PostgreSQLLog, *options: str) -> list[str]:
    return [sys.executable, "-m", "postroad", "relay", "--database", database_of(log), "--to", "null://", *options]


@contextmanager
def canceling(address: str, plan: str) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-c", CANCELER, address]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(plan)
        process.stdin.close()
        yield process
    assert process.returncode == 0


@contextmanager
def relaying(log: SQLiteLog | PostgreSQLLog, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A relay in a process of its own, killed at the end."""
    with subprocess.Popen(command(log, *options), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until_moved(relay: subprocess.Popen[str], times: int) -> None:
    """Read what the relay tells until it has moved something so many times."""
    for line in relay.stderr or ():
        times -= "scheduled messages into the log" in line
        if not times:
            return
    pytest.fail("the relay has ended")


async def logged(log: SQLiteLog | PostgreSQLLog) -> Counter[UUID]:
    """How often each id is in the log."""
    await log.store.open()
    (lane,) = await log.store.take_lanes("audit", new_id(), lanes=1, start="oldest")
    found: Counter[UUID] = Counter()
    cursor = lane.cursor
    while (page := await log.store.read(lane, cursor, PLENTY)).messages:
        found.update(message.id for message in page.messages)
        cursor = page.after
    await log.store.close()
    return found


async def test_two_processes_race_for_each_message_and_the_answers_are_true(log: SQLiteLog | PostgreSQLLog) -> None:
    """One moves what is due, is killed three times in the middle of it and begins again; the other one cancels."""
    chance = random.Random(11)
    first = datetime.now(UTC) + timedelta(seconds=2)
    due = {new_id(): first + timedelta(seconds=chance.uniform(0, SPREAD)) for _ in range(MESSAGES)}
    await log.add(*(Message("1", type="t", id=id, deliver_at=at) for id, at in due.items()))
    plan = json.dumps([(str(id), at.timestamp()) for id, at in due.items()])
    address = log.url if isinstance(log, PostgreSQLLog) else str(log.path)

    def race() -> list[tuple[str, str, bool]]:
        with canceling(address, plan) as canceler:
            for _ in range(3):
                with relaying(log, "--log-level", "debug") as relay:
                    until_moved(relay, times=15)
            with relaying(log):
                return [json.loads(line) for line in canceler.stdout or ()]

    def empty() -> None:
        done = subprocess.run(command(log, "--until-empty"), check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    answers = await asyncio.to_thread(race)
    await asyncio.to_thread(empty)
    assert len(answers) == MESSAGES
    canceled = {UUID(id) for id, answer, kept in answers if answer == "canceled" and kept}
    too_late = {UUID(id) for id, answer, _ in answers if answer == "too late"}
    rolled_back = {UUID(id) for id, answer, kept in answers if answer == "canceled" and not kept}
    assert len(canceled) + len(too_late) + len(rolled_back) == MESSAGES, "every message is known"
    assert len(canceled) > 20, "else there was no race"
    assert len(too_late) > 20, "else there was no race"
    found = await logged(log)
    assert await log.scheduled() == []
    assert set(found) == too_late | rolled_back, "what was canceled is nowhere, all else has arrived"
    assert set(found.values()) == {1}


class AtOnce:
    """Tries a refused message again after a moment, and for ever."""

    def again_in(self, attempts: int, refusal: Refusal) -> timedelta:
        return timedelta(milliseconds=20 * attempts)


async def test_what_is_sent_again_is_canceled_or_arrives_and_never_both(log: SQLiteLog | PostgreSQLLog) -> None:
    """The broker refuses everything a few times while an application cancels what it can."""
    chance = random.Random(13)
    ids = {number: new_id() for number in range(200)}
    broker = Arrivals()
    refusals: Counter[int] = Counter()
    again = asyncio.Event()

    def reason_for(message: StoredMessage) -> str | None:
        number = int(message.payload)
        refusals[number] += 1
        if refusals[number] == 2:
            again.set()
        return "not yet" if refusals[number] <= number % 4 + 1 else None

    broker.refuse(reason_for)
    settings = RelaySettings(lanes=2, batch_size=20, poll_interval="1ms", max_idle_backoff="5ms")
    relay = Relay(log.store, broker, settings=settings, retry=AtOnce())
    await log.add(*(each for number, id in ids.items() for each in numbered(number, id=id, key=f"k{number % 25}")))

    async def cancel_some() -> dict[int, Cancellation]:
        answers = {}
        for number in chance.sample(sorted(ids), 120):
            (answers[number],) = await log.cancel(ids[number])
            await asyncio.sleep(0.002)
        return answers

    running = asyncio.create_task(relay.run())
    await asyncio.wait_for(again.wait(), 60)
    answers = await asyncio.to_thread(asyncio.run, cancel_some())  # in a thread, where nobody waits for the relay
    canceled = {number for number, answer in answers.items() if answer is Cancellation.CANCELED}
    await broker.until(*(set(ids) - canceled))
    relay.stop()
    await asyncio.wait_for(running, 60)
    assert set(answers.values()) == {Cancellation.CANCELED, Cancellation.TOO_LATE}, "else there was no race"
    assert set(broker.numbers) & canceled == set()
    assert set(broker.numbers) == set(ids) - canceled
    by_key: dict[int, list[int]] = {}
    for number in dict.fromkeys(broker.numbers):
        by_key.setdefault(number % 25, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "and the rest stays in order"
