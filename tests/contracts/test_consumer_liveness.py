"""A running consumer's row in the database, on every kind of connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from postroad import Consumer, InvalidSetting
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.liveness import ConsumerLiveness
from postroad.consumer.model import Summary
from postroad.consumer.transactions import Transactions
from postroad.events import Event, HeartbeatFailed
from postroad.listeners import Listeners
from postroad.relay import Relay
from postroad.stores import open_admin
from postroad.stores.sqlite import SQLiteStore
from tests.consumers import Numbered, consumer, put
from tests.logs import OUTBOX
from tests.places import Place

COLUMNS = "consumer, source, handled, duplicates, failed, dead, heartbeats"


async def rows(place: Place) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await place.rows(f"select {COLUMNS} from {place.schema}consumers")]


async def until_row(place: Place, **wanted: Any) -> dict[str, Any]:
    """Until the only row has these values."""
    async with asyncio.timeout(60):
        while True:
            for row in await rows(place):
                found = dict(zip(COLUMNS.split(", "), row, strict=True))
                if found | wanted == found:
                    return found
            await asyncio.sleep(0.02)


async def test_while_it_runs(every_place: Place, queue: MemoryQueue) -> None:
    it = consumer(every_place, queue, heartbeat="100ms")
    it.on(Numbered)(every_place.handler())
    put(queue, 1, 2)
    running = asyncio.create_task(it.run())
    found = await until_row(every_place, handled=2)
    assert (found["consumer"], found["source"], found["failed"], found["dead"]) == ("stock", queue.name, 0, 0)
    it.stop()
    await asyncio.wait_for(running, 60)
    assert await rows(every_place) == [], "it has ended in order"


async def test_failures_and_dead_letters_are_counted(place: Place, queue: MemoryQueue) -> None:
    def fail(event: Numbered, message: Any) -> None:
        raise LookupError

    it = consumer(place, queue, heartbeat="100ms")
    it.on(Numbered)(place.handler(fail))
    put(queue, 1)
    running = asyncio.create_task(it.run())
    await until_row(place, handled=0, failed=3, dead=1)
    it.stop()
    await asyncio.wait_for(running, 60)


async def test_a_consumer_whose_handlers_are_all_busy_is_alive(each_sqlite_place: Place, queue: MemoryQueue) -> None:
    """Also where handlers run in threads, of which there are two."""
    place, go_on = each_sqlite_place, threading.Event()
    it = consumer(place, queue, heartbeat="100ms", concurrency=2)

    async def asynchronous(event: Numbered, tx: Any, message: Any) -> None:
        await asyncio.to_thread(go_on.wait)

    def sync(event: Numbered, tx: Any, message: Any) -> None:
        tx.rollback()  # SQLite has one writer, and this one would not let go
        tx.execute("begin")
        go_on.wait()

    it.on(Numbered)(asynchronous if place.is_async else sync)
    running = asyncio.create_task(it.run())
    seen = (await until_row(place, handled=0))["heartbeats"]
    if not place.is_async:
        put(queue, 1, 2)
        await until_row(place, heartbeats=seen + 3)
    go_on.set()
    it.stop()
    await asyncio.wait_for(running, 60)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"concurrency": 1, "handler_timeout": "10s"}, 10),
        ({"concurrency": 1, "handler_timeout": "10s", "messages_per_transaction": 50}, 500),
        ({"concurrency": 1, "messages_per_transaction": 2}, 1800),
        ({"concurrency": 1, "handler_timeout": "0", "messages_per_transaction": 2}, 1800),
        ({"concurrency": 2, "handler_timeout": "10s", "messages_per_transaction": 50}, 0),
    ],
)
async def test_a_heartbeat_counts_until_the_transaction_that_delays_the_next_one_has_ended(
    one_place: Place, queue: MemoryQueue, settings: dict[str, Any], seconds: int
) -> None:
    it = consumer(one_place, queue, heartbeat="1s", **settings)
    it.on(Numbered)(one_place.handler())
    running = asyncio.create_task(it.run())
    await until_row(one_place)
    (row,) = await one_place.rows("select (alive_until - heartbeat_at) / 1000000 from postroad_consumers")
    it.stop()
    await asyncio.wait_for(running, 60)
    assert tuple(row) == (4 + seconds,), "four heartbeats, and what the handlers that share a transaction may take"


async def test_a_heartbeat_that_fails_delays_nothing_and_is_logged_once(place: Place, queue: MemoryQueue) -> None:
    heard: list[Event] = []
    failed_once = asyncio.Event()

    class Listener:
        def on_event(self, event: Event) -> None:
            heard.append(event)
            if isinstance(event, HeartbeatFailed):
                failed_once.set()

    await place.rows(f"drop table {place.schema}consumers")
    it = consumer(place, queue, heartbeat="100ms", listeners=[Listener()])
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def seen(event: Numbered, message: Any) -> None:
        if event.number == 2:
            loop.call_soon_threadsafe(done.set)

    it.on(Numbered)(place.handler(seen))
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        await failed_once.wait()
        put(queue, 1, 2)
        await done.wait()
    it.stop()
    summary = await asyncio.wait_for(running, 60)
    assert (summary.handled, summary.failed) == (2, 0)
    (failed,) = [event for event in heard if isinstance(event, HeartbeatFailed)]
    assert "consumers" in failed.reason


async def test_no_heartbeat(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, heartbeat=None)
    there: list[Any] = []

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Any) -> None:
        there.append(await rows(one_place))

    put(queue, 1)
    await it.run_until_empty()
    assert there == [[]]


@pytest.mark.parametrize("wrong", ["0", "10ms", "1h", "x", 5])
def test_a_wrong_heartbeat(one_place: Place, queue: MemoryQueue, wrong: Any) -> None:
    with pytest.raises(InvalidSetting, match="^heartbeat is "):
        consumer(one_place, queue, heartbeat=wrong)


async def test_one_that_died_is_shown_as_dead_and_forgotten_after_a_week(place: Place) -> None:
    def liveness(name: str) -> ConsumerLiveness:
        transactions = Transactions(place.begin, "postroad", 1)
        transactions.start(is_async=place.is_async)
        return ConsumerLiveness(
            name, transactions, source="amqp://me:geheim@h queue q", summary=Summary(handled=7, duplicates=1),
            listeners=Listeners([]), every=5.0,
        )  # fmt: skip

    died, other = liveness("stock"), liveness("mail")
    await died.run_once()
    await died.run_once()
    assert await rows(place) == [("stock", "amqp://me:***@h queue q", 7, 1, 0, 0, 2)]
    await other.forget_dead()
    assert len(await rows(place)) == 1
    eight_days = "interval '8 days'" if place.schema.endswith(".") else "8 * 86400000000"
    await place.rows(f"update {place.schema}consumers set alive_until = alive_until - {eight_days}")
    await other.forget_dead()
    assert await rows(place) == [], "whatever its name was"


async def test_in_a_relay(one_place: Place, tmp_path: Any) -> None:
    """Its handlers are the relay's destination."""
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin, heartbeat="100ms")
    it.on(Numbered)(one_place.handler())
    async with one_place.begin() as tx:
        await OUTBOX.add(tx, Numbered(1))
    store = SQLiteStore(tmp_path / "shop.sqlite")
    relay = Relay(store, it.publisher(), sink="stock")
    running = asyncio.create_task(relay.run())
    found = await until_row(one_place, handled=1)
    assert found["source"] == "the relay in its process"
    async with open_admin(f"sqlite:///{tmp_path / 'shop.sqlite'}") as admin:
        (status,) = await admin.consumers()
        assert (status.consumer, status.state, status.handled) == ("stock", "alive", 1)
    relay.stop()
    await asyncio.wait_for(running, 60)
    assert await rows(one_place) == []
