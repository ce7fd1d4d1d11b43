"""What only PostgreSQL's way of waking has to get right: whom the trigger notifies, and who may have missed a nap."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from postroad import Message, StoreUnavailable
from postroad.message import SLOTS, slot_of
from postroad.relay import Relay
from postroad.stores import postgresql as store_module
from postroad.stores.base import Lease
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.grants import grants_script
from postroad.stores.naps import Writer
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from postroad.stores.postgresql_naps import marks_of
from tests.contracts.test_wakeup import SECONDS, listen_events, relay, running, until, until_asleep, until_listen_events
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PLENTY, Arrivals, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL

CHANNEL = "wake_me"
LOW, HIGH = "key-0", "key-1"
"""Keys whose slots lie in the first and in the second of two lanes."""


log = log_fixture("postgresql", opened=True)


class Listeners:
    """Everything that is notified, in the order in which it arrives."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def on_notification(self, _connection: Any, _process: int, channel: str, payload: str) -> None:
        self._heard.put_nowait((channel, payload))

    async def received(self) -> list[tuple[str, str]]:
        """All that was notified up to now: what we send ourselves comes behind it."""
        mark = ("end", str(uuid4()))
        await self._connection.execute("select pg_notify($1, $2)", *mark)
        received = []
        async with asyncio.timeout(SECONDS):
            while (each := await self._heard.get()) != mark:
                received.append(each)
        return received


@pytest.fixture
async def listeners(connect: Any) -> Listeners:
    connection = await connect()
    listeners = Listeners(connection)
    for channel in (CHANNEL, "postroad", "end"):
        await connection.add_listener(channel, listeners.on_notification)
    return listeners


async def lanes(log: PostgreSQLLog) -> list[Lease]:
    assert slot_of(LOW, uuid4()) < 512 <= slot_of(HIGH, uuid4())
    return list(await take_lanes(log.store, "s", uuid4(), lanes=2, start="oldest"))


async def nap(log: PostgreSQLLog, lease: Lease, seconds: float = 60) -> int:
    number = await log.store.naps.begin(lease, channel=CHANNEL, seconds=seconds)
    assert number is not None
    return number


async def add(connection: Any, key: str, isolation: Any = "read_committed") -> None:
    async with connection.transaction(isolation=isolation):
        await OUTBOX.add(connection, "1", type="t", key=key)


# -- whom the trigger notifies ---------------------------------------------------------------------------------------


async def test_only_naps_on_a_new_rows_slot_are_notified(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, (low, high) = await connect(), await lanes(log)
    await add(writer, LOW)
    assert await listeners.received() == [], "no lane naps"
    one = await nap(log, low)
    await add(writer, HIGH)
    assert await listeners.received() == [], "no lane naps there"
    await add(writer, LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]
    await nap(log, high)
    async with writer.transaction():
        await OUTBOX.add_many(writer, numbered(*range(50)))
        await OUTBOX.add_many(writer, numbered(*range(50, 99)))
    assert sorted(await listeners.received()) == [(CHANNEL, "0-511"), (CHANNEL, "512-1023")], "each once a transaction"
    await log.store.naps.end({one})
    await add(writer, LOW)
    assert await listeners.received() == []


HIJACK = """
create schema evil;
create function evil.hijacked() returns boolean language plpgsql as
$$ begin raise exception 'the trigger trusts a search_path'; end $$;
create function evil.now() returns timestamptz language sql as $$ select null::timestamptz where evil.hijacked() $$;
create function evil.clock_timestamp() returns timestamptz language sql as $$ select evil.now() $$;
create function evil.current_setting(text) returns text language sql as $$ select evil.now()::text $$;
create function evil.current_setting(text, boolean) returns text language sql as $$ select evil.now()::text $$;
create function evil.pg_notification_queue_usage() returns float8 language sql as $$ select 0 where evil.hijacked() $$;
create function evil.pg_notify(text, text) returns void language sql as $$ select evil.now() $$;
create function evil.pg_stat_clear_snapshot() returns void language sql as $$ select evil.now() $$;
create function evil.pg_stat_get_activity(integer) returns setof integer language sql as
$$ select 1 where evil.hijacked() $$;
"""


async def test_a_foreign_search_path_changes_nothing(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    """The trigger may do what its caller may not, so nothing that the caller can bring along may run in it."""
    writer, (low, _) = await connect(), await lanes(log)
    await nap(log, low)
    await writer.execute(HIJACK)
    for operator in ("=", "<>", ">", ">=", "<="):
        for kind in ("text", "timestamptz", "smallint", "bigint", "float8", "numeric"):
            compare = f"evil.compare(a {kind}, b {kind})"
            await writer.execute(
                f"create or replace function {compare} returns boolean language sql as $$ select evil.hijacked() $$;"
                f"create operator evil.{operator} (leftarg = {kind}, rightarg = {kind}, function = evil.compare)"
            )
    await writer.execute("set search_path = evil, pg_catalog")
    with pytest.raises(asyncpg.RaiseError):
        await writer.execute("select 'a'::text = 'b'::text")
    insert = """
        insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers)
        values ($1, 't', 3, 't', '1', 'text/plain', '{}')"""
    await writer.execute(insert, uuid4())
    assert await listeners.received() == [(CHANNEL, "0-511")]
    async with writer.transaction(isolation="serializable"):
        await writer.execute(insert, uuid4())
    assert await listeners.received() == [("postroad", "")]
    await log.execute("update postroad.naps set listener = 0")
    await writer.execute(insert, uuid4())
    await writer.execute("reset search_path")
    assert await writer.fetch("select from postroad.naps") == [], "no session listens for it any more"


async def test_a_nap_ends_by_itself(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    await nap(log, low, seconds=-1)
    await add(writer, LOW)
    assert await listeners.received() == []


async def test_a_nap_that_ends_during_a_transaction_has_ended(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    async with writer.transaction():
        await writer.execute("select 1")  # now() is before the end of the nap
        await nap(log, low, seconds=0)
        await OUTBOX.add(writer, "1", type="t", key=LOW)
    assert await listeners.received() == []


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_that_may_not_see_a_nap_notifies_in_any_case(
    log: PostgreSQLLog, connect: Any, listeners: Listeners, isolation: str
) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    async with writer.transaction(isolation=isolation):
        await writer.execute("select 1")
        await nap(log, low)
        await OUTBOX.add(writer, "1", type="t", key=LOW)
    assert await listeners.received() == [("postroad", "")]


async def test_a_nap_is_seen_that_began_after_the_transaction(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    async with writer.transaction():
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        await nap(log, low)
        await OUTBOX.add(writer, "1", type="t", key=LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
async def test_nothing_added_is_nothing_notified(
    log: PostgreSQLLog, connect: Any, listeners: Listeners, isolation: str
) -> None:
    writer = await connect()
    again = Message("1", type="t", key=LOW, id=uuid4())
    await log.add(again)
    for lane in await lanes(log):
        await nap(log, lane)
    async with writer.transaction(isolation=isolation):
        await OUTBOX.add_many(writer, [again])
    transaction = writer.transaction(isolation=isolation)
    await transaction.start()
    await OUTBOX.add(writer, "1", type="t", key=LOW)
    await transaction.rollback()
    assert await listeners.received() == []


async def test_copy_and_sql_wake_too(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    await nap(log, low)
    columns = ["id", "topic", "slot", "type", "payload", "content_type", "headers"]
    rows = [(uuid4(), "t", slot, "t", b"1", "text/plain", "{}") for slot in (3, 700)]
    await writer.copy_records_to_table("outbox", schema_name="postroad", columns=columns, records=rows)
    assert await listeners.received() == [(CHANNEL, "0-511")]
    await writer.execute("select postroad.add('/sql', 't', '4', key => $1)", LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]


async def test_an_application_needs_no_right_for_it(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    await log.execute("do $$ begin create role orders_app login; exception when duplicate_object then null; end $$")
    await log.execute("revoke all on all sequences in schema postroad from public")
    await (await connect()).execute(grants_script("orders_app"))
    writer, (low, _) = await connect(user="orders_app"), await lanes(log)
    await nap(log, low)
    await writer.execute("create temp table naps (until text); set search_path = pg_temp, public")  # a trap
    await add(writer, LOW)
    await add(writer, LOW, isolation="serializable")
    assert await listeners.received() == [(CHANNEL, "0-511"), ("postroad", "")]
    for forbidden in ("select * from postroad.naps", "delete from postroad.naps"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.execute(forbidden)


async def test_two_phase_commit_fails_only_as_postgresql_says_and_works_in_silence(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    await nap(log, low)
    await writer.execute("begin")
    await OUTBOX.add(writer, "1", type="t", key=LOW)
    with pytest.raises(asyncpg.FeatureNotSupportedError, match="LISTEN, UNLISTEN, or NOTIFY"):
        await writer.execute("prepare transaction 'naps'")
    await writer.execute("set postroad.notify = off")
    for isolation in ("read committed", "serializable"):
        await writer.execute(f"begin isolation level {isolation}")
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        await writer.execute("prepare transaction 'naps'")
        await writer.execute("commit prepared 'naps'")
    assert await listeners.received() == []


async def test_what_was_added_in_silence_arrives_with_the_next_tick(log: PostgreSQLLog, connect: Any) -> None:
    writer, broker = await connect(), Arrivals()
    async with running(relay(log, broker, tick="50ms")) as it:
        await until_asleep(it)
        await writer.execute("set postroad.notify = off; begin")
        await OUTBOX.add(writer, "1", type="t")
        await writer.execute("prepare transaction 'silent'")
        await writer.execute("commit prepared 'silent'")
        await broker.until(1)


async def test_a_half_full_queue_of_notifications_gets_no_more(postgresql18: PostgreSQL) -> None:
    """A full one would make the application's commit fail. From 17 on its size can be set, and so can be tested."""
    postgresql18.start()
    postgresql18.execute(postgresql18.url(), "alter system set max_notify_queue_pages = 64")
    try:
        postgresql18.restart()
        log = await PostgreSQLLog.fresh(postgresql18)
        await log.store.open()
        sleeper, writer = await log.connect(), await log.connect()
        await sleeper.execute("listen postroad")
        await sleeper.execute("begin")  # one who listens and does not read: the queue can't go on
        while await writer.fetchval("select pg_notification_queue_usage()") <= 0.5:
            await writer.execute("select pg_notify('x', repeat('x', 7000) || i) from generate_series(1, 5) i")
        before = await writer.fetchval("select pg_notification_queue_usage()")
        for lane in await lanes(log):
            await nap(log, lane)
        for isolation in ("read_committed", "serializable"):
            for _ in range(200):
                await add(writer, LOW, isolation=isolation)
        assert await writer.fetchval("select pg_notification_queue_usage()") == before
        found = await log.store.naps.tick("s", uuid4(), naps=(), seconds=1, channel="postroad", token="w" * 5000)
        assert await writer.fetchval("select pg_notification_queue_usage()") == before, found
        await log.store.close()
        sleeper.terminate()
        writer.terminate()
    finally:
        postgresql18.start()
        postgresql18.execute(postgresql18.url(), "alter system reset max_notify_queue_pages")
        postgresql18.restart()


async def test_a_relay_that_died_is_not_notified_though_its_nap_goes_on(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    """Also when the transaction has asked before, and remembers who was there."""
    writer, (low, high) = await connect(), await lanes(log)
    no_listener = NoListener()
    listening = await log.store.naps.listen(CHANNEL, no_listener)
    await nap(log, low)
    await add(writer, LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]
    listening.close()

    async def gone() -> bool:
        return not await log.execute("select from pg_stat_activity where application_name = 'postroad listen'")

    await until(gone)
    await add(writer, LOW)
    assert await listeners.received() == [], "its session is gone"
    assert await log.execute("select from postroad.naps") == [], "and so is its nap"
    log.store.naps._listening = await writer.fetchval("select pg_backend_pid()")  # type: ignore[attr-defined]
    await nap(log, low)
    async with writer.transaction():
        await OUTBOX.add(writer, "1", type="t", key=LOW)  # looks who is there
        again = await log.store.naps.listen(CHANNEL, no_listener)
        await nap(log, high)
        await OUTBOX.add(writer, "1", type="t", key=HIGH)
    assert await listeners.received() == [(CHANNEL, "0-511"), (CHANNEL, "512-1023")], "a new relay is there"
    again.close()


async def test_no_transaction_waits_for_a_writer_that_removes_a_dead_nap(log: PostgreSQLLog, connect: Any) -> None:
    slow, quick, (low, _) = await connect(), await connect(), await lanes(log)
    log.store.naps._listening = 2**31 - 1  # type: ignore[attr-defined]  # no such process
    dead = await nap(log, low)
    await slow.execute("begin")
    await OUTBOX.add(slow, "1", type="t", key=LOW)
    async with asyncio.timeout(SECONDS):
        await add(quick, LOW)
        found = await log.store.naps.tick("s", uuid4(), naps={dead}, seconds=60, channel=CHANNEL, token="w")
        await log.store.naps.end({dead})
    assert list(found.renewed_naps) == []
    await slow.execute("rollback")
    assert len(await log.execute("select from postroad.naps")) == 1
    assert await marks(log) == 0, "it wakes no lane, and costs no writer anything"


# -- marks -----------------------------------------------------------------------------------------------------------


async def marks(log: PostgreSQLLog) -> int:
    (row,) = await log.execute("select last_value from postroad.napping")
    return int(row["last_value"])


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7, 64, 100, 1024])
def test_every_slot_has_its_mark(lanes: int) -> None:
    for lane in range(lanes):
        slots = range(lane * SLOTS // lanes, (lane + 1) * SLOTS // lanes)
        found = marks_of(slots[0], slots[-1])
        assert -(2**63) <= found < 2**63
        assert {63 - bit for bit in range(64) if found >> bit & 1} == {slot // 16 for slot in slots}


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 15), (16, 31), (500, 530), (1007, 1007), (1008, 1023)])
async def test_the_trigger_finds_the_marks(
    log: PostgreSQLLog, connect: Any, listeners: Listeners, first: int, last: int
) -> None:
    writer, (lease, _) = await connect(), await lanes(log)
    await nap(log, msgspec.structs.replace(lease, first_slot=first, last_slot=last))
    for slot in range(0, SLOTS, 7):
        await writer.execute(
            "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
            "values ($1, 't', $2, 't', '1', 'text/plain', '{}')",
            uuid4(),
            slot,
        )
        near = first // 16 <= slot // 16 <= last // 16
        assert await listeners.received() == ([(CHANNEL, f"{first}-{last}")] if near else []), slot


async def lose(log: PostgreSQLLog, *naps: int) -> None:
    """They are over, and their marks are not wiped."""
    await log.execute("delete from postroad.naps where id = any($1::bigint[])", list(naps))


async def test_marks_without_a_nap_are_wiped_and_others_stay(log: PostgreSQLLog, connect: Any) -> None:
    writer, (low, high) = await connect(), await lanes(log)
    one, two = await nap(log, low), await nap(log, high)
    assert await marks(log) == -1
    await add(writer, LOW)
    assert await marks(log) == -1, "a nap is there"
    await lose(log, one)
    await add(writer, HIGH)
    assert await marks(log) == -1, "no writer has looked"
    await add(writer, LOW)
    assert await marks(log) == marks_of(high.first_slot, high.last_slot)
    await lose(log, two)
    await add(writer, HIGH, isolation="serializable")
    assert await marks(log) != 0, "its snapshot may not show who naps"
    await add(writer, HIGH)
    assert await marks(log) == 0


async def test_who_gets_up_wipes_its_marks(log: PostgreSQLLog) -> None:
    low, high = await lanes(log)
    one, two = await nap(log, low), await nap(log, high)
    await log.store.naps.end({one})
    assert await marks(log) == marks_of(high.first_slot, high.last_slot)
    await log.execute("update postroad.naps set listener = 0")
    await log.store.naps.end({one})
    assert await marks(log) == 0, "no session listens for the other one"
    assert await nap(log, low) > two


async def test_nothing_is_wiped_by_an_old_snapshot(log: PostgreSQLLog, connect: Any) -> None:
    other, (low, _) = await connect(), await lanes(log)
    async with other.transaction(isolation="repeatable_read"):
        await other.execute("select 1")
        await nap(log, low)
        await other.execute("select postroad.wipe_marks()")
    assert await marks(log) == marks_of(low.first_slot, low.last_slot)


async def test_nothing_is_wiped_while_a_nap_begins(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    """Its marks are there before its nap can be seen."""
    writer, relay, (low, _) = await connect(), await connect(), await lanes(log)
    await relay.execute("begin")
    values = (0, 511, marks_of(0, 511), CHANNEL, 60.0, None, "default", 0)
    assert await relay.fetchval(log.store._sql["begin_nap"], *values)  # type: ignore[attr-defined]
    await add(writer, LOW)
    assert await marks(log) == marks_of(0, 511)
    assert await log.store.naps.begin(low, channel=CHANNEL, seconds=60) is None, "one after the other"
    await relay.execute("commit")
    assert await listeners.received() == [], "it was at it when the nap began, and is waited for"
    await add(writer, LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]


async def test_a_relay_that_is_killed_while_it_lies_down_leaves_marks_that_are_wiped(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, killed, (low, _) = await connect(), await connect(), await lanes(log)
    process = await killed.fetchval("select pg_backend_pid()")
    await killed.execute("begin")
    values = (0, 511, marks_of(0, 511), CHANNEL, 60.0, None, "default", 0)
    assert await killed.fetchval(log.store._sql["begin_nap"], *values)  # type: ignore[attr-defined]
    await writer.execute("select pg_terminate_backend($1, 20000)", process)
    assert (await marks(log), await log.execute("select from postroad.naps")) == (marks_of(0, 511), [])
    await add(writer, LOW)
    assert (await marks(log), await listeners.received()) == (0, [])
    await nap(log, low)
    await add(writer, LOW)
    assert await listeners.received() == [(CHANNEL, "0-511")]


async def test_after_a_long_transaction_has_wiped_marks_lanes_are_still_woken(log: PostgreSQLLog, connect: Any) -> None:
    """No lane polls here: the lane is notified by others, and waits only for the long one itself."""
    long, broker = await connect(), Arrivals()
    (lane,) = await take_lanes(log.store, "other", uuid4(), lanes=1, start="oldest")
    await lose(log, await nap(log, lane))
    await long.execute("begin")
    await OUTBOX.add(long, "1", type="t")
    assert await marks(log) == 0
    async with running(relay(log, broker, lanes=1, poll_interval="1h", max_idle_backoff="1h")) as it:
        await until(lambda: it._lanes and it._wakeup._waits[0]._unaware)
        await log.add(Message("2", type="t"))
        await broker.until(2)
        await long.execute("rollback")


async def test_one_look_in_a_transaction_is_enough(log: PostgreSQLLog, connect: Any, listeners: Listeners) -> None:
    """A lane that naps after it waits for the transaction."""
    writer, (low, _) = await connect(), await lanes(log)
    logged = "select current_setting('postroad.notified', true)"
    one = await nap(log, low)
    async with writer.transaction():
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        await lose(log, one)
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        assert await marks(log) != 0
    assert await listeners.received() == [(CHANNEL, "0-511")]
    async with writer.transaction():
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        assert await marks(log) == 0, "that was another one"
        assert int(await writer.fetchval(logged)) == marks_of(slot_of(LOW, uuid4()), slot_of(LOW, uuid4()))
        await nap(log, low)
        await OUTBOX.add(writer, "1", type="t", key=LOW)
    assert await listeners.received() == []
    assert not await writer.fetchval(logged)


async def test_a_nap_whose_marks_are_gone_is_not_renewed(log: PostgreSQLLog) -> None:
    owner = uuid4()
    low, high = await take_lanes(log.store, "s", owner, lanes=2, start="oldest")
    one, two = await nap(log, low), await nap(log, high)
    await log.execute(f"select setval('postroad.napping', {marks_of(0, 511)})")  # no relay does that
    found = await log.store.naps.tick("s", owner, naps={one, two}, seconds=60, channel=CHANNEL, token="w")
    assert list(found.renewed_naps) == [one]


async def test_the_function_knows_no_other_table(log: PostgreSQLLog, connect: Any) -> None:
    """A role that may use it as a trigger could bring types that run what they like, as its owner."""
    other, (low, _) = await connect(), await lanes(log)
    await nap(log, low)
    await other.execute("""
        create type sly as (a int);
        create function sly_to_int(sly) returns int language plpgsql as $$ begin raise exception 'ran'; end $$;
        create cast (sly as int) with function sly_to_int(sly) as implicit;
        create table sly_table (slot sly, due_at sly);
        create trigger sly_one after insert on sly_table for each row execute function postroad.wake_naps();
        create trigger sly_two after insert on sly_table referencing new table as added
            for each statement execute function postroad.wake_scheduled();
        insert into sly_table values (row(1), row(1));
    """)


async def test_what_was_rolled_back_to_a_savepoint_was_not_notified(
    log: PostgreSQLLog, connect: Any, listeners: Listeners
) -> None:
    writer, (low, _) = await connect(), await lanes(log)
    await nap(log, low)
    for isolation in ("read committed", "serializable"):
        await writer.execute(f"begin isolation level {isolation}; savepoint one")
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        await writer.execute("rollback to one")
        await OUTBOX.add(writer, "1", type="t", key=LOW)
        await writer.execute("commit")
    assert await listeners.received() == [(CHANNEL, "0-511"), ("postroad", "")]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_without_a_nap_nothing_is_notified(
    log: PostgreSQLLog, connect: Any, listeners: Listeners, isolation: str
) -> None:
    await add(await connect(), LOW, isolation=isolation)
    assert await listeners.received() == []


class NoListener:
    def on_notify(self, first_slot: int, last_slot: int) -> None: ...
    def on_echo(self, token: str) -> None: ...
    def on_listen_lost(self, reason: str) -> None: ...


# -- who may have missed a nap ---------------------------------------------------------------------------------------


async def test_whoever_writes_is_known_until_its_end(log: PostgreSQLLog, connect: Any) -> None:
    one, two = await connect(), await connect()
    assert not await log.store.naps.writers()
    await one.execute("begin")
    await OUTBOX.add(one, "1", type="t")
    (writer,) = await log.store.naps.writers()
    assert not writer.prepared
    await two.execute("begin")
    await two.execute("select count(*) from postroad.outbox")  # who only reads is none
    assert set(await log.store.naps.writers()) == {writer}
    await OUTBOX.add(two, "2", type="t")
    assert len(set(await log.store.naps.writers())) == 2
    await one.execute("rollback")
    await two.execute("commit")
    assert not await log.store.naps.writers()


async def test_a_prepared_transaction_is_a_writer_by_another_name(log: PostgreSQLLog, connect: Any) -> None:
    one = await connect()
    await one.execute("begin")
    await OUTBOX.add(one, "1", type="t")
    (writer,) = await log.store.naps.writers()
    await one.execute("prepare transaction 'p'")
    (prepared,) = await log.store.naps.writers()
    assert prepared == Writer(prepared.transaction, prepared=True) != writer
    await one.execute("commit prepared 'p'")
    assert not await log.store.naps.writers()


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_writer_that_added_before_the_nap_is_waited_for(
    log: PostgreSQLLog, connect: Any, prepared: bool
) -> None:
    """It adds before the lane lies down and commits without a word; the tick is an hour away."""
    writer, broker = await connect(), Arrivals()
    it = relay(log, broker, lanes=1, max_idle_backoff="10ms")
    await writer.execute("begin")
    await OUTBOX.add(writer, "1", type="t")
    async with running(it):
        await until(lambda: it._lanes and it._wakeup._waits[0]._unaware)
        if prepared:
            await writer.execute("prepare transaction 'p'")
            await writer.execute("select pg_sleep(0.05)")  # some looks at the writers, by whatever name
        await writer.execute("commit prepared 'p'" if prepared else "commit")
        await broker.until(1)
        await until_asleep(it)


# -- ticks -----------------------------------------------------------------------------------------------------------


async def test_a_nap_that_is_nearly_over_is_not_renewed(log: PostgreSQLLog) -> None:
    """A writer may have found it over before the renewal was to be seen."""
    owner = uuid4()
    low, high = await take_lanes(log.store, "s", owner, lanes=2, start="oldest")
    good, late = await nap(log, low, seconds=60), await nap(log, high, seconds=10)
    found = await log.store.naps.tick("s", owner, naps={good, late}, seconds=60, channel=CHANNEL, token="w")
    assert list(found.renewed_naps) == [good]


async def test_naps_of_relays_that_died_are_cleared_away(log: PostgreSQLLog) -> None:
    low, high = await lanes(log)
    await nap(log, low, seconds=-61)
    mine = await nap(log, high)
    await log.store.naps.tick("s", uuid4(), naps={mine}, seconds=60, channel=CHANNEL, token="w")
    assert [row["id"] for row in await log.execute("select id from postroad.naps")] == [mine]


async def test_a_tick_sees_late_rows_behind_the_position(log: PostgreSQLLog, connect: Any) -> None:
    writer, owner = await connect(), uuid4()
    await writer.execute("begin")
    await OUTBOX.add(writer, "1", type="t", key=LOW)
    await log.add(Message("2", type="t", key=HIGH))
    settled = []
    for lane in await take_lanes(log.store, "s", owner, lanes=2, start="oldest"):
        page = await log.store.read(lane, lane.cursor, PLENTY)
        settled.append(await log.store.settle(lane, page.after))

    async def with_work() -> list[int]:
        found = await log.store.naps.tick("s", owner, naps=(), seconds=60, channel=CHANNEL, token="w")
        return list(found.has_work)

    assert await with_work() == []
    await writer.execute("commit")
    assert await with_work() == [0]


# -- listening -------------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_lost_is_made_again(log: PostgreSQLLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broker = Arrivals()
    async with running(relay(log, broker, max_idle_backoff="10ms")) as it:
        await until_asleep(it)
        await log.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'postroad listen'"
        )
        await until_listen_events(caplog, "listen_lost", "listen_restored")
        await until_asleep(it)
        await log.add(*numbered(1))
        await broker.until(1)


async def test_listening_at_the_wrong_place_is_reported(
    log: PostgreSQLLog, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    """The LISTEN is taken, and nothing arrives: as through a pooler, or on another database."""
    store, broker = PostgreSQLStore(log.url, direct=postgresql.url()), Arrivals()
    settings = relay(log, broker, tick="100ms", max_idle_backoff="10ms")._settings
    async with running(Relay(store, broker, settings=settings)) as it:
        await until_listen_events(caplog, "listen_lost")
        await log.add(*numbered(1))
        await broker.until(1)
        assert not any(wait.nap or wait.asleep for wait in it._wakeup._waits)
    assert "LISTEN unavailable: a notification that this relay sent to itself did not arrive" in caplog.text


class Counting(PostgreSQLStore):
    """Knows every statement that it sends, on whichever of its connections, by its name."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[str] = []
        self._names = {text: name for name, text in self._sql.items()}

    def _log(self, query: Any) -> None:
        if not any(own in query.query for own in ("typeinfo_tree", "'jit'")):  # asyncpg's, once for each connection
            self.sent.append(self._names.get(query.query, query.query))

    async def _prepare(self, connection: Any) -> None:
        await super()._prepare(connection)
        connection.add_query_logger(self._log)

    @asynccontextmanager
    async def _connect_to_stay(self, name: str) -> AsyncIterator[Any]:
        async with super()._connect_to_stay(name) as connection:
            connection.add_query_logger(self._log)
            yield connection


CHORES = {"move_scheduled", "scheduled_due_in", "try_to_move"}
"""What another task of the relay asks every five seconds."""


async def test_an_idle_relay_sends_one_statement_per_tick(log: PostgreSQLLog) -> None:
    """Heartbeat, naps, lanes and the token that must come back, before the next tick: all in one."""
    store = Counting(log.url)
    settings = relay(log, Arrivals(), tick="500ms", cleanup_interval="1h")._settings
    async with running(Relay(store, Arrivals(), settings=settings)) as it:
        await until_asleep(it)
        ticks, tick = 0, store.naps.tick

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal ticks
            ticks += 1
            assert options["heartbeat"] is not None, "the tick sends the heartbeat along"
            return await tick(*arguments, **options)

        store.naps.tick = counted  # type: ignore[method-assign]
        await until(lambda: ticks == 1)
        store.sent.clear()
        await until(lambda: ticks > 4)
        sent = [name for name in store.sent if name not in CHORES]
        assert set(sent) == {"heartbeat"}
        assert ticks - 2 <= len(sent) <= ticks


async def test_others_may_use_the_channel(log: PostgreSQLLog, caplog: pytest.LogCaptureFixture) -> None:
    broker = Arrivals()
    async with running(relay(log, broker)) as it:
        await until_asleep(it)
        for payload in ("hello", "9-", "echo of something", "1-99999", ""):
            await log.execute("select pg_notify('postroad', $1)", payload)
        await log.add(*numbered(1))
        await broker.until(1)
    assert listen_events(caplog) == []


async def test_a_channel_of_ones_own(log: PostgreSQLLog) -> None:
    broker = Arrivals()
    async with running(relay(log, broker, channel="my_channel")) as it:
        for number, isolation in enumerate(("read_committed", "serializable")):
            await until_asleep(it)
            writer = await log.connect()
            async with writer.transaction(isolation=isolation):
                await OUTBOX.add_many(writer, numbered(number))
            await broker.until(number)
            await writer.close()


# -- migrating under writers -----------------------------------------------------------------------------------------


@pytest.fixture
def newer(log: PostgreSQLLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the log was made: a newer version of the schema, whose migration needs the log for itself for a moment."""
    folder = tmp_path / "newer"
    shutil.copytree(str(POSTGRESQL.folder), folder)
    (folder / "0002_tenant.sql").write_text(
        "alter table {schema}.outbox add column tenant text; insert into {schema}.migrations (version) values (2);"
    )
    monkeypatch.setattr(POSTGRESQL, "folder", folder)


@pytest.mark.usefixtures("newer")
async def test_migrating_makes_way_for_writers(log: PostgreSQLLog, connect: Any, monkeypatch: Any) -> None:
    """While one transaction writes on and on, the migration tries again, and others add in between."""
    monkeypatch.setattr(store_module, "MIGRATION_LOCK_MS", 20)
    monkeypatch.setattr(store_module, "MIGRATION_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(store_module, "MIGRATION_TRIES", 100_000)  # it does not give up while the others add
    slow, others = await connect(), await connect()
    await slow.execute("begin")
    await OUTBOX.add(slow, "1", type="t")
    migrating = asyncio.create_task(migrate_postgresql(log.url))
    for number in range(20):
        async with asyncio.timeout(SECONDS), others.transaction():
            await OUTBOX.add_many(others, numbered(number))
        await asyncio.sleep(0.01)
    assert not migrating.done()
    await slow.execute("commit")
    assert await asyncio.wait_for(migrating, SECONDS) == [2]
    assert await migrate_postgresql(log.url) == []


@pytest.mark.usefixtures("newer")
async def test_a_migration_that_gets_no_chance_says_why_and_changes_nothing(
    log: PostgreSQLLog, connect: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(store_module, "MIGRATION_LOCK_MS", 5)
    monkeypatch.setattr(store_module, "MIGRATION_PAUSE_SECONDS", 0)
    monkeypatch.setattr(store_module, "MIGRATION_TRIES", 3)
    slow = await connect()
    await slow.execute("begin")
    await OUTBOX.add(slow, "1", type="t")
    with pytest.raises(
        StoreUnavailable,
        match=r"tables of schema postroad were in use all the time, by server process \d+ .*migrate again",
    ):
        await migrate_postgresql(log.url)
    (version,) = await log.execute("select max(version) as version from postroad.migrations")
    assert version["version"] == 1
