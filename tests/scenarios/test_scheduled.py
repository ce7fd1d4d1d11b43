"""Canceling, while a relay moves what is due, is killed and begins again, or sends again what was refused.

Whatever was answered is what happened.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

from postroad import Cancellation, Message, Refusal, StoredMessage
from postroad.config import RelaySettings
from postroad.message import new_id
from postroad.relay import Relay
from tests.lanes import take_lanes
from tests.logs import PLENTY, Arrivals, PostgreSQLLog, SQLiteLog, log_fixture, numbered

# Another process. For each line that it reads it adds some messages that fall due within the next moments, and cancels
# each at some moment, in a transaction of its own, some of which it rolls back. It tells what it was answered when the
# transaction is over.
CANCELER = """
import json, random, sys, time
from contextlib import closing
from postroad import Message, Outbox

def connect(database):
    if database.startswith("postgresql:"):
        import psycopg
        return psycopg.connect(database)
    import sqlite3
    return sqlite3.connect(database, timeout=60)

outbox, chance = Outbox(source="/tests"), random.Random(7)
with closing(connect(sys.argv[1])) as connection:
    for line in sys.stdin:
        answers = []
        messages = [Message("1", type="t", deliver_in=f"{chance.uniform(0, 80)}ms") for _ in range(10)]
        ids = outbox.add_many(connection, messages)
        connection.commit()
        for id in ids:
            time.sleep(chance.uniform(0, 0.01))
            answer = outbox.cancel(connection, id)
            time.sleep(chance.choice([0, 0, 0, 0.005]))
            kept = chance.random() < 0.9
            (connection.commit if kept else connection.rollback)()
            answers.append([str(id), answer.value, kept])
        print(json.dumps(answers), flush=True)
"""

ENOUGH = 40
"""So many answers of each kind, and as many again for each relay that is killed."""


log = log_fixture("sqlite", "postgresql15")


def database_of(log: SQLiteLog | PostgreSQLLog) -> str:
    return log.url if isinstance(log, PostgreSQLLog) else f"sqlite:///{log.path}"


def command(log: SQLiteLog | PostgreSQLLog, *options: str) -> list[str]:
    return [sys.executable, "-m", "postroad", "relay", "--database", database_of(log), "--to", "null://", *options]


class Canceler:
    """The other process."""

    def __init__(self, log: SQLiteLog | PostgreSQLLog) -> None:
        address = log.url if isinstance(log, PostgreSQLLog) else str(log.path)
        program = [sys.executable, "-c", CANCELER, address]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.canceled: set[UUID] = set()
        self.too_late: set[UUID] = set()
        self.rolled_back: set[UUID] = set()

    def go_on_until(self, enough: Callable[[], bool]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + 120
        while not enough():
            assert time.monotonic() < deadline, "there was no race"
            self._process.stdin.write("more\n")
            self._process.stdin.flush()
            for id, answer, kept in json.loads(self._process.stdout.readline()):
                kinds = {"too late": self.too_late, "canceled": self.canceled if kept else self.rolled_back}
                kinds[answer].add(UUID(id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@contextmanager
def relaying(log: SQLiteLog | PostgreSQLLog) -> Iterator[None]:
    """A relay in a process of its own, killed at the end."""
    with subprocess.Popen(command(log), stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def logged(log: SQLiteLog | PostgreSQLLog) -> Counter[UUID]:
    """How often each id is in the log."""
    await log.store.open()
    (lane,) = await take_lanes(log.store, "audit", new_id(), lanes=1, start="oldest")
    found: Counter[UUID] = Counter()
    cursor = lane.cursor
    while (page := await log.store.read(lane, cursor, PLENTY)).messages:
        found.update(message.id for message in page.messages)
        cursor = page.after
    await log.store.close()
    return found


async def test_two_processes_race_for_each_message_and_the_answers_are_true(log: SQLiteLog | PostgreSQLLog) -> None:
    """One moves what is due, is killed three times in the middle of it and begins again; the other one cancels."""
    begin = datetime.now(UTC)
    awake = [Message("1", type="t", deliver_at=begin + timedelta(milliseconds=20 * n)) for n in range(6_000)]
    await log.add(*awake)  # so that the mover has something to do all the time

    def race() -> Canceler:
        with Canceler(log) as canceler:
            for times in (1, 2, 3, 4):
                with relaying(log):
                    canceler.go_on_until(lambda: len(canceler.too_late) >= ENOUGH * times)  # noqa: B023 - called at once
            canceler.go_on_until(lambda: len(canceler.canceled) >= ENOUGH)
        return canceler

    canceler = await asyncio.to_thread(race)
    await log.pass_time(timedelta(hours=1))
    program = command(log, "--until-empty")
    done = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = await logged(log)
    assert await log.scheduled() == []
    assert canceler.canceled & set(found) == set(), "what was canceled is nowhere"
    assert canceler.too_late | canceler.rolled_back <= set(found), "all else has arrived"
    assert len(found) == len(canceler.too_late) + len(canceler.rolled_back) + len(awake)
    assert set(found.values()) == {1}


FIRST = range(1000, 1020)  # so many that each lane has some


class AtOnce:
    """Tries a refused message again after a moment, and for ever."""

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta:
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
        if number in FIRST:
            return None
        refusals[number] += 1
        if refusals[number] == 2:
            again.set()
        return "not yet" if refusals[number] <= number % 4 + 1 else None

    broker.refuse(reason_for)
    settings = RelaySettings(lanes=2, batch_size=20, poll_interval="1ms", max_idle_backoff="5ms")
    relay = Relay(log.store, broker, settings=settings, retry=AtOnce())

    async def cancel_some() -> dict[int, Cancellation]:
        answers = {}
        for number in chance.sample(sorted(ids), 120):
            (answers[number],) = await log.cancel(ids[number])
            await asyncio.sleep(0.002)
        return answers

    # What is in the log when a lane is loaded may have been sent before, and is too late in any case: these come later.
    await log.add(*numbered(*FIRST))
    running = asyncio.create_task(relay.run())
    await broker.until(*FIRST)
    await log.add(*(each for number, id in ids.items() for each in numbered(number, id=id, key=f"k{number % 25}")))
    await asyncio.wait_for(again.wait(), 60)
    answers = await asyncio.to_thread(asyncio.run, cancel_some())  # in a thread, where no task waits for the relay
    canceled = {number for number, answer in answers.items() if answer is Cancellation.CANCELED}
    await broker.until(*(set(ids) - canceled))
    relay.stop()
    await asyncio.wait_for(running, 60)
    assert set(answers.values()) == {Cancellation.CANCELED, Cancellation.TOO_LATE}, "else there was no race"
    arrived = [number for number in broker.numbers if number not in FIRST]
    assert set(arrived) & canceled == set()
    assert set(arrived) == set(ids) - canceled
    by_key: dict[int, list[int]] = {}
    for number in dict.fromkeys(arrived):
        by_key.setdefault(number % 25, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "and the rest stays in order"
