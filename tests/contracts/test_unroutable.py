"""What becomes of messages whose route is out: held, dropped, dead after a time; and how often routes are asked for."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroad import Message, Outbox, Refusal, StoredMessage
from postroad.config import RelaySettings
from postroad.errors import BrokerUnavailable
from postroad.lifecycle import State
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.base import PROBES_PER_SECOND
from tests.logs import Arrivals, Log, MemoryLog, PostgreSQLLog, SQLiteLog, log_fixture, numbered

log = log_fixture("memory", "sqlite", "postgresql15")


def relay(log: Log, broker: Any, *, retry: Backoff | None = None, **more: Any) -> Relay:
    settings: dict[str, Any] = {"lanes": 1, "poll_interval": "1ms", "max_idle_backoff": "5ms"}
    return Relay(log.another_store(), broker, settings=RelaySettings(**(settings | more)), retry=retry)


def unbound(*topics: str) -> Arrivals:
    broker = Arrivals()
    for topic in topics:
        broker.unbind(topic)
    return broker


def lost_and_found() -> list[Message]:
    """Of one key: a message that no queue is bound to, and one behind it."""
    return [*numbered(1, key="k", topic="lost"), *numbered(2, key="k", topic="found")]


async def states(log: Log) -> dict[int, str]:
    return {row.position: row.state for row in await log.deferred()}


# -- unroutable = "drop" ---------------------------------------------------------------------------------------------


async def test_what_no_consumer_takes_is_dropped_counted_and_never_tried_again(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    broker = unbound("lost")
    await log.add(*lost_and_found())
    summary = await relay(log, broker, unroutable="drop").run_until_empty()
    assert (summary.published, summary.dropped, summary.lanes_with_deferred) == (1, 1, 0)
    assert re.search(r"^1 published.*, 1 dropped in .*; no consumer has subscribed to what was dropped", str(summary))
    assert broker.numbers == [2]
    (row,) = await log.deferred()
    assert (row.state, row.route, row.blocks, row.due_in) == ("dropped", "lost", False, None)
    assert "no queue is bound to 'lost'" in str(row.error)
    assert sum("dropped 1 messages" in line for line in caplog.messages) == 1
    broker.bind("lost")
    await relay(log, broker, unroutable="drop").run_until_empty()
    assert broker.numbers == [2]


async def test_what_was_held_before_is_dropped_too(log: Log) -> None:
    broker = unbound("lost")
    await log.add(*lost_and_found())
    summary = await relay(log, broker).run_until_empty()
    assert (summary.dropped, summary.lanes_with_deferred, list(summary.blocked_routes)) == (0, 1, ["lost"])
    assert re.search(r"; messages of 1 lane are deferred, see .*; 1 blocked route: 'lost'$", str(summary))
    summary = await relay(log, broker, unroutable="drop").run_until_empty()
    assert summary.dropped == 1
    assert broker.numbers == [2]


async def test_a_full_queue_drops_nothing(log: Log) -> None:
    """A route is out, but a consumer has subscribed."""
    broker = Arrivals()
    broker.refuse(lambda message: Refusal(message.position, "a queue is full", route=message.topic))
    await log.add(*numbered(1))
    summary = await relay(log, broker, unroutable="drop").run_until_empty()
    assert (summary.dropped, summary.lanes_with_deferred) == (0, 1)
    broker.refuse(lambda _: None)
    await relay(log, broker, unroutable="drop").run_until_empty()
    assert broker.numbers == [1]


# -- route_timeout ---------------------------------------------------------------------------------------------------


async def defer_earlier(log: Log, by: timedelta) -> None:
    if isinstance(log, MemoryLog):
        for row in log.store._deferred.values():
            row.deferred_at -= by.total_seconds()
    elif isinstance(log, SQLiteLog):
        log.execute(f"update postroad_deferred set deferred_at = deferred_at - {by.total_seconds() * 1e6:.0f}")
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute("update postroad.deferred set deferred_at = deferred_at - $1::interval", by)


async def test_a_message_that_waits_too_long_for_its_route_dies_and_frees_its_key(log: Log) -> None:
    broker = unbound("lost")
    await log.add(*lost_and_found())
    await relay(log, broker, route_timeout="1h").run_until_empty()
    await defer_earlier(log, timedelta(minutes=50))
    await relay(log, broker, route_timeout="1h").run_until_empty()
    assert await states(log) == {1: "held", 2: "held"}
    await defer_earlier(log, timedelta(minutes=15))
    await relay(log, broker).run_until_empty()
    assert await states(log) == {1: "held", 2: "held"}, "without the setting there is no limit"
    summary = await relay(log, broker, route_timeout="1h").run_until_empty()
    assert summary.died == 1
    assert await states(log) == {1: "dead"}
    assert broker.numbers == [2]
    (row,) = await log.deferred()
    assert "route_timeout is 3,600 s" in str(row.error)


async def test_a_dead_message_holds_its_key_if_that_is_wanted(log: Log) -> None:
    broker = unbound("lost")
    await log.add(*lost_and_found())
    await relay(log, broker).run_until_empty()
    await defer_earlier(log, timedelta(hours=2))
    await relay(log, broker, route_timeout="1h", on_dead="hold").run_until_empty()
    assert await states(log) == {1: "dead", 2: "held"}
    assert broker.numbers == []


# -- two applications, one key ---------------------------------------------------------------------------------------


async def add_from(log: Log, source: str, *messages: Message) -> None:
    """As another application does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.logs.OUTBOX", Outbox(source=source))
        await log.add(*messages)


async def two_applications(log: Log) -> None:
    """The first one's message can't be routed; both go on with messages of the same key."""
    await add_from(log, "/first", *numbered(1, key="k", topic="lost"))
    await add_from(log, "/second", *numbered(2, key="k", topic="found"))
    await add_from(log, "/first", *numbered(3, key="k", topic="found"))


async def test_a_key_that_two_applications_share_is_held_for_both(log: Log) -> None:
    broker = unbound("lost")
    await two_applications(log)
    await relay(log, broker).run_until_empty()
    assert broker.numbers == []


async def test_with_keys_of_each_source_one_application_does_not_hold_the_others(log: Log) -> None:
    broker = unbound("lost")
    await two_applications(log)
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert broker.numbers == [2]
    assert await states(log) == {1: "held", 3: "held"}
    broker.refuse(lambda message: "not now" if message.payload == b"4" else None)
    await add_from(log, "/second", *numbered(4, 5, key="k", topic="found"))
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert await states(log) == {1: "held", 3: "held", 4: "retrying", 5: "held"}
    broker.refuse(lambda _: None)
    await log.pass_time(timedelta(hours=1))
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert broker.numbers == [2, 4, 5], "a deferred message waits for its own source alone"
    broker.bind("lost")
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert broker.numbers == [2, 4, 5, 1, 3]


async def test_a_running_relay_retries_one_sources_message_past_anothers(log: Log) -> None:
    broker = unbound("lost")
    refused = 0

    def once(message: StoredMessage) -> str | None:
        nonlocal refused
        refused += message.payload == b"2"
        return "not now" if message.payload == b"2" and refused == 1 else None

    broker.refuse(once)
    await two_applications(log)
    async with relay(log, broker, retry=Backoff(first=timedelta(0)), ordering="source-key"):
        await broker.until(2)
        broker.bind("lost")
        await broker.until(1, 3)
    assert broker.numbers == [2, 1, 3]


async def test_the_setting_may_be_changed_while_messages_are_held(log: Log) -> None:
    broker = unbound("lost")
    await two_applications(log)
    await relay(log, broker).run_until_empty()
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert broker.numbers == [2]
    await add_from(log, "/second", *numbered(4, key="k", topic="found"))
    await relay(log, broker).run_until_empty()
    assert broker.numbers == [2]
    broker.bind("lost")
    await relay(log, broker).run_until_empty()
    assert broker.numbers == [2, 1, 3, 4]


async def test_a_key_that_a_person_holds_is_held_for_every_source(log: Log) -> None:
    if isinstance(log, MemoryLog):
        pytest.skip("a log in memory has no operators")
    assert isinstance(log, SQLiteLog | PostgreSQLLog)
    broker = unbound("lost")
    await two_applications(log)
    delivered = relay(log, broker, ordering="source-key")
    await delivered.run_until_empty()
    operating: Admin = (
        Admin(SQLiteAdminDatabase(log.path)) if isinstance(log, SQLiteLog) else Admin(PostgreSQLAdminDatabase(log.url))
    )
    async with operating:
        await operating.hold("default", "k", By("anna", "because"))
        await add_from(log, "/second", *numbered(4, key="k", topic="found"))
        broker.bind("lost")
        await relay(log, broker, ordering="source-key").run_until_empty()
        assert broker.numbers == [2]
        assert (await operating.count(Filter(key="k", state=State.HELD))).number == 3
        await operating.release("default", "k", By("anna", "because"))
    await relay(log, broker, ordering="source-key").run_until_empty()
    assert sorted(broker.numbers) == [1, 2, 3, 4]
    assert broker.numbers.index(1) < broker.numbers.index(3)


# -- very many routes ------------------------------------------------------------------------------------------------


class Counting(Arrivals):
    def __init__(self) -> None:
        super().__init__()
        self.tried = 0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.tried += len(messages)
        return [Refusal(each.position, "nobody", route=each.topic, unroutable=True) for each in messages]


async def test_very_many_routes_cost_few_probes_and_few_lines(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroad.relay")
    many = 2_000
    await log.add(*[Message(str(n), type="test.number", topic=f"lost.{n}", key=f"k{n}") for n in range(many)])
    broker = Counting()
    began = time.monotonic()
    await relay(log, broker).run_until_empty()
    assert broker.tried < 2 * many
    due = [row.due_in for row in await log.deferred() if row.due_in is not None]
    assert len(due) == many
    assert sum(each <= 5 for each in due) <= (6 + time.monotonic() - began) * PROBES_PER_SECOND
    assert sum("route" in line for line in caplog.messages) <= 10
    await log.pass_time(timedelta(hours=1))
    began = time.monotonic()
    await relay(log, broker).run_until_empty()  # who begins anew asks for all of them that are overdue, once
    again = [row.due_in for row in await log.deferred() if row.due_in is not None]
    assert sum(each <= 5 for each in again) <= (6 + time.monotonic() - began) * PROBES_PER_SECOND


# -- --until-empty ---------------------------------------------------------------------------------------------------


async def test_until_empty_ends_with_an_error_when_the_broker_stays_out(log: Log) -> None:
    broker = Arrivals()
    broker.go_out()
    await log.add(*numbered(1))
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailable, match=r"waiting 5 s \(until_empty_timeout\) .* memory broker is unavail"):
            await relay(log, broker, until_empty_timeout="5s").run_until_empty()
        broker.come_back()
        assert (await relay(log, broker).run_until_empty()).published == 1


class CountsOpening(Arrivals):
    opened = 0

    async def open(self) -> None:
        self.opened += 1
        await super().open()


async def test_until_empty_waits_for_a_broker_that_comes_back(log: Log) -> None:
    broker = CountsOpening()
    broker.go_out()
    await log.add(*numbered(1))
    running = asyncio.create_task(relay(log, broker, until_empty_timeout="10m").run_until_empty())
    async with asyncio.timeout(60):
        while broker.opened < 3:  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.01)
    broker.come_back()
    assert (await asyncio.wait_for(running, 60)).published == 1


async def test_until_empty_saves_what_was_confirmed_before_the_broker_went_out(log: Log) -> None:
    broker = Arrivals()
    broker.fail_after(2)

    class Gone(Arrivals):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            try:
                return await broker.publish(messages)
            except BrokerUnavailable:
                broker.go_out()
                raise

        async def open(self) -> None:
            await broker.open()

    await log.add(*numbered(1, 2, 3))
    with pytest.raises(BrokerUnavailable, match="until_empty_timeout"):
        await relay(log, Gone(), until_empty_timeout="5s").run_until_empty()
    broker.come_back()
    await relay(log, broker).run_until_empty()
    assert broker.numbers == [1, 2, 3]
