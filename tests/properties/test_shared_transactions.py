"""Whatever handlers do in a shared transaction: one effect for each message, order per key, attempts for the guilty.

Chance decides how many messages share a transaction, which handlers fail, end their transaction, lose its connection,
are cancelled or hang until the consumer is stopped, when the process is killed (also between a commit and its ack) and
when the broker's session ends. Then the rest is consumed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from postroad import Received
from postroad.brokers.memory import MemoryQueue
from postroad.message import new_id
from postroad.retry import Backoff
from tests.consumers import Numbered, consumer, execute, put
from tests.contracts.test_handlers_that_end import commit, rollback
from tests.places import ON_SQLITE, Place, on_postgresql, on_sqlite
from tests.services.postgresql import PostgreSQL

KEYS = ["a", "b", "c", None]
FAILURES = ["raises", "raises late", "commits", "commits and raises", "rolls back", "cancels itself"]
"""What a handler does at one attempt after the other, until it does it right; as many as MOST are too many."""
MOST = 5
ACCIDENTS = ["killed", "killed after the commit", "stopped", "session ends", "connection lost"]
"""What happens once, while a message is handled, and is no failure of its handler."""
FEW = 2
"""Kills of a process: each may count as an attempt of the messages that were being handled alone."""


class Killed(Exception):
    """The process is gone: nothing that it has begun goes on."""


class Life:
    """One process, and what it may still do."""

    def __init__(self, place: Place, queue: MemoryQueue) -> None:
        self._place = place
        self._queue = queue
        self.dies_after_commit = False
        self.is_dead = False
        self.ended = asyncio.Event()

    def die(self) -> None:
        self.is_dead = True
        self._queue.drop()
        self.ended.set()

    def die_after_commit(self) -> None:
        self.dies_after_commit = True

    def begin(self) -> Any:
        return self._asynchronous() if self._place.is_async else self._sync()

    @asynccontextmanager
    async def _asynchronous(self) -> AsyncIterator[Any]:
        self._check()
        async with self._place.begin() as tx:
            yield tx
            self._check()
        self._after_commit()

    @contextmanager
    def _sync(self) -> Iterator[Any]:
        self._check()
        with self._place.begin() as tx:
            yield tx
            self._check()
        self._after_commit()

    def _check(self) -> None:
        if self.is_dead:
            raise Killed

    def _after_commit(self) -> None:
        if self.dies_after_commit:
            self.die()
        self._check()


class World:
    """Messages, what their handlers do, and what is to be found in the end."""

    def __init__(self, place: Place, random: Random, *, loses_connections: bool) -> None:
        self.place = place
        self.queue = MemoryQueue()
        self.keys: dict[int, str | None] = {}
        self.failures: dict[int, list[str]] = {}
        self.accidents: dict[int, str] = {}
        self.ids: dict[int, UUID] = {}
        self.own_commits: Counter[int] = Counter()
        possible = ACCIDENTS if loses_connections else ACCIDENTS[:-1]
        for number in range(random.randrange(2, 13)):
            self.keys[number], self.ids[number] = random.choice(KEYS), new_id()
            failing = random.random() < 0.25
            self.failures[number] = random.choices(FAILURES, k=random.choice([1, 2, MOST])) if failing else []
            if random.random() < 0.15:
                few = sum(each.startswith("killed") for each in self.accidents.values()) < FEW
                self.accidents[number] = random.choice(possible if few else possible[2:])
            for _ in range(random.choice([1, 1, 1, 2])):
                key = {} if self.keys[number] is None else {"key": self.keys[number]}
                put(self.queue, number, id=self.ids[number], **({"key": None} | key))

    def handler(self, life: Life, loop: asyncio.AbstractEventLoop, stop: Any) -> Any:
        async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
            for step in self._steps(event.number, tx, message, life, lambda call: call()):
                if inspect.isawaitable(step):
                    await step
            if self.accidents.get(event.number) == "stopped":
                del self.accidents[event.number]
                stop()
                await asyncio.Event().wait()

        def sync(event: Numbered, tx: Any, message: Received) -> None:
            def in_loop(call: Any) -> None:
                async def called() -> None:
                    call()

                asyncio.run_coroutine_threadsafe(called(), loop).result(30)

            for _ in self._steps(event.number, tx, message, life, in_loop):
                pass
            if self.accidents.pop(event.number, None) == "stopped":
                in_loop(stop)

        return asynchronous if self.place.is_async else sync

    def _steps(self, number: int, tx: Any, message: Received, life: Life, in_loop: Any) -> Iterator[Any]:
        failures = self.failures[number]
        does = failures[message.attempt - 1] if message.attempt <= len(failures) else "it right"
        if does == "raises":
            raise LookupError(number)
        yield self.place.insert(tx, number)
        if does in {"raises late", "cancels itself"}:
            raise asyncio.CancelledError if does == "cancels itself" else LookupError(number)
        if does.startswith("commits"):
            if life.dies_after_commit:  # its messages would count as processed, because nothing is left to find it out
                raise LookupError(number)
            yield commit(tx)
            self.own_commits[number] += 1
            if does == "commits and raises":
                raise LookupError(number)
        if does == "rolls back":
            yield rollback(tx)
        if does == "it right" and self.accidents.get(number) not in {None, "stopped"}:
            match self.accidents.pop(number):
                case "killed":
                    in_loop(life.die)
                    raise Killed
                case "killed after the commit":
                    life.die_after_commit()
                case "session ends":
                    in_loop(self.queue.drop)
                case "connection lost":
                    yield execute(tx, "select pg_terminate_backend(pg_backend_pid())")

    async def live(self, random: Random) -> None:
        """Process after process, until the queue is empty and nothing more happens."""
        size, loop = random.choice([2, 3, 50]), asyncio.get_running_loop()
        # A message whose handler has committed counts as processed if the process dies before that is found out; so
        # where both happen, one thing happens at a time.
        concurrency = 1 if any("commit" in does for each in self.failures.values() for does in each) else 3
        for _ in range(40):
            life = Life(self.place, self.queue)
            it = consumer(
                self.place._replace(begin=life.begin),
                self.queue,
                messages_per_transaction=size,
                concurrency=concurrency,
                retry=Backoff(max_attempts=MOST, first=timedelta(milliseconds=1), jitter=0),
                retain=None,
                grace="0s" if self.place.is_async else "20s",
            )
            it.on(Numbered)(self.handler(life, loop, it.stop))
            running = asyncio.ensure_future(it.run_until_empty())
            killed = asyncio.ensure_future(life.ended.wait())
            await asyncio.wait((running, killed), return_when=asyncio.FIRST_COMPLETED)
            killed.cancel()
            if life.is_dead:
                running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            if not life.is_dead and not self.queue.queue:
                return
        raise AssertionError("it does not end")

    async def check(self) -> None:
        effects = await self.place.effects()
        table = f"{self.place.schema}inbox_attempts"
        found = await self.place.rows(f"select id, attempts, crashes, dead_at is not null from {table}")
        counted = {str(id).rpartition(" ")[2]: (attempts, crashes, bool(dead)) for id, attempts, crashes, dead in found}
        for number, id in self.ids.items():
            attempts, crashes, dead = counted.get(str(id), (0, 0, False))
            failures = len(self.failures[number])
            assert crashes <= FEW
            assert max(0, failures - crashes) <= attempts - crashes <= failures, f"attempts of {number}"
            assert dead == (failures == MOST), f"death of {number}"
            assert effects.count(number) == (not dead) + self.own_commits[number], f"effects of {number}"
        for key in set(self.keys.values()) - {None}:
            of_key = [number for number in effects if self.keys[number] == key]
            assert of_key == sorted(of_key), f"order of {key}"


async def lived(place: Place, random: Random, *, loses_connections: bool) -> None:
    world = World(place, random, loses_connections=loses_connections)
    async with asyncio.timeout(60):
        await world.live(random)
    await world.check()


ONCE = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
SEEDS = st.integers(0, 1 << 32)


@pytest.mark.parametrize("name", ON_SQLITE)
@settings(ONCE, max_examples=25)
@given(seed=SEEDS)
def test_on_sqlite(name: str, seed: int) -> None:
    with TemporaryDirectory() as folder:
        place = on_sqlite(name, Path(folder) / "shop.sqlite")
        asyncio.run(lived(place, Random(seed), loses_connections=False))


@pytest.mark.parametrize("name", ["asyncpg", "session"])
@settings(ONCE, max_examples=12)
@given(seed=SEEDS)
def test_on_postgresql(postgresql15: PostgreSQL, name: str, seed: int) -> None:
    async def example() -> None:
        await lived(await on_postgresql(name, postgresql15), Random(seed), loses_connections=True)

    asyncio.run(example())
