"""Copies of dead messages for another sink: written with the death, published by the other sink's relays, in every
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroad import InvalidSetting, Message, Refusal, RelayGroup, SinkFilter, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.errors import StoreUnavailable
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.copies import Copy
from tests.logs import Arrivals, Log, MemoryLog, PostgreSQLLog, SQLiteLog, log_fixture, numbered

log = log_fixture("memory", "sqlite", "postgresql15")
kept = log_fixture("sqlite", "postgresql15")  # logs that operators work with

NOTHING = SinkFilter(types=["nothing"])
QUICK: dict[str, Any] = {
    "lanes": 2,
    "poll_interval": "1ms",
    "max_idle_backoff": "5ms",
    "outage_backoff": "1ms",
    "tick": "50ms",
}


class Elsewhere(Arrivals):
    destination = "elsewhere"


def refusing() -> MemoryBroker:
    broker = MemoryBroker()
    broker.refuse(lambda _: "too odd")
    return broker


def dying(log: Log, broker: MemoryBroker | None = None, sink: str = "kafka", **settings: Any) -> Relay:
    """A relay whose messages die at the first attempt, and whose copies go to `waiting`."""
    given = RelaySettings(**(QUICK | {"dead_letter_sink": "waiting"} | settings))
    return Relay(log.another_store(), broker or refusing(), sink=sink, settings=given, retry=Backoff(max_attempts=1))


def waiting(log: Log, broker: MemoryBroker, filter: SinkFilter = NOTHING, **more: Any) -> Relay:
    return Relay(log.another_store(), broker, sink="waiting", filter=filter, settings=RelaySettings(**QUICK), **more)


async def copies(log: Log) -> Sequence[Copy]:
    store = log.another_store()
    await store.open()
    try:
        return await store.copies.due("waiting", 100)
    finally:
        await store.close()


async def test_a_copy_goes_to_the_other_sink_and_says_why_and_where_from(log: Log) -> None:
    own, other, id = refusing(), Elsewhere(), new_id()
    await waiting(log, other).create_sink()
    await log.add(Message("1", type="order.created", topic="orders", key="k", id=id, headers={"x": "y"}))
    assert (await dying(log, own).run_until_empty()).died == 1
    assert other.messages == [], "the relay of the other sink publishes it"
    await waiting(log, other).run_until_empty()
    (copy,) = other.messages
    assert own.messages == []
    assert (copy.topic, copy.type, copy.key, copy.payload) == ("orders", "order.created", None, b"1")
    assert copy.id != id
    assert copy.source == "/tests"
    headers = copy.headers
    assert headers.pop("postroad-dead-at")
    assert headers == {
        "x": "y", "postroad-dead-id": str(id), "postroad-dead-topic": "orders", "postroad-dead-type": "order.created",
        "postroad-dead-key": "k", "postroad-dead-sink": "kafka", "postroad-dead-reason": "too odd",
        "postroad-dead-attempts": "1",
    }  # fmt: skip
    assert await copies(log) == []
    assert [row.state for row in await log.deferred()] == ["dead"], "it stays dead where it died"
    again = Elsewhere()
    await waiting(log, again).run_until_empty()
    assert again.messages == []


async def test_many_copies_do_not_stop_the_sinks_own_messages(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are published in turns with its pages; and it is not empty before all copies are published."""
    monkeypatch.setattr("postroad.relay.copies.MOST", 5)
    monkeypatch.setattr("postroad.relay.copies.LOOK_SECONDS", 0.0)
    other, settings = Elsewhere(), RelaySettings(**(QUICK | {"lanes": 1, "batch_size": 1}))
    relay = Relay(log.another_store(), other, sink="waiting", filter=SinkFilter(types=["own"]), settings=settings)
    await relay.create_sink()
    await log.add(*numbered(*range(50)))
    assert (await dying(log).run_until_empty()).died == 50
    await log.add(*[Message(str(number), type="own", topic="own") for number in range(1000, 1005)])
    await relay.run_until_empty()
    arrived = [int(each.payload) for each in other.messages]
    assert sorted(arrived) == [*range(50), *range(1000, 1005)]
    assert arrived.index(1004) < 40, "the copies did not all go first"
    assert await copies(log) == []


async def test_a_death_that_could_not_be_recorded_has_no_copy_either(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    await waiting(log, Elsewhere()).create_sink()
    await log.add(*numbered(1))
    store = log.another_store()
    settings = RelaySettings(**(QUICK | {"dead_letter_sink": "waiting"}))
    relay = Relay(store, refusing(), sink="kafka", settings=settings, retry=Backoff(max_attempts=1))
    tried = asyncio.Event()

    async def fails(*_: Any, **__: Any) -> None:
        tried.set()
        raise StoreUnavailable("the connection was lost before the commit")

    with monkeypatch.context() as patch:
        patch.setattr(store, "record", fails)
        running = asyncio.create_task(relay.run())
        await asyncio.wait_for(tried.wait(), 60)
        running.cancel()
        await asyncio.wait((running,))
    assert (await log.deferred(), await copies(log)) == ([], [])
    assert (await dying(log).run_until_empty()).died == 1
    assert len(await copies(log)) == 1


async def test_a_relay_that_ends_before_it_notes_that_publishes_the_copy_again_with_the_same_id(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    store, published = log.another_store(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        published.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(store.copies, "settle", never)
        killed = asyncio.create_task(
            Relay(store, other, sink="waiting", filter=NOTHING, settings=RelaySettings(**QUICK)).run()
        )
        await asyncio.wait_for(published.wait(), 60)
        killed.cancel()
        await asyncio.wait((killed,))
    await waiting(log, other).run_until_empty()
    first, second = other.messages
    assert first.id == second.id
    assert await copies(log) == []


async def test_the_other_sinks_outage_delays_nothing_and_loses_no_copy(log: Log) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    other.go_out()
    own = MemoryBroker()
    own.refuse(lambda message: "no" if message.payload == b"1" else None)
    async with waiting(log, other):
        await log.add(*numbered(1, 2))
        summary = await dying(log, own).run_until_empty()
        assert (summary.published, summary.died) == (1, 1)
        other.come_back()
        await other.until(1)


async def test_a_sleeping_relay_finds_copies(log: Log) -> None:
    other = Elsewhere()
    settings = RelaySettings(**(QUICK | {"linger": "1ms"}))
    async with Relay(log.another_store(), other, sink="waiting", filter=NOTHING, settings=settings):
        for number in (1, 2):
            await log.add(*numbered(number))
            await dying(log).run_until_empty()
            await other.until(number)


async def test_the_other_sinks_filter_is_not_about_copies_and_it_may_have_the_message_too(log: Log) -> None:
    other = Elsewhere()
    everything = SinkFilter()
    await waiting(log, other, everything).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    await waiting(log, other, everything).run_until_empty()
    assert sorted("postroad-dead-id" in message.headers for message in other.messages) == [False, True]


async def test_a_message_that_died_in_two_sinks_has_two_copies(log: Log) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    await log.add(*numbered(1))
    for sink in ("kafka", "nats"):
        await dying(log, sink=sink).run_until_empty()
    await waiting(log, other).run_until_empty()
    assert [message.headers["postroad-dead-sink"] for message in other.messages] == ["kafka", "nats"]


async def test_many_copies_are_published_in_the_order_of_the_deaths(log: Log) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    await log.add(*numbered(*range(250)))
    await dying(log, lanes=1).run_until_empty()
    await waiting(log, other).run_until_empty()
    assert other.numbers == list(range(250))


async def test_a_refused_copy_is_retried_as_the_other_sink_does_and_then_given_up(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    other = Elsewhere()
    other.refuse(lambda _: "full")
    retry = Backoff(max_attempts=2, first=timedelta(minutes=1))
    await waiting(log, other).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    await waiting(log, other, retry=retry).run_until_empty()
    assert await copies(log) == [], "it is not due"
    await log.pass_time(timedelta(minutes=2))
    assert [copy.tries for copy in await copies(log)] == [1]
    await waiting(log, other, retry=retry).run_until_empty()
    await log.pass_time(timedelta(hours=1))
    assert await copies(log) == []
    assert "was refused: full; the message itself stays in the log" in caplog.text
    assert [row.state for row in await log.deferred()] == ["dead"]


async def test_a_copy_whose_route_is_blocked_waits_without_a_limit(log: Log) -> None:
    other = Elsewhere()
    other.unbind("orders")
    await waiting(log, other).create_sink()
    await log.add(*numbered(1, topic="orders"))
    await dying(log).run_until_empty()
    for _ in range(3):
        await waiting(log, other, retry=Backoff(max_attempts=1)).run_until_empty()
        await log.pass_time(timedelta(hours=1))
    assert [copy.tries for copy in await copies(log)] == [0]
    other.bind("orders")
    await waiting(log, other).run_until_empty()
    assert other.numbers == [1]


async def test_the_innocent_copies_of_a_call_that_fails_are_published(log: Log) -> None:
    class Picky(Elsewhere):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            if any(message.payload == b"2" for message in messages):
                raise ValueError("it can't be encoded")
            return await super().publish(messages)

    other = Picky()
    await waiting(log, other).create_sink()
    await log.add(*numbered(1, 2, 3))
    await dying(log).run_until_empty()
    await waiting(log, other, retry=Backoff(max_attempts=1)).run_until_empty()
    assert sorted(other.numbers) == [1, 3]
    assert await copies(log) == []


async def test_a_relay_that_is_stopped_keeps_the_copies_that_have_no_answer(log: Log) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    other.hold()
    settings = RelaySettings(**(QUICK | {"grace": "1ms"}))
    relay = Relay(log.another_store(), other, sink="waiting", filter=NOTHING, settings=settings)
    running = asyncio.create_task(relay.run())
    await asyncio.wait_for(other.asked.wait(), 60)
    relay.stop()
    await asyncio.wait_for(running, 60)
    assert len(await copies(log)) == 1
    other.release()
    await waiting(log, other).run_until_empty()
    assert other.numbers == [1]


async def test_a_message_stays_in_the_log_while_its_copy_waits(log: Log) -> None:
    other = Elsewhere()
    await waiting(log, other).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    await forget_death(log)
    await log.make_older(timedelta(days=1))

    async def deleted() -> int:
        store = log.another_store()
        await store.open()
        try:
            return (await store.delete_passed(after=0, older_than=timedelta(hours=1), batch=10)).deleted
        finally:
            await store.close()

    assert await deleted() == 0
    await waiting(log, other).run_until_empty()
    assert other.numbers == [1]
    assert await deleted() == 1


async def forget_death(log: Log) -> None:
    """As if an operator had dropped the dead message."""
    if isinstance(log, MemoryLog):
        log.store._deferred.clear()
    elif isinstance(log, SQLiteLog):
        log.execute("delete from postroad_deferred")
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute("delete from postroad.deferred")


async def test_a_second_death_replaces_the_copy_that_still_waits(kept: SQLiteLog | PostgreSQLLog) -> None:
    other = Elsewhere()
    await waiting(kept, other).create_sink()
    await kept.add(*numbered(1))
    await dying(kept).run_until_empty()
    (first,) = await copies(kept)
    database: Any = SQLiteAdminDatabase(kept.path) if isinstance(kept, SQLiteLog) else PostgreSQLAdminDatabase(kept.url)
    async with Admin(database) as ops:
        await ops.retry(Filter(state=State.DEAD), By("anna"))
    assert (await dying(kept).run_until_empty()).died == 1
    (second,) = await copies(kept)
    assert second.id != first.id
    await waiting(kept, other).run_until_empty()
    assert [message.id for message in other.messages] == [second.id]


async def test_a_removed_sink_leaves_no_copies(kept: SQLiteLog | PostgreSQLLog) -> None:
    other = Elsewhere()
    await waiting(kept, other).create_sink()
    await kept.add(*numbered(1))
    await dying(kept).run_until_empty()
    database: Any = SQLiteAdminDatabase(kept.path) if isinstance(kept, SQLiteLog) else PostgreSQLAdminDatabase(kept.url)
    async with Admin(database) as ops:
        sinks = {each.sink: (each.copies, each.copies_since is None) for each in (await ops.status()).sinks}
        assert sinks == {"waiting": (1, False), "kafka": (0, True)}
        await ops.remove_sink("waiting", By("anna"))
    assert await copies(kept) == []


async def test_a_sink_settles_its_own_copies_only(log: Log) -> None:
    await waiting(log, Elsewhere()).create_sink()
    await log.add(*numbered(1))
    await dying(log).run_until_empty()
    (first,) = await copies(log)
    store = log.another_store()
    await store.open()
    try:
        await store.copies.settle("elsewhere", done=[first.id], postponed=[])
    finally:
        await store.close()
    assert [copy.id for copy in await copies(log)] == [first.id], "that was another sink"


# -- what is refused -------------------------------------------------------------------------------------------------


async def test_a_sink_that_is_not_there_is_refused_before_anything_is_published(log: Log) -> None:
    await log.add(*numbered(1))
    broker = MemoryBroker()
    with pytest.raises(InvalidSetting, match="dead_letter_sink is 'waiting', and the database has no such sink"):
        await dying(log, broker).run_until_empty()
    assert broker.messages == []
    with pytest.raises(InvalidSetting, match="has no such sink"):
        await RelayGroup({"kafka": lambda: dying(log, broker)}).run_until_empty()


async def test_sinks_of_one_group_are_created_before_they_are_looked_for(kept: Log) -> None:
    other = Elsewhere()
    await kept.add(*numbered(1))
    group = RelayGroup({"kafka": lambda: dying(kept), "waiting": lambda: waiting(kept, other)})
    summaries = await group.run_until_empty()
    assert (summaries["kafka"].died, group.errors) == (1, {})


def test_a_sink_of_its_own_or_a_topic_too_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="dead_letter_sink is 'kafka', which is the sink itself"):
        dying(MemoryLog(), dead_letter_sink="kafka")
    with pytest.raises(InvalidSetting, match="dead_letter_topic is 'dead' and dead_letter_sink is 'waiting'; give one"):
        RelaySettings(dead_letter_topic="dead", dead_letter_sink="waiting")
