"""A consumer's handlers as a relay's destination: no broker, one effect per message, each key in order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
import pytest

from postroad import (
    BrokerUnavailable,
    Consumer,
    Inbox,
    InvalidSetting,
    LocalPublisher,
    Message,
    Outbox,
    Received,
    events,
)
from postroad.config import RelaySettings
from postroad.message import StoredMessage
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.destinations import stored
from tests.places import Place, on_postgresql, on_sqlite
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/shop")


class Numbered(msgspec.Struct):
    number: int


@pytest.fixture(params=["sqlite3", "aiosqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return on_sqlite(request.param, tmp_path / "shop.sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.sqlite"


def consumer(place: Place) -> Consumer[Any]:
    return Consumer(name="stock", begin=place.begin)


def add(path: Path, *numbers: int, **fields: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        OUTBOX.add_many(connection, [Message(Numbered(n), key=n % 3, **fields) for n in numbers])


def a_message(number: int, **fields: Any) -> StoredMessage:
    payload = b'{"number":%d}' % number
    return stored(number, **({"type": "numbered", "payload": payload} | fields))


async def test_the_log_reaches_the_handlers_in_order_per_key(place: Place, path: Path) -> None:
    it = consumer(place)
    it.on(Numbered)(place.handler())
    add(path, *range(60))
    with closing(sqlite3.connect(path)) as connection, connection:
        OUTBOX.add(connection, "x", type="for others")
    relay = Relay(SQLiteStore(path), it.publisher(), sink=it.name)
    assert (await relay.run_until_empty()).refused == 0
    effects = await place.effects()
    assert sorted(effects) == list(range(60))
    for key in range(3):
        assert [n for n in effects if n % 3 == key] == list(range(key, 60, 3))
    assert len(await place.noted()) == 60, "what no handler takes is passed over"


async def test_what_was_committed_and_not_settled_has_no_second_effect(place: Place, path: Path) -> None:
    it = consumer(place)
    it.on(Numbered)(place.handler())
    add(path, *range(10))
    await Relay(SQLiteStore(path), it.publisher(), sink="stock").run_until_empty()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update postroad_lanes set position = 0")  # as if the relay had been killed
    summary = await Relay(SQLiteStore(path), it.publisher(), sink="stock").run_until_empty()
    assert summary.published == 10
    assert sorted(await place.effects()) == list(range(10))


async def test_a_failed_handler_is_a_refusal_of_its_message_alone(place: Place) -> None:
    def fail(event: Numbered, message: Received) -> None:
        if event.number == 2:
            raise LookupError("no two")

    it = consumer(place)
    it.on(Numbered)(place.handler(fail))
    publisher = it.publisher()
    await publisher.open()
    bad = a_message(4, payload=b"{")
    refusals = await publisher.publish([a_message(1), a_message(2), a_message(3), bad])
    assert [(each.position, each.permanent) for each in refusals] == [(2, False), (4, True)]
    assert [each.reason.partition(":")[0] for each in refusals] == ["LookupError", "its payload is no Numbered"]
    assert sorted(await place.effects()) == [1, 3]
    assert await place.attempts() == [], "the relay counts"
    await publisher.close()


async def test_a_page_is_a_batch_and_one_bad_message_costs_only_itself(place: Place) -> None:
    sizes: list[int] = []

    def note(batch: Any) -> None:
        sizes.append(len(batch))
        if any(event.number == 3 for event, _ in batch):
            raise LookupError("no three")

    failed: list[events.GroupFailed] = []

    class Listener:
        def on_event(self, event: events.Event) -> None:
            if isinstance(event, events.GroupFailed):
                failed.append(event)

    it: Consumer[Any] = Consumer(name="stock", begin=place.begin, listeners=[Listener()])
    it.on_batch(Numbered)(place.batch_handler(note))
    publisher = it.publisher()
    await publisher.open()
    assert await publisher.publish([a_message(1), a_message(2)]) == []
    assert (sizes, failed) == ([2], [])
    (refusal,) = await publisher.publish([a_message(3), a_message(4)])
    assert (refusal.position, sorted(await place.effects())) == (3, [1, 2, 4])
    assert failed == [events.GroupFailed("stock", size=2, reason="LookupError: no three")]
    assert isinstance(failed[0].exception, LookupError)
    await publisher.close()


async def test_a_database_that_is_out_is_an_outage(path: Path) -> None:
    migrate_sqlite(path)
    out = False

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        if out:
            raise ConnectionRefusedError("no database")
        async with aiosqlite.connect(path) as connection:
            yield connection
            await connection.commit()

    it: Consumer[Any] = Consumer(name="stock", begin=begin, concurrency=1)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        nonlocal out
        out = event.number == 2

    publisher = it.publisher()
    await publisher.open()
    with pytest.raises(BrokerUnavailable, match="no database") as outage:
        await publisher.publish([a_message(1), a_message(2), a_message(3), a_message(9, type="for others")])
    assert (set(outage.value.confirmed), list(outage.value.refusals)) == ({1, 2, 9}, [])
    out = False
    assert await publisher.publish([a_message(3)]) == []
    await publisher.close()


@pytest.mark.parametrize("size", [1, 5])
async def test_in_an_outage_no_further_handler_is_begun(path: Path, size: int) -> None:
    """Each would wait until its connection times out: a page would be reported an hour later."""
    place, transactions, out = on_sqlite("aiosqlite", path), 0, False

    def begin() -> Any:
        nonlocal transactions
        if out:
            transactions += 1
            raise ConnectionRefusedError("no database")
        return place.begin()

    settings: dict[str, Any] = {"messages_per_transaction": size, "retain": None, "heartbeat": None}
    it: Consumer[Any] = Consumer(name="stock", begin=begin, concurrency=2, **settings)
    it.on(Numbered)(place.handler())
    publisher = it.publisher()
    await publisher.open()
    out = True
    messages = [a_message(number, key="one" if number % 2 else None) for number in range(1, 51)]
    with pytest.raises(BrokerUnavailable, match="no database") as outage:
        await publisher.publish([*messages, a_message(60, type="for others")])
    assert (transactions <= 2, set(outage.value.confirmed)) == (True, {60})
    out = False
    assert await publisher.publish(messages) == []
    await publisher.close()
    assert sorted(await place.effects()) == list(range(1, 51))


@pytest.mark.parametrize("size", [1, 3])
async def test_while_another_transaction_has_one_message_the_others_go_on(postgresql15: PostgreSQL, size: int) -> None:
    place = await on_postgresql("asyncpg", postgresql15)
    it: Consumer[Any] = Consumer(name="stock", begin=place.begin, concurrency=1, messages_per_transaction=size)
    it.on(Numbered)(place.handler())
    messages = [a_message(number) for number in (1, 2, 3)]
    publisher = it.publisher()
    await publisher.open()
    async with place.begin() as other:
        await Inbox().first_times(other, [(each.id, each.type, each.source) for each in messages[:1]], consumer="stock")
        with pytest.raises(BrokerUnavailable) as outage:
            await publisher.publish(messages)
        await place.insert(other, 1)
    assert (set(outage.value.confirmed), outage.value.suspicious) == ({2, 3}, False)
    assert await publisher.publish(messages) == []
    await publisher.close()
    assert sorted(await place.effects()) == [1, 2, 3]


async def test_a_handler_that_was_cancelled_from_elsewhere_has_failed(path: Path) -> None:
    """As by a library whose own task was cancelled. The publisher was not cancelled, and the others go on."""
    place = on_sqlite("aiosqlite", path)

    def fail(event: Numbered, message: Received) -> None:
        if event.number == 2:
            raise asyncio.CancelledError

    for size in (1, 3):
        it: Consumer[Any] = Consumer(name=f"stock {size}", begin=place.begin, messages_per_transaction=size)
        it.on(Numbered)(place.handler(fail))
        publisher = it.publisher()
        await publisher.open()
        (refusal,) = await publisher.publish([a_message(1), a_message(2), a_message(3)])
        assert (refusal.position, refusal.reason) == (2, "CancelledError: ")
        await publisher.close()
    assert sorted(await place.effects()) == [1, 1, 3, 3]


async def test_a_database_that_is_out_at_the_start_is_an_outage(place: Place) -> None:
    """And what is to be there for a consumer is there when the database is back."""
    it = consumer(place)
    it.on(Numbered)(place.handler())
    begin, out = it._transactions._begin, True

    def broken() -> Any:
        if out:
            raise ConnectionRefusedError("no database")
        return begin()

    it._transactions._begin = broken
    publisher = it.publisher()
    with pytest.raises(BrokerUnavailable, match="no database"):
        await publisher.open()
    with pytest.raises(BrokerUnavailable, match="no database"):
        await publisher.publish([a_message(1)])
    out = False
    assert await publisher.publish([a_message(1)]) == []
    assert await place.effects() == [1]
    assert it._retention is not None, "old messages are forgotten"
    await publisher.close()


async def test_a_handler_that_breaks_its_connection_is_suspected(postgresql15: PostgreSQL) -> None:
    place = await on_postgresql("asyncpg", postgresql15)
    it = consumer(place)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")

    publisher = it.publisher()
    await publisher.open()
    with pytest.raises(BrokerUnavailable) as outage:
        await publisher.publish([a_message(1)])
    assert outage.value.suspicious
    await publisher.close()


async def test_keys_are_handled_side_by_side(path: Path) -> None:
    """As far as the database allows: here only the handlers meet."""
    migrate_sqlite(path)
    all_three = asyncio.Barrier(3)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        await all_three.wait()
        async with aiosqlite.connect(path) as connection:
            yield connection
            await connection.commit()

    it: Consumer[Any] = Consumer(name="stock", begin=begin)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None: ...

    it._start = _nothing  # type: ignore[method-assign, assignment]
    publisher = it.publisher()
    async with asyncio.timeout(60):
        assert await publisher.publish([a_message(1), a_message(2), a_message(3)]) == []


async def _nothing(*_: Any) -> None: ...


async def test_what_is_wrong_is_reported_at_the_start(place: Place, path: Path) -> None:
    relay = Relay(SQLiteStore(path), consumer(place).publisher(), settings=RelaySettings(lanes=1))
    with pytest.raises(InvalidSetting, match="'stock' has no handler"):
        await relay.run_until_empty()


async def test_each_message_is_handled_in_a_context_of_its_own(place: Place) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    found: list[str] = []

    def remember(event: Numbered, message: Received) -> None:
        found.append(tenant.get())
        tenant.set("of the message before")

    it = consumer(place)
    it.on(Numbered)(place.handler(remember))
    publisher = it.publisher()
    await publisher.open()
    assert await publisher.publish([a_message(1), a_message(2), a_message(3, key="k"), a_message(4, key="k")]) == []
    assert await publisher.publish([a_message(5)]) == []
    await publisher.close()
    assert found == ["none"] * 5


@pytest.mark.parametrize("size", [1, 2, 3, 10])
async def test_nothing_of_a_key_is_handled_behind_one_that_failed(place: Place, size: int) -> None:
    """Whatever share a transaction: a group that follows the one that failed is another transaction."""

    def fail(event: Numbered, message: Received) -> None:
        if event.number == 2:
            raise LookupError("no two")

    it: Consumer[Any] = Consumer(name="stock", begin=place.begin, messages_per_transaction=size)
    it.on(Numbered)(place.handler(fail))
    publisher = it.publisher()
    await publisher.open()
    keys = {1: "a", 2: "a", 3: "b", 4: "a", 5: "b", 6: "a", 7: None}
    refusals = await publisher.publish([a_message(number, key=key) for number, key in keys.items()])
    await publisher.close()
    assert [refusal.position for refusal in refusals] == [2]
    assert sorted(await place.effects()) == [1, 3, 5, 7]


@pytest.mark.parametrize("suspicious", [True, False])
async def test_a_function_says_whether_a_message_may_have_caused_its_outage(suspicious: bool) -> None:
    async def unavailable(message: StoredMessage) -> None:
        raise BrokerUnavailable("redis is down", suspicious=suspicious)

    with pytest.raises(BrokerUnavailable) as outage:
        await LocalPublisher(unavailable).publish([stored(1)])
    assert outage.value.suspicious is suspicious


async def test_what_a_stopped_group_never_handled_is_handled_later(path: Path) -> None:
    """Although a handler has committed the inbox rows of all, which no handler may do."""
    place, committed = on_sqlite("aiosqlite", path), asyncio.Event()

    async def hang(event: Numbered, tx: Any, message: Received) -> None:
        if event.number == 2:
            await tx.commit()
            committed.set()
            await asyncio.Event().wait()

    def publisher(handler: Any) -> LocalPublisher:
        it: Consumer[Any] = Consumer(name="stock", begin=place.begin, messages_per_transaction=3)
        it.on(Numbered)(handler)
        return it.publisher()

    messages = [a_message(number) for number in (1, 2, 3)]
    stopped = publisher(hang)
    await stopped.open()
    publishing = asyncio.create_task(stopped.publish(messages))
    await asyncio.wait_for(committed.wait(), 60)
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
    await stopped.close()
    again = publisher(place.handler())
    await again.open()
    assert await again.publish(messages) == []
    await again.close()
    assert await place.effects() == [2, 3], "the first one was committed with its inbox row"
