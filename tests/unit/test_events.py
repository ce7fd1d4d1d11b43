"""What a relay tells about itself: each event when it happens, with the fields that docs/logging.md promises."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroad import Message, Refusal, StoredMessage, events
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.null import NullPublisher
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.config import RelaySettings
from postroad.listeners import tell
from postroad.message import new_id
from postroad.relay import Relay
from postroad.relay.maintenance import Reports, Retention
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from tests.lanes import identity
from tests.logs import SQLiteLog, log_fixture, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from postroad.brokers.base import Publisher


class LoggedEvents(logging.Handler):
    """The events of a test, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._more.set()

    def all(self, event: type[events.Event]) -> list[dict[str, Any]]:
        there = [vars(record) for record in self.records if vars(record).get("event") == event.name()]
        assert all(each["levelno"] == event.level for each in there)
        return [{name: each[name] for name in event.__struct_fields__} for each in there]

    def one(self, event: type[events.Event]) -> dict[str, Any]:
        (only,) = self.all(event)
        return only

    async def until(self, event: type[events.Event]) -> None:
        async with asyncio.timeout(60):
            while not self.all(event):
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def logged() -> AsyncIterator[LoggedEvents]:
    handler, logger = LoggedEvents(), logging.getLogger("postroad")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(before)
    logger.removeHandler(handler)


log = log_fixture("sqlite")


def relay(log: SQLiteLog, publisher: Publisher, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 1, "batch_size": 10, "poll_interval": "1ms", "max_idle_backoff": "5ms"}
    return Relay(log.store, publisher, sink="audit", settings=RelaySettings(**(defaults | settings)))


def execute(log: SQLiteLog, sql: str) -> None:
    with closing(sqlite3.connect(log.path, timeout=60)) as connection, connection:
        connection.execute(sql)


IN_LANE = {"sink": "audit", "lane": 0}


async def test_a_relay_from_its_start_to_its_end(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(*range(15)))
    await relay(log, NullPublisher()).run_until_empty()
    owner = logged.one(events.LanesTaken)["owner"]
    assert await owner_of(log) is None, "it was given up"
    assert logged.one(events.RelayStarted) == {"sink": "audit", "to": "null://"}
    assert logged.one(events.LanesTaken) == {"sink": "audit", "owner": owner, "lanes": 1, "numbers": [0], "epochs": [1]}
    assert logged.all(events.PageTaken) == [
        IN_LANE | {"size": 10, "position": 10},
        IN_LANE | {"size": 5, "position": 15},
    ]
    published = logged.all(events.PagePublished)
    assert all(page.pop("duration_ms") > 0 for page in published)
    assert published == [
        IN_LANE | {"published": n, "refused": 0, "held": 0, "position": to} for n, to in ((10, 10), (5, 15))
    ]
    ended = logged.one(events.RelayEnded)
    assert ended.pop("duration_ms") > 0
    assert ended == {
        "sink": "audit",
        "published": 15,
        "pages": 2,
        "refused": 0,
        "died": 0,
        "skipped": 0,
        "dropped": 0,
        "lanes_lost": 0,
    }


async def owner_of(log: SQLiteLog) -> UUID | None:
    async with Admin(SQLiteAdminDatabase(log.path)) as operating:
        (sink,) = (await operating.status()).sinks
    return sink.lanes[0].owner


async def test_events_of_pages_are_made_only_for_listeners_that_want_them(
    log: SQLiteLog, logged: LoggedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(events.PageTaken, frozen=True):
        def __post_init__(self) -> None:
            raise AssertionError("not wanted")

    monkeypatch.setattr(events, "PageTaken", Made)
    logging.getLogger("postroad").setLevel(logging.INFO)
    await log.add(*numbered(1, 2, 3))
    assert (await relay(log, NullPublisher()).run_until_empty()).published == 3
    assert logged.all(events.PagePublished) == []
    logging.getLogger("postroad").setLevel(logging.DEBUG)
    await log.add(*numbered(4))
    with pytest.raises(AssertionError, match="not wanted"):
        await relay(log, NullPublisher()).run_until_empty()


async def test_a_refusal(log: SQLiteLog, logged: LoggedEvents) -> None:
    third = Message("3", type="test.number", key="k", id=(id := new_id()))
    await log.add(*numbered(1, 2), third, *numbered(4, key="k"), *numbered(5, 6))
    broker = MemoryBroker()
    broker.refuse(lambda message: "no room for 100%s {e}" if message.payload == b"3" else None)
    await relay(log, broker).run_until_empty()
    refused = logged.one(events.MessageRefused)
    assert 2000 <= refused.pop("retry_ms") <= 2200
    assert refused == IN_LANE | {
        "id": id, "position": 3, "attempts": 1, "max_attempts": 5, "reason": "no room for 100%s {e}",
    }  # fmt: skip
    assert f"message {id} was refused, attempt 1 of 5: no room for 100%s {{e}}; retrying in 2," in texts(logged)
    pages = [(page["published"], page["refused"], page["held"]) for page in logged.all(events.PagePublished)]
    assert pages == [(4, 1, 1)]
    assert (logged.one(events.RelayEnded)["refused"], logged.one(events.RelayEnded)["died"]) == (1, 0)
    assert logged.all(events.LaneStopped) == []


async def test_a_death(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1), (message := Message("x", type="t", id=(id := new_id()))))
    broker = MemoryBroker()
    broker.refuse(lambda each: Refusal(each.position, "too large", permanent=True) if each.id == message.id else None)
    await relay(log, broker).run_until_empty()
    assert logged.one(events.MessageDead) == IN_LANE | {
        "id": id, "position": 2, "attempts": 1, "reason": "too large", "permanent": True,
    }  # fmt: skip
    assert logged.one(events.RelayEnded)["died"] == 1


async def test_a_suspicion(log: SQLiteLog, logged: LoggedEvents) -> None:
    class Broken(NullPublisher):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            raise ZeroDivisionError

    await log.add(*numbered(1, 2))
    await relay(log, Broken()).run_until_empty()
    reason = "the publisher failed: ZeroDivisionError()"
    assert logged.one(events.MessagesSuspected) == IN_LANE | {"messages": 2, "reason": reason}
    assert [refused["reason"] for refused in logged.all(events.MessageRefused)] == [reason, reason]


async def test_a_route_that_is_out_and_back(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1, 2, topic="orders"))
    broker = MemoryBroker()
    broker.unbind("orders")
    await relay(log, broker).run_until_empty()
    assert logged.one(events.RouteBlocked) == IN_LANE | {"route": "orders", "reason": "no queue is bound to 'orders'"}
    broker.bind("orders")
    await relay(log, broker).run_until_empty()
    assert logged.one(events.RouteUnblocked) == IN_LANE | {"route": "orders"}


def texts(logged: LoggedEvents) -> str:
    return "\n".join(record.getMessage() for record in logged.records)


async def test_an_outage_and_its_end(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1, 2, 3))
    broker = MemoryBroker()
    broker.fail_after(1, 0)
    await relay(log, broker, outage_backoff="1ms").run_until_empty()
    reason = "the memory broker fails on demand"
    out = logged.all(events.BrokerUnavailable)
    assert all(0.75 <= each.pop("retry_ms") <= 1 for each in out)
    assert all(each.pop("waited_s") < 60 for each in out)
    assert out == [{"sink": "audit", "reason": reason, "retries": retries} for retries in (0, 1)]
    back = logged.one(events.BrokerRecovered)
    assert (back["sink"], back["probes"]) == ("audit", 2)


async def test_without_an_outage_nothing_is_back(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1))
    await relay(log, MemoryBroker()).run_until_empty()
    assert logged.all(events.BrokerRecovered) == []


async def test_a_broker_that_is_away_at_the_start(log: SQLiteLog, logged: LoggedEvents) -> None:
    it = relay(log, RabbitMQPublisher("amqp://me:geheim@127.0.0.1:1/"))
    running = asyncio.create_task(it.run())
    await logged.until(events.LanesTaken)
    it.stop()
    await running
    assert "amqp://127.0.0.1:1/" in logged.one(events.BrokerUnavailableAtStart)["reason"]
    assert "geheim" not in texts(logged)


async def test_lanes_that_differ_from_the_setting(log: SQLiteLog, logged: LoggedEvents) -> None:
    await relay(log, NullPublisher()).run_until_empty()
    assert logged.all(events.LanesDiffer) == []
    await relay(log, NullPublisher(), lanes=3).run_until_empty()
    assert logged.one(events.LanesDiffer) == {"sink": "audit", "wanted": 3, "lanes": 1}
    assert [taken["epochs"] for taken in logged.all(events.LanesTaken)] == [[1], [2]]


async def test_a_lane_that_was_changed_and_one_that_was_lost(log: SQLiteLog, logged: LoggedEvents) -> None:
    running = asyncio.create_task((it := relay(log, NullPublisher())).run())
    await log.add(*numbered(1))
    await logged.until(events.PagePublished)
    execute(log, "update postroad_lanes set version = version + 1")
    await log.add(*numbered(2))
    await logged.until(events.LaneReloaded)
    assert logged.one(events.LaneReloaded)["reason"].startswith("lane 0 of sink 'audit' is no longer at version ")
    other = log.another_store()
    await other.open()
    execute(log, "update postroad_leases set lease_until = 0")
    (taken,) = await other.leases.take(identity("audit", destination="null://"), 1, 60)
    await other.close()
    await log.add(*numbered(2))
    await logged.until(events.LaneLost)
    assert taken.epoch == 2
    it.stop()
    await asyncio.wait_for(running, 60)
    assert logged.one(events.LaneLost) == IN_LANE | {"reason": "lane 0 of sink 'audit' was taken by another relay"}
    assert logged.one(events.RelayEnded)["lanes_lost"] == 1


async def test_a_database_that_is_out(log: SQLiteLog, logged: LoggedEvents) -> None:
    it = relay(log, NullPublisher())
    running = asyncio.create_task(it.run())
    await logged.until(events.LanesTaken)
    execute(log, "alter table postroad_outbox rename to elsewhere")
    await logged.until(events.StoreUnavailable)
    execute(log, "alter table elsewhere rename to postroad_outbox")
    it.stop()
    await running
    first = logged.all(events.StoreUnavailable)[0]
    assert (first["sink"], first["retry_ms"], first["waited_s"], first["retries"]) == ("audit", 50, 0, 0)
    assert first["what"] in {"lanes", "scheduled messages", "retention"}
    assert "postroad migrate" in first["reason"]


async def test_a_lane_that_is_stopped_in_the_middle_of_a_page(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1, 2, key="a"))
    broker = MemoryBroker()
    broker.hold()
    running = asyncio.create_task((it := relay(log, broker, grace="10ms")).run())
    await asyncio.wait_for(broker.asked.wait(), 60)
    it.stop()
    await running
    reason = "the broker did not confirm in time; what it had confirmed is saved"
    assert logged.one(events.LaneStopped) == IN_LANE | {"reason": reason}
    assert [(page["published"], page["refused"]) for page in logged.all(events.PagePublished)] == [(0, 0)]


async def test_a_relay_reports_while_messages_move(log: SQLiteLog, logged: LoggedEvents) -> None:
    it = relay(log, NullPublisher(), report_interval="1ms")
    running = asyncio.create_task(it.run())
    await logged.until(events.LanesTaken)
    await log.add(*numbered(1, 2, 3))
    await logged.until(events.Progress)
    it.stop()
    await running
    report = logged.one(events.Progress)
    assert (report["sink"], report["published"], report["pages"]) == ("audit", 3, 1)
    assert report["per_second"] == pytest.approx(3000 / report["duration_ms"])


async def test_a_report_is_about_the_time_since_the_last_one(logged: LoggedEvents) -> None:
    counts = [5, 1]
    reports = Reports("audit", lambda: (counts[0], counts[1]), now=100.0)
    reports.run_once(110.0)
    assert logged.records == []
    counts[:] = [45, 3]
    reports.run_once(120.0)
    assert logged.one(events.Progress) == {
        "sink": "audit", "published": 40, "pages": 2, "per_second": 4.0, "duration_ms": 10_000,
    }  # fmt: skip
    reports.run_once(130.0)
    assert len(logged.records) == 1


async def test_what_was_deleted(log: SQLiteLog, logged: LoggedEvents) -> None:
    await log.add(*numbered(1, 2, 3))
    await relay(log, NullPublisher()).run_until_empty()
    await log.store.open()
    await Retention(log.store, retain=timedelta(0)).run_once()
    await log.store.close()
    assert logged.one(events.MessagesDeleted) == {"deleted": 3, "retain_s": 0}


async def test_a_record_names_the_function_that_emitted_it(logged: LoggedEvents) -> None:
    tell(events.Stopping(signal="SIGTERM"))
    (record,) = logged.records
    assert (record.name, record.funcName) == ("postroad.ops", "test_a_record_names_the_function_that_emitted_it")
