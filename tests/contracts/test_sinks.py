"""A sink keeps its destination: a relay that would deliver elsewhere is refused, in every store, before it publishes
anything; and people move and remove sinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from postroad import InvalidSetting, StoredMessage
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.errors import NotFound
from postroad.relay import Relay
from postroad.relay.maintenance import Retention
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter, StatusReport
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.leases import NOWHERE
from tests.lanes import HERE, identity
from tests.logs import Log, PostgreSQLLog, SQLiteLog, log_fixture, numbered

ME = By("anna", "because")


class There(MemoryBroker):
    destination = "there"


log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18")


kept = log_fixture("sqlite", "postgresql15")  # logs that operators work with


@pytest.fixture
async def ops(kept: SQLiteLog | PostgreSQLLog) -> AsyncIterator[Admin]:
    operating: Admin = (
        Admin(SQLiteAdminDatabase(kept.path))
        if isinstance(kept, SQLiteLog)
        else Admin(PostgreSQLAdminDatabase(kept.url))
    )
    async with operating:
        yield operating


def relay(log: Log, publisher: Any, sink: str = "default", **more: Any) -> Relay:
    settings: dict[str, Any] = {"lanes": 2, "poll_interval": "1ms", "max_idle_backoff": "5ms"}
    return Relay(log.another_store(), publisher, sink=sink, settings=RelaySettings(**(settings | more)))


async def change(log: Log, sql: str) -> None:
    if isinstance(log, SQLiteLog):
        log.execute(sql.replace("postroad.", "postroad_"))
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute(sql)


# -- the destination -------------------------------------------------------------------------------------------------


async def test_a_relay_to_another_destination_is_refused_before_it_publishes_anything(log: Log) -> None:
    await relay(log, MemoryBroker()).run_until_empty()
    await log.add(*numbered(1))
    elsewhere = There()
    with pytest.raises(
        InvalidSetting, match=r"sink 'default' delivers to memory, .* deliver to there; .*retarget defau"
    ):
        await relay(log, elsewhere).run_until_empty()
    with pytest.raises(InvalidSetting, match="delivers to memory"):
        async with relay(log, elsewhere):
            pass
    assert elsewhere.messages == []
    broker = MemoryBroker()
    await relay(log, broker).run_until_empty()
    assert len(broker.messages) == 1


async def test_nothing_takes_over_a_sink_that_delivers_somewhere(log: Log) -> None:
    await relay(log, MemoryBroker()).run_until_empty()
    await log.add(*numbered(1))
    with pytest.raises(InvalidSetting, match=r"null:// would confirm its messages and keep none.*--sink NAME"):
        await relay(log, NullPublisher()).run_until_empty()
    await relay(log, NullPublisher(), sink="measured").run_until_empty()
    await relay(log, NullPublisher(), sink="measured").run_until_empty()
    assert await log.waiting() == 1


async def test_of_two_relays_that_meet_a_new_sink_one_decides(log: Log) -> None:
    await log.add(*numbered(*range(20)))
    brokers = [MemoryBroker(), There()]
    relays = [relay(log, broker, lanes=4) for broker in brokers]
    ended = await asyncio.gather(*(each.run_until_empty() for each in relays), return_exceptions=True)
    assert sum(isinstance(each, InvalidSetting) for each in ended) == 1
    assert sorted(len(broker.messages) for broker in brokers) == [0, 20]


async def test_handlers_are_distinguished_by_their_names(log: Log) -> None:
    async def stock(_: StoredMessage) -> None: ...
    async def mail(_: StoredMessage) -> None: ...

    await relay(log, LocalPublisher(stock, name="stock")).run_until_empty()
    await relay(log, LocalPublisher(mail, name="stock")).run_until_empty()
    with pytest.raises(InvalidSetting, match=r"delivers to local:stock, .* to local:.*mail"):
        await relay(log, LocalPublisher(mail)).run_until_empty()


async def test_lanes_are_taken_only_for_the_sinks_own_destination(log: Log) -> None:
    await log.store.open()
    await log.store.leases.create("s", "there", lanes=2, start="oldest")
    me = identity("s")
    await log.store.leases.heartbeat(me, 15.0)
    assert me.destination == HERE
    assert list(await log.store.leases.take(me, 2, 15.0)) == []
    assert (await log.store.leases.inspect(me)).destination == "there"
    await log.store.close()


# -- a sink from before, and one that is moved -----------------------------------------------------------------------


async def test_a_sink_from_before_gets_its_first_destination_but_not_null(kept: Log, ops: Admin) -> None:
    await relay(kept, MemoryBroker()).run_until_empty()
    await change(kept, "update postroad.sinks set destination = null")
    with pytest.raises(InvalidSetting, match="kept no destination"):
        await relay(kept, NullPublisher()).run_until_empty()
    await relay(kept, There()).run_until_empty()
    assert (await ops.status()).sinks[0].destination == "there"


async def test_a_sink_is_moved_and_what_it_has_not_delivered_goes_there(kept: Log, ops: Admin) -> None:
    await relay(kept, MemoryBroker()).run_until_empty()
    await kept.add(*numbered(1, 2, 3))
    assert (await ops.retarget("default", "there", ME)).changed == 2
    assert (await ops.retarget("default", "there", ME)).changed == 0
    with pytest.raises(InvalidSetting, match="delivers to there"):
        await relay(kept, MemoryBroker()).run_until_empty()
    there = There()
    await relay(kept, there).run_until_empty()
    assert len(there.messages) == 3
    (entry,) = await ops.audit()
    assert (entry.who, entry.command, entry.reason) == ("anna", "sink retarget", "because")
    assert entry.arguments == {"sink": "default", "from": "memory", "to": "there"}


async def test_no_sink_is_moved_to_null_nor_one_that_is_not_there(kept: Log, ops: Admin) -> None:
    await relay(kept, MemoryBroker()).run_until_empty()
    with pytest.raises(InvalidSetting, match="keep none of them"):
        await ops.retarget("default", NOWHERE, ME)
    with pytest.raises(InvalidSetting, match="there is no sink 'defalt'; did you mean 'default'"):
        await ops.retarget("defalt", "there", ME)
    assert list(await ops.audit()) == []


async def test_a_sink_is_neither_moved_nor_removed_while_a_relay_serves_it(kept: Log, ops: Admin) -> None:
    async with relay(kept, MemoryBroker()):
        with pytest.raises(NotFound, match="still served, by 1 relay"):
            await ops.retarget("default", "there", ME)
        with pytest.raises(NotFound, match="still served, by 1 relay"):
            await ops.remove_sink("default", ME)
        assert (await ops.status()).sinks[0].relays == 1
    assert (await ops.remove_sink("default", ME)).changed == 2


async def until_ended(task: asyncio.Task[Any]) -> BaseException | None:
    await asyncio.wait((task,), timeout=60)
    return task.exception()


@pytest.mark.parametrize("how", ["moved", "removed"])
async def test_a_relay_that_was_frozen_meanwhile_ends_and_says_why(kept: Log, ops: Admin, how: str) -> None:
    """Its lease was over, its sink was moved or removed: it takes no lane again. After a move it delivers nothing."""
    broker = MemoryBroker()
    frozen = relay(kept, broker, lease="1s", tick="100ms")
    running = asyncio.create_task(frozen.run())
    await asyncio.wait((asyncio.create_task(frozen._started.wait()), running), return_when=asyncio.FIRST_COMPLETED)
    async with asyncio.timeout(60):
        while True:  # its heartbeat is put into the past until the change comes between two of them
            await change(kept, "update postroad.relays set alive_until = started_at")
            if isinstance(kept, SQLiteLog):
                await change(kept, "update postroad_leases set lease_until = 1")
            else:
                await change(kept, "update postroad.lanes set lease_until = '2020-01-01'")
            try:
                await (ops.retarget("default", "there", ME) if how == "moved" else ops.remove_sink("default", ME))
                break
            except NotFound:
                pass
    await kept.add(*numbered(1))
    ended = await until_ended(running)
    assert isinstance(ended, InvalidSetting)
    assert ("delivers to there" if how == "moved" else "was removed") in str(ended)
    assert broker.messages == [] or how == "removed"


# -- removing --------------------------------------------------------------------------------------------------------


async def test_a_removed_sink_leaves_nothing_behind_and_retention_does_not_wait_for_it(kept: Log, ops: Admin) -> None:
    unwilling = MemoryBroker()
    unwilling.refuse(lambda _: "no")
    await relay(kept, MemoryBroker()).run_until_empty()
    await kept.add(*numbered(1, 2))
    await relay(kept, unwilling, sink="old", max_attempts=1).run_until_empty()
    await ops.hold("old", "k1", ME)
    await ops.pause("old", ME)
    await kept.add(*numbered(3))
    await relay(kept, MemoryBroker()).run_until_empty()
    store = kept.another_store()
    await store.open()
    assert await Retention(store, retain=timedelta(0)).run_once() == 0
    await ops.remove_sink("old", ME)
    assert await Retention(store, retain=timedelta(0)).run_once() == 3
    await store.close()
    assert list(await ops.sinks()) == ["default"]
    with pytest.raises(InvalidSetting, match="there is no sink 'old'"):
        await ops.count(Filter(sink="old"))
    assert (await ops.audit())[0].arguments == {"sink": "old", "destination": "memory"}
    assert await rows_of(kept, "old") == {}


# -- a sink that no relay serves -------------------------------------------------------------------------------------


def days_unserved(report: StatusReport) -> list[int]:
    return [round((report.at - each.served_at).total_seconds() / 86_400) for each in report.sinks]


async def test_a_sink_that_no_relay_has_served_for_a_day_is_reported(
    kept: Log, ops: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    await relay(kept, MemoryBroker()).run_until_empty()
    await relay(kept, MemoryBroker(), sink="forgotten").run_until_empty()
    store = kept.another_store()
    await store.open()
    await Retention(store, retain=timedelta(0)).run_once()
    assert "no relay has served it" not in caplog.text
    earlier = "served_at - 2 * 86400000000" if isinstance(kept, SQLiteLog) else "served_at - interval '2 days'"
    await change(kept, f"update postroad.sinks set served_at = {earlier} where sink = 'forgotten'")
    await Retention(store, retain=timedelta(0)).run_once()
    await store.close()
    assert "sink forgotten: no relay has served it for 48 hours" in caplog.text
    assert "sink default" not in caplog.text
    report = await ops.status()
    assert days_unserved(report) == [0, 2]
    async with relay(kept, MemoryBroker(), sink="forgotten"):
        report = await ops.status()
        assert days_unserved(report) == [0, 0]


async def rows_of(log: Log, sink: str) -> dict[str, int]:
    """How many rows each table has that names the sink in a column."""
    if isinstance(log, SQLiteLog):
        names = log.execute("select name from sqlite_schema where type = 'table' and sql like '%sink %text%'")
        tables = [name for (name,) in names]
        counted = {name: log.execute(f"select count(*) from {name} where sink = '{sink}'")[0][0] for name in tables}
    else:
        assert isinstance(log, PostgreSQLLog)
        rows = await log.execute(
            "select table_name from information_schema.columns join information_schema.tables using (table_name) "
            "where columns.table_schema = 'postroad' and column_name = 'sink' and table_type = 'BASE TABLE'"
        )
        tables = [row[0] for row in rows]
        counted = {
            name: (await log.execute(f"select count(*) from postroad.{name} where sink = $1", sink))[0][0]
            for name in tables
        }
    assert len(counted) >= 10
    return {name: number for name, number in counted.items() if number}
