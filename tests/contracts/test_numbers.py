"""`Admin.numbers`, from which metrics of the database are made, on every database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from postroad import Message, Refusal
from postroad.admin import By, Filter, open_admin
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.lifecycle import State
from postroad.relay import Relay
from postroad.stores.grants import grants_script
from tests.logs import PostgreSQLLog, SQLiteLog, numbered
from tests.services.postgresql import PostgreSQL

ME = By("me", "test")


@pytest.fixture(params=["postgresql15", "postgresql18", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PostgreSQLLog | SQLiteLog]:
    if request.param == "sqlite":
        yield SQLiteLog(tmp_path / "log.sqlite")
        return
    log = await PostgreSQLLog.fresh(request.getfixturevalue(request.param))
    yield log
    await log.close()


def url_of(log: PostgreSQLLog | SQLiteLog, tmp_path: Path) -> str:
    return log.url if isinstance(log, PostgreSQLLog) else f"sqlite:///{tmp_path / 'log.sqlite'}"


async def test_a_log_that_is_empty(log: PostgreSQLLog | SQLiteLog, tmp_path: Path) -> None:
    async with open_admin(url_of(log, tmp_path)) as admin:
        numbers = await admin.numbers()
    assert (numbers.sinks, numbers.log_position, numbers.scheduled) == ([], 0, 0)
    assert (numbers.oldest_row_seconds, numbers.overdue_seconds) == (0.0, 0.0)
    assert sum(numbers.table_bytes.values()) > 0
    if isinstance(log, PostgreSQLLog):
        assert {"outbox", "deferred", "inbox"} <= set(numbers.table_bytes)


async def test_what_has_happened(log: PostgreSQLLog | SQLiteLog, tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.refuse(lambda each: Refusal(each.position, "no", permanent=True) if each.payload == b"3" else None)
    await log.add(*numbered(*range(10)))
    await Relay(log.store, broker, settings=RelaySettings(lanes=2)).run_until_empty()
    await log.make_older(timedelta(hours=1))
    await log.add(*numbered(*range(10, 15)), Message({}, type="later", deliver_in=timedelta(minutes=5)))
    async with open_admin(url_of(log, tmp_path)) as admin:
        await admin.pause("default", ME)
        await admin.hold("default", "k1", ME)
        numbers = await admin.numbers()
        (sink,) = numbers.sinks
        assert (numbers.log_position, numbers.scheduled, numbers.overdue_seconds) == (15, 1, 0.0)
        assert 3600 <= numbers.oldest_row_seconds < 3900
        assert (sink.sink, sink.paused, sink.held_keys) == ("default", True, 1)
        assert [lane.lane for lane in sink.lanes] == [0, 1]
        assert sum(lane.pending for lane in sink.lanes) == 5
        assert all(0 <= lane.lag_seconds < 300 for lane in sink.lanes)
        assert 0 <= sink.oldest_unsent_seconds < 300, "a dead message does not count"
        assert sink.deferred == {State.RETRYING: 0, State.SENDING: 0, State.HELD: 0, State.DEAD: 1}
        assert sink.relays == {"active": 0, "standby": 0, "dead": 0}
        await log.pass_time(timedelta(minutes=10))
        assert (await admin.numbers()).overdue_seconds > 200
        await admin.resume("default", ME)
        await admin.release("default", "k1", ME)
        (sink,) = (await admin.numbers()).sinks
        assert (sink.paused, sink.held_keys) == (False, 0)


async def test_very_many_deferred_messages_are_counted_to_a_limit_for_each_state(
    log: PostgreSQLLog | SQLiteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one of its state is found among any number of others, and so is its age."""
    monkeypatch.setattr("postroad.stores.admin.numbers.MOST_DEFERRED", 2)
    broker, settings = MemoryBroker(), RelaySettings(lanes=1)
    broker.refuse(lambda each: Refusal(each.position, "no", permanent=True))
    async with open_admin(url_of(log, tmp_path)) as admin:
        await Relay(log.another_store(), broker, settings=settings).run_until_empty()  # makes the sink
        await admin.hold("default", "held", ME)
        await log.add(*numbered(0, 1, 2), Message({}, type="t", key="held"), *numbered(3, 4, 5))
        await Relay(log.store, broker, settings=settings).run_until_empty()
        await log.make_older(timedelta(hours=1))
        (sink,) = (await admin.numbers()).sinks
        assert sink.deferred == {State.RETRYING: 0, State.SENDING: 0, State.HELD: 1, State.DEAD: 2}
        assert 3600 <= sink.oldest_unsent_seconds < 3900
        listing = await admin.messages(Filter(sink="default", state=State.DEAD), limit=10)
        dead = sorted(listing.messages, key=lambda each: each.position)
        assert len(dead) == 6
        for each in dead[:2] + dead[3:]:
            await admin.drop(Filter(sink="default", ids=[each.id]), ME)
        (sink,) = (await admin.numbers()).sinks
        assert sink.deferred[State.DEAD] == 1


@pytest.mark.parametrize("kind", ["relay", "reader", "operator"])
async def test_the_rights_of_a_role_are_enough(kind: str, postgresql15: PostgreSQL) -> None:
    log, role = await PostgreSQLLog.fresh(postgresql15), f"numbers_{kind}"
    await log.execute(f"do $$ begin create role {role} login; exception when duplicate_object then null; end $$")
    async with log.connected() as owner:
        await owner.execute(grants_script(role, kind=kind))
    user = urlsplit(log.url)
    url = urlunsplit(user._replace(netloc=f"{role}@{user.netloc.rpartition('@')[2]}"))
    await log.add(*numbered(1))
    async with open_admin(url) as admin:
        assert (await admin.numbers()).log_position == 1
    await log.close()


async def test_the_last_position_stays_when_the_log_is_emptied(log: PostgreSQLLog | SQLiteLog, tmp_path: Path) -> None:
    await log.add(*numbered(*range(10)))
    await Relay(log.store, MemoryBroker(), settings=RelaySettings(lanes=2)).run_until_empty()
    async with open_admin(url_of(log, tmp_path)) as admin:
        assert (await admin.cleanup(timedelta(0), ME)).changed == 10
        numbers = await admin.numbers()
    assert (numbers.log_position, numbers.oldest_row_seconds) == (10, 0.0)
