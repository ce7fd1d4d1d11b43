"""What only PostgreSQL's log has to get right: transactions that commit late, snapshots, standbys, restores, roles.

Most of these have broken an outbox.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postroad import ClientTooOld, InvalidSetting, LogNotReadable, Message, NotMigrated, StoreUnavailable
from postroad.errors import LaneChanged
from postroad.lifecycle import State
from postroad.listeners import Listeners
from postroad.message import slot_of
from postroad.relay.blockers import reporting_blockers
from postroad.stores.base import Deferred, Lease
from postroad.stores.cursor import PageLimit
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.dialects.postgresql import LAST_XID
from postroad.stores.postgresql import PostgreSQLStore, _page_values, migrate_postgresql
from tests.lanes import HERE, take_lanes
from tests.logs import OUTBOX, PLENTY, PostgreSQLLog, log_fixture, numbered, read_all
from tests.services.postgresql import PostgreSQL
from tests.unit.test_message import VECTORS

log = log_fixture("postgresql", opened=True)


async def take(log: PostgreSQLLog, lanes: int = 1, sink: str = "s") -> Lease:
    return (await take_lanes(log.store, sink, uuid4(), lanes=lanes, start="oldest"))[0]


async def step(log: PostgreSQLLog, lane: Lease, limit: PageLimit = PLENTY) -> tuple[list[int], Lease]:
    page = await log.store.read(lane, lane.cursor, limit)
    return [int(message.payload) for message in page.messages], await log.store.settle(lane, page.after)


# -- late rows -------------------------------------------------------------------------------------------------------


async def test_a_transaction_that_commits_late_is_not_lost(log: PostgreSQLLog, connect: Any) -> None:
    """Its xid was in progress in the snapshot, below xmax: it is in xip."""
    slow, fast = await connect(), await connect()
    lane = await take(log)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1))
    async with fast.transaction():
        await OUTBOX.add_many(fast, numbered(2))
    seen, lane = await step(log, lane)
    assert seen == [2], "no message waits for the slow one"
    await transaction.commit()
    seen, lane = await step(log, lane)
    assert seen == [1]
    assert await read_all(log.store, lane) == []


async def test_a_transaction_above_xmax_that_commits_late_is_not_lost(log: PostgreSQLLog, connect: Any) -> None:
    """xmax is the last finished xid + 1, so the youngest ones in progress are at or above it and not in xip."""
    one, two = await connect(), await connect()
    lane = await take(log)
    first, second = one.transaction(), two.transaction()
    await first.start()
    await OUTBOX.add_many(one, numbered(1))  # the lower xid, and the lower position
    await second.start()
    await OUTBOX.add_many(two, numbered(2))  # the higher xid, in progress, at or above xmax
    async with (third := await connect()).transaction():
        # A position behind both, without an xid that finished behind them: the read below sees a log that ends there.
        await third.execute("select nextval(pg_get_serial_sequence('postroad.outbox', 'position'))")
    await first.commit()
    seen, lane = await step(log, lane)
    assert seen == [1]
    await second.commit()
    seen, lane = await step(log, lane)
    assert seen == [2]


async def test_a_late_row_above_xmax_behind_the_cursor(log: PostgreSQLLog, connect: Any) -> None:
    old, young = await connect(), await connect()
    lane = await take(log)
    young_transaction, old_transaction = young.transaction(), old.transaction()
    await old_transaction.start()
    await old.fetchval("select pg_current_xact_id()")  # the old one has the lower xid …
    await young_transaction.start()
    await OUTBOX.add_many(young, numbered(1))  # … and the young one the lower position
    await OUTBOX.add_many(old, numbered(2))
    await old_transaction.commit()
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert [message.payload for message in page.messages] == [b"2"]
    xid = await young.fetchval("select pg_current_xact_id()::text::bigint")
    assert page.after.snapshot is not None
    _, xmax, xip = page.after.snapshot.split(":")
    assert xid >= int(xmax), "the case this test is for"
    assert str(xid) not in xip.split(",")
    lane = await log.store.settle(lane, page.after)
    await young_transaction.commit()
    assert (await step(log, lane))[0] == [1]


async def test_late_rows_alone_do_not_pull_the_position_back(log: PostgreSQLLog, connect: Any) -> None:
    slow = await connect()
    lane = await take(log)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1))
    await log.add(*numbered(2, 3, 4, 5, 6))
    _, lane = await step(log, lane)
    before = lane.cursor.position
    await transaction.commit()
    seen, lane = await step(log, lane)
    assert seen == [1]
    assert lane.cursor.position >= before
    assert await read_all(log.store, lane) == []


INSERT = "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
ROW = "gen_random_uuid(), 't', 1, 't', '', 'c', '{}'"
ADDING: dict[str, Any] = {
    "add": lambda connection: OUTBOX.add(connection, "1", type="t"),
    "add_many": lambda connection: OUTBOX.add_many(connection, numbered(1, 2)),
    "add in SQL": lambda connection: connection.execute("select postroad.add('/s', 't', '1')"),
    "values": lambda connection: connection.execute(f"{INSERT} values ({ROW}), ({ROW})"),
    "select": lambda connection: connection.execute(
        f"{INSERT} select {ROW} from generate_series(1, 3) i order by i desc"
    ),
    "copy": lambda connection: connection.copy_records_to_table(
        "outbox",
        schema_name="postroad",
        columns=["id", "topic", "slot", "type", "payload", "content_type", "headers"],
        records=[(uuid4(), "t", 1, "t", b"", "c", "{}")],
    ),
}


@pytest.mark.parametrize("how", ADDING)
async def test_a_transaction_has_its_id_before_its_rows_have_positions(
    log: PostgreSQLLog, connect: Any, how: str
) -> None:
    """The horizon relies on it. The writer has to wait for its position here, and has its id by then."""
    other, writer, observer = await connect(), await connect(), await connect()
    waiting = (
        "select a.backend_xid is not null from pg_locks l join pg_stat_activity a using (pid) "
        "where not l.granted and l.relation = 'postroad.outbox_position_seq'::regclass"
    )

    async def add() -> None:
        async with writer.transaction():
            await ADDING[how](writer)

    async with asyncio.TaskGroup() as tasks, other.transaction():
        await other.execute("alter sequence postroad.outbox_position_seq cache 1")  # which locks it
        tasks.create_task(add())
        await answer(observer, waiting)  # it waits now; what the server says of its id may be from before that
        assert await answer(observer, waiting)


async def answer(connection: Any, question: str) -> Any:
    """Ask until there is an answer."""
    async with asyncio.timeout(60):
        while True:
            if (found := await connection.fetchval(question)) is not None:
                return found
            await asyncio.sleep(0.01)


async def test_positions_that_sessions_cache_are_refused(log: PostgreSQLLog) -> None:
    lane = await take(log)
    await log.execute("alter sequence postroad.outbox_position_seq cache 20")
    with pytest.raises(LogNotReadable, match=r"has cache 20, .* it must be 1: alter table postroad.outbox alter"):
        await log.store.load(lane)


async def test_a_horizon_that_a_row_contradicts_is_not_used(log: PostgreSQLLog) -> None:
    """Positions were restarted by hand while the relay was away, and have come further than its cursor since."""
    await log.add(*numbered(1, 2, 3))
    _, lane = await step(log, await take(log))
    await log.execute("truncate postroad.outbox restart identity")
    await log.add(*numbered(11, 12))
    await log.add(*numbered(13, 14, 15))
    lane = (await log.store.load(lane)).lease
    assert await read_all(log.store, lane) == [11, 12, 13, 14, 15]


async def test_a_sink_that_begins_now_misses_no_row_in_progress(log: PostgreSQLLog, connect: Any) -> None:
    """Messages are added between the moment when the creating transaction has its id and the making of its lanes."""
    other, young = await connect(), await connect()
    await other.execute(
        "create function stop_here() returns trigger language plpgsql as "
        "$$ begin perform pg_advisory_xact_lock(4711); return null; end $$;"
        "create trigger stop_here after insert on postroad.sinks execute function stop_here();"
        "select pg_advisory_lock(4711)"
    )
    creating = asyncio.create_task(log.store.leases.create("s", HERE, lanes=1, start="now"))
    await answer(other, "select pid from pg_locks where locktype = 'advisory' and not granted")
    transaction = young.transaction()
    await transaction.start()
    await OUTBOX.add_many(young, numbered(1))
    await log.add(*numbered(2))
    await other.execute("select pg_advisory_unlock(4711)")
    await creating
    lane = await take(log)
    seen, lane = await step(log, lane)
    await transaction.commit()
    assert seen + await read_all(log.store, lane) == [2, 1]
    await other.execute("drop function stop_here cascade")


async def test_a_restore_forgets_the_horizon(log: PostgreSQLLog, connect: Any) -> None:
    """What a lane owes gets the restore's own transaction id, which is higher than any horizon before."""
    slow = await connect()
    lane = await take(log)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1))
    await log.add(*numbered(2))
    seen, lane = await step(log, lane)
    assert seen == [2]
    await transaction.commit()
    await log.execute("update postroad.installation set system_identifier = 1")  # as if from another cluster
    store = log.another_store()
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    assert lane.cursor.horizon is None
    assert await read_all(store, lane) == [1]
    await store.close()


@pytest.mark.parametrize("limit", [PageLimit(3, 1 << 20), PageLimit(1000, 5)])
async def test_more_late_rows_than_fit_on_a_page(log: PostgreSQLLog, connect: Any, limit: PageLimit) -> None:
    slow, other = await connect(), await connect()
    lane = await take(log)
    transaction, more = slow.transaction(), other.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(*range(10, 20)))
    await more.start()
    await OUTBOX.add_many(other, numbered(*range(20, 25)))
    await log.add(*numbered(30))
    seen, lane = await step(log, lane)
    assert seen == [30]
    await log.add(*numbered(31))
    await transaction.commit()
    first, lane = await step(log, lane, limit)
    assert lane.cursor.catching_up
    await more.commit()  # later than the look that the sub-cursor belongs to: it is late for the next one
    assert first + await read_all(log.store, lane, limit) == [*range(10, 20), *range(20, 25), 31]


async def test_a_page_left_half_way_among_late_rows(log: PostgreSQLLog, connect: Any) -> None:
    slow = await connect()
    lane = await take(log)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1, 2, 3))
    await log.add(*numbered(4))
    _, lane = await step(log, lane)
    await transaction.commit()
    await log.add(*numbered(5))
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert [int(message.payload) for message in page.messages] == [1, 2, 3, 5]
    lane = await log.store.settle(lane, page.cursor_after(2))
    assert await log.waiting() == 2
    assert await read_all(log.store, (await log.store.load(lane)).lease) == [3, 5]


async def test_savepoints_and_prepared_transactions(log: PostgreSQLLog, connect: Any) -> None:
    writer = await connect()
    lane = await take(log)
    await writer.execute("begin")
    await OUTBOX.add_many(writer, numbered(1))
    await writer.execute("savepoint a")
    await OUTBOX.add_many(writer, numbered(2))
    await writer.execute("rollback to a; savepoint b")
    await OUTBOX.add_many(writer, numbered(3))
    await writer.execute("release b; prepare transaction 'late'")
    await log.add(*numbered(4))
    seen, lane = await step(log, lane)
    assert seen == [4]
    await writer.execute("commit prepared 'late'")
    assert await read_all(log.store, lane) == [1, 3]


async def test_retention_leaves_an_unread_late_row(log: PostgreSQLLog, connect: Any) -> None:
    slow = await connect()
    lane = await take(log)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1))
    await log.add(*numbered(2))
    _, lane = await step(log, lane)
    await transaction.commit()
    cleaned = await log.store.delete_passed(after=0, older_than=timedelta(0), batch=100)
    assert cleaned.deleted == 1
    assert await read_all(log.store, lane) == [1]


# -- deferred messages -----------------------------------------------------------------------------------------------


def refused(position: int, **fields: Any) -> Deferred:
    return Deferred(position, "k", State.RETRYING, 1, 0.0, error="no", counted=True, **fields)


async def test_what_is_recorded_or_claimed_survives_a_crash_of_the_server(
    postgresql: PostgreSQL, log: PostgreSQLLog
) -> None:
    await log.add(*numbered(1, 2))
    lane = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    recorded = await log.store.record(lane, page.after, deferred=[refused(1), Deferred(2, "k", State.HELD)])
    postgresql.crash()
    postgresql.start()
    assert [(row.position, row.state) for row in await log.deferred()] == [(1, "retrying"), (2, "held")]
    with pytest.raises(StoreUnavailable):
        await log.store.record(recorded.lease, page.after, published=[1])
    with pytest.raises(StoreUnavailable):
        await log.store.claim(recorded.lease, 10)
    loaded = await log.store.load(recorded.lease)
    assert loaded.lease == recorded.lease.settled(page.after), "what could not be written was not"
    await log.store.claim(loaded.lease, 10)
    postgresql.crash()
    postgresql.start()
    assert [row.state for row in await log.deferred()] == ["sending", "held"]


async def test_a_record_that_fails_half_way_has_written_nothing(log: PostgreSQLLog) -> None:
    await log.add(*numbered(1, 2))
    lane = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    with pytest.raises(StoreUnavailable, match="deferred_due"):
        await log.store.record(lane, page.after, deferred=[refused(1), Deferred(2, "k", State.RETRYING, 1)])
    assert await log.deferred() == []
    assert (await log.store.load(lane)).lease.cursor == lane.cursor


async def test_who_changes_a_message_by_hand_while_it_is_claimed_is_respected(log: PostgreSQLLog, connect: Any) -> None:
    await log.add(*numbered(1, 2))
    lane = await take(log)
    lane = (
        await log.store.record(lane, lane.cursor, deferred=[refused(1), Deferred(2, None, State.HELD, 0, 0.0)])
    ).lease
    person = await connect()
    transaction = person.transaction()
    await transaction.start()
    await person.execute(
        "update postroad.deferred set state = 'dropped', blocks = false, due_at = null where position = 1"
    )
    claimed = (await log.store.claim(lane, 10)).claimed
    assert [each.message.position for each in claimed] == [2], "what is locked is passed over, not waited for"
    await transaction.commit()
    assert [row.state for row in await log.deferred()] == ["dropped", "sending"]


# -- which server may be read ----------------------------------------------------------------------------------------


async def test_a_standby_is_refused(postgresql: PostgreSQL, log: PostgreSQLLog) -> None:
    await log.add(*numbered(1))
    with postgresql.standby() as standby:
        store = PostgreSQLStore(standby.url(log.url.rpartition("/")[2]))
        with pytest.raises(LogNotReadable, match="is a standby"):
            await store.open()


async def test_a_log_that_is_replicated_into_is_refused(log: PostgreSQLLog) -> None:
    await log.execute(
        "create subscription copied connection 'host=127.0.0.1 port=1' publication p "
        "with (connect = false, slot_name = none)"
    )
    # What CREATE SUBSCRIPTION would write after asking a publisher that lists our table.
    await log.execute(
        "insert into pg_subscription_rel (srsubid, srrelid, srsubstate) "
        "select oid, 'postroad.outbox'::regclass, 'r' from pg_subscription where subname = 'copied'"
    )
    try:
        with pytest.raises(LogNotReadable, match="logical replication"):
            await log.another_store().open()
    finally:
        await log.execute("drop subscription copied")


async def test_a_restored_dump_goes_on_where_it_was(
    postgresql15: PostgreSQL, postgresql18: PostgreSQL, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Into a younger server of another cluster, with a late row owed by one sink and a history behind all of them."""
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.store.open()
    reading = await take(log, sink="reading")
    done = await take(log, sink="done")
    slow = await asyncpg.connect(log.url)
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1, 2, 3))
    await log.add(*numbered(4, 5))
    seen, reading = await step(log, reading)
    assert seen == [4, 5]
    await transaction.commit()
    await slow.close()
    await log.add(*numbered(6))
    seen, reading = await step(log, reading, PageLimit(1, 1000))
    assert seen == [1], "two late rows are owed, by the sub-cursor's lane only"
    assert await read_all(log.store, done) == [1, 2, 3, 4, 5, 6]
    await log.store.close()

    dump = postgresql15.dump(log.url)
    restored = PostgreSQLLog(postgresql18.create_database())
    postgresql18.restore(restored.url, dump)
    caplog.set_level(logging.WARNING)
    await restored.store.open()
    assert "was restored from another PostgreSQL cluster" in caplog.text
    (reading,) = await take_lanes(restored.store, "reading", uuid4(), lanes=1, start="oldest")
    (done,) = await take_lanes(restored.store, "done", uuid4(), lanes=1, start="oldest")
    assert await read_all(restored.store, reading) == [2, 3, 6]
    assert await read_all(restored.store, done) == []
    await restored.add(*numbered(7))
    assert await read_all(restored.store, (await restored.store.load(reading)).lease) == [7]
    assert await read_all(restored.store, (await restored.store.load(done)).lease) == [7]
    caplog.clear()
    again = restored.another_store()
    await again.open()
    await again.close()
    await restored.store.close()
    assert not caplog.text


async def test_late_pages_are_read_only_as_far_as_the_lane_is_as_it_was(log: PostgreSQLLog) -> None:
    """They show the lane's version too: the schema may be restored while a lane catches up."""
    lane = await take(log)
    slow = await log.connect()
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1, 2, 3))
    await log.add(*numbered(4))
    _, lane = await step(log, lane)
    await transaction.commit()
    await slow.close()
    seen, lane = await step(log, lane, PageLimit(1, 1000))
    assert seen == [1]
    assert lane.cursor.catching_up
    await log.execute("update postroad.lanes set version = version - 1")
    with pytest.raises(LaneChanged, match="put back to an earlier time"):
        await step(log, lane, PageLimit(1, 1000))


async def test_a_log_without_its_primary_key_is_still_being_restored(log: PostgreSQLLog) -> None:
    lane = await take(log)
    await log.execute("alter table postroad.outbox drop constraint outbox_pkey")
    with pytest.raises(LogNotReadable, match="is being restored, or the restore has failed"):
        await log.store.load(lane)


async def test_rows_from_the_future_are_another_clusters(log: PostgreSQLLog) -> None:
    """Copied row by row, with transaction ids that this cluster will reach in years: late, again and again."""
    await log.add(*numbered(1))
    await log.execute("update postroad.outbox set xid = '9000000000'::xid8")
    store = log.another_store()
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    assert await read_all(store, lane) == [1]
    assert await read_all(store, (await store.load(lane)).lease) == []
    await store.close()


# -- migrations ------------------------------------------------------------------------------------------------------


async def test_migrating_twice_changes_nothing(log: PostgreSQLLog) -> None:
    await log.add(*numbered(1))
    assert await migrate_postgresql(log.url) == []
    await log.execute("select 1")
    connection = await log.connect()
    await connection.execute(POSTGRESQL.migration_script())  # what --sql prints may be applied again too
    await connection.close()
    assert await read_all(log.store, await take(log)) == [1]


async def test_two_migrations_at_once_do_not_collide(log: PostgreSQLLog) -> None:
    await log.execute("drop schema postroad cascade")
    applied = await asyncio.gather(*(migrate_postgresql(log.url) for _ in range(4)))
    assert sorted(applied) == [[], [], [], list(POSTGRESQL.migrations)]


async def test_the_schema_has_the_name_that_was_chosen(log: PostgreSQLLog) -> None:
    from postroad import Outbox

    await log.execute("drop schema if exists elsewhere cascade")
    await migrate_postgresql(log.url, "elsewhere")
    connection = await log.connect()
    async with connection.transaction():
        await Outbox(source="/x", schema="elsewhere").add(connection, "1", type="t")
        await connection.fetchval("""select elsewhere.add('/x', 't', '2')""")
    await connection.close()
    store = PostgreSQLStore(log.url, schema="elsewhere")
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    assert await read_all(store, lane) == [1, 2]
    await store.close()
    assert await read_all(log.store, await take(log)) == []


async def test_a_database_that_is_not_migrated_says_what_to_do(log: PostgreSQLLog) -> None:
    await log.execute("drop schema postroad cascade")
    with pytest.raises(NotMigrated, match="postroad migrate --database"):
        await log.another_store().open()
    connection = await log.connect()
    with pytest.raises(NotMigrated, match="postroad migrate --database"):
        async with connection.transaction():
            await OUTBOX.add(connection, "1", type="t")
    await connection.close()


async def test_a_newer_schema_is_fine_until_it_asks_for_a_newer_client(log: PostgreSQLLog) -> None:
    await log.execute("insert into postroad.migrations (version) values (1000)")
    store = log.another_store()
    await store.open()
    await store.close()
    await log.execute("update postroad.installation set min_client = 1000")
    with pytest.raises(ClientTooOld, match="asks for a client of version 1000"):
        await store.open()
    with pytest.raises(ClientTooOld, match="asks for a client of version 1000"):
        await migrate_postgresql(log.url)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("alter table postroad.relays rename column heartbeats to beats", "column r.heartbeats does not exist"),
        ("alter table postroad.installation rename to meta", 'relation "postroad.installation" does not exist'),
    ],
)
async def test_a_schema_of_another_build_gets_one_answer(log: PostgreSQLLog, change: str, missing: str) -> None:
    await log.execute(change)
    with pytest.raises(NotMigrated, match="is not as this postroad creates it at version 1") as migrating:
        await migrate_postgresql(log.url)
    assert missing in str(migrating.value)
    with pytest.raises(NotMigrated) as working:
        store = log.another_store()
        await store.open()
        try:
            await take_lanes(store)
        finally:
            await store.close()
    assert str(working.value) == str(migrating.value)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await PostgreSQLStore("postgresql://nobody@127.0.0.1:1/nothing").open()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await migrate_postgresql("postgresql://nobody@127.0.0.1:1/nothing")


# -- roles and SQL ---------------------------------------------------------------------------------------------------


async def test_an_application_can_add_with_the_printed_grants(log: PostgreSQLLog, application: Any) -> None:
    async with application.transaction():
        await OUTBOX.add(application, "1", type="t", key="k")
        await OUTBOX.add_many(application, numbered(2, 3))
        await application.execute("select postroad.add('/sql', 't', '4', key => 'k')")
        await application.execute("select postroad.add_bytes('/sql', 't', '5')")
    assert await read_all(log.store, await take(log)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "forbidden",
    [
        "select payload from postroad.outbox",
        "delete from postroad.outbox",
        "update postroad.outbox set topic = 'x'",
        "select * from postroad.lanes",
        "update postroad.lanes set position = 0",
        (
            "insert into postroad.outbox (xid, id, topic, slot, type, payload, content_type, headers) "
            "values ('3', gen_random_uuid(), 't', 0, 't', '', 'c', '{}')"
        ),
        (
            "insert into postroad.outbox (position, id, topic, slot, type, payload, content_type, headers) "
            "overriding system value values (1, gen_random_uuid(), 't', 0, 't', '', 'c', '{}')"
        ),
    ],
)
async def test_an_application_can_do_nothing_else(application: Any, forbidden: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await application.execute(forbidden)


async def test_sql_adds_what_python_would(log: PostgreSQLLog, connect: Any) -> None:
    connection = await connect()
    id = uuid4()
    for _ in range(2):  # again: a no-op
        await connection.execute(
            "select postroad.add('/sql', 'order.created', '{\"a\": 1}', key => 'o-1', topic => 'orders', id => $1, "
            "headers => '{\"tenant\": \"t\"}', correlation_id => 'c', causation_id => 'b')",
            id,
        )
    with pytest.raises(asyncpg.PostgresError, match=f"another message has the id {id} already"):
        await connection.execute("select postroad.add('/sql', 'order.created', '2', id => $1)", id)
    await connection.execute("select postroad.add_bytes('/sql', 'blob', '\\x00ff', 'image/png')")
    lane = await take(log)
    first, second = (await log.store.read(lane, lane.cursor, PLENTY)).messages
    assert (first.id, first.topic, first.type, first.key, first.slot) == (
        id, "orders", "order.created", "o-1", slot_of("o-1", id),
    )  # fmt: skip
    assert (first.payload, first.content_type) == (b'{"a": 1}', "application/json")
    assert first.headers == {"tenant": "t"}
    assert (first.source, first.correlation_id, first.causation_id) == ("/sql", "c", "b")
    assert (second.payload, second.content_type, second.key) == (b"\x00\xff", "image/png", None)
    assert second.slot == slot_of(None, second.id)
    assert (second.id.version, second.id.variant) == (7, "specified in RFC 4122")


async def test_an_applications_own_json_codec_does_not_matter(log: PostgreSQLLog, connect: Any) -> None:
    connection = await connect()
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    async with connection.transaction():
        await OUTBOX.add(connection, "1", type="t", headers={"a": "b"})
        await OUTBOX.add_many(connection, [Message("2", type="t", headers={"a": "b"}), *numbered(3)])
    lane = await take(log)
    first, second, third = (await log.store.read(lane, lane.cursor, PLENTY)).messages
    assert first.headers == second.headers == {"a": "b"}
    assert third.source == "/tests"


async def test_a_store_is_opened_once(log: PostgreSQLLog) -> None:
    with pytest.raises(InvalidSetting, match="a store of its own"):
        await log.store.open()


@pytest.mark.parametrize("vector", VECTORS)
async def test_slots_are_the_same_in_sql(log: PostgreSQLLog, vector: dict[str, Any]) -> None:
    (row,) = await log.execute("select postroad.slot_of($1)", vector["key"])
    assert row[0] == vector["slot"]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("postroad.add('', 't', '1')", "source is empty"),
        ("postroad.add('/s', '', '1')", "outbox_t.*check"),
        ("postroad.add('/s', 't', '1', headers => '[]')", "must be an object of strings"),
        ("""postroad.add('/s', 't', '1', headers => '{"a": 1}')""", "must be an object of strings"),
        ("""postroad.add('/s', 't', '1', headers => '{"a": ["x"]}')""", "must be an object of strings"),
        ("""postroad.add('/s', 't', '1', headers => '{"a": []}')""", "must be an object of strings"),
        ("""postroad.add('/s', 't', '1', headers => '{"": "x"}')""", "must be an object of strings"),
        ("postroad.add('/s', 't', '1', headers => null)", "must be an object of strings"),
        ("""postroad.add('/s', 't', '1', headers => '{"source": "a"}')""", "use the arguments"),
        ("postroad.add('/s', 't', '1', correlation_id => repeat('x', 256))", "longer than 255 bytes"),
    ],
)
async def test_sql_refuses_what_python_would(log: PostgreSQLLog, call: str, complaint: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=complaint):
        await log.execute(f"select {call}")


# -- plans -----------------------------------------------------------------------------------------------------------


async def test_no_step_walks_the_log(log: PostgreSQLLog, connect: Any) -> None:
    """The planner takes "not seen by S" and "behind H" for independent and expects many late rows; in truth there are
    none. It must look at what is newer than S, not at all that lies behind H.
    """
    connection = await connect()
    lane = await take(log)

    async def fill(transactions: int) -> None:
        for _ in range(transactions):
            await connection.execute(
                "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
                "select gen_random_uuid(), 't', i % 1024, 't', '', 'c', '{}' from generate_series(1, 500) i"
            )

    await fill(60)
    await read_all_quietly(log, lane)
    lane = (await log.store.load(lane)).lease
    await fill(4)
    await connection.execute("analyze postroad.outbox")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    plan = await connection.fetchval(
        f"explain (analyze, format json) {store._sql['read_page']}",
        *_page_values(lane, lane.cursor, 100, 999), LAST_XID,
    )  # fmt: skip
    assert rows_looked_at(json.loads(plan)[0]["Plan"]) < 10_000, (
        "30,000 rows lie behind the position, 2,000 are newer than the snapshot"
    )


@pytest.mark.parametrize("kept", ["saved", "in memory"])
async def test_the_first_page_after_an_absence_looks_at_its_own_rows_only(
    log: PostgreSQLLog, connect: Any, kept: str
) -> None:
    """All rows that were added meanwhile are newer than the cursor's snapshot, and none of them is late. The relay was
    away, or has read nothing because the broker was.
    """
    connection, slow = await connect(), await connect()
    lane = await take(log)
    await log.add(*numbered(1))
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(2))
    await log.add(*numbered(3))
    page = await log.store.read(lane, lane.cursor, PLENTY)
    cursor = page.after
    if kept == "saved":
        lane = await log.store.settle(lane, cursor)
        lane = (await log.store.load(lane)).lease
        cursor = lane.cursor
    await transaction.commit()
    for _ in range(40):
        await connection.execute(
            "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
            "select gen_random_uuid(), 't', i % 1024, 't', '', 'c', '{}' from generate_series(1, 500) i"
        )
    await connection.execute("analyze postroad.outbox")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    assert cursor.horizon is not None
    values = (*_page_values(lane, cursor, 100, 999), cursor.horizon)
    plan = await connection.fetchval(f"explain (analyze, format json) {store._sql['read_page']}", *values)
    assert rows_looked_at(json.loads(plan)[0]["Plan"]) < 500, "20,000 rows were added, and 100 fit on the page"
    page = await store.read(lane, cursor, PageLimit(100, 1 << 20))
    assert [message.payload for message in page.messages[:2]] == [b"2", b""], "a late row, and 99 next ones"


async def test_a_late_page_looks_at_its_own_rows_only(log: PostgreSQLLog, connect: Any) -> None:
    """A huge transaction committed late, and the statistics know nothing of it: each page must begin where the last one
    ended, and not look at all that is left.
    """
    slow, connection = await connect(), await connect()
    many = (
        "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
        "select gen_random_uuid(), 't', i % 1024, 't', '', 'c', '{}' from generate_series(1, $1::int) i"
    )
    lane = await take(log)
    await connection.execute(many, 2_000)
    await connection.execute("analyze postroad.outbox")
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(many, 20_000)
    await log.add(*numbered(1))
    await read_all_quietly(log, lane)
    await transaction.commit()
    lane = (await log.store.load(lane)).lease
    limit = PageLimit(100, 1 << 20)
    page = await log.store.read(lane, lane.cursor, limit)
    late = page.after
    assert late.catching_up
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    plan = await connection.fetchval(
        f"explain (analyze, format json) {store._sql['read_late_page']}",
        *_page_values(lane, late, 100, 1 << 20), late.late_position, late.late_snapshot,
    )  # fmt: skip
    assert rows_looked_at(json.loads(plan)[0]["Plan"]) < 2_000, "20,000 rows are late, and 100 fit on the page"


async def test_retention_does_not_compare_each_row_with_each_lane(log: PostgreSQLLog, connect: Any) -> None:
    """Of many lanes, one has not passed the rows."""
    connection = await connect()
    await connection.execute(
        f"{INSERT} select gen_random_uuid(), 't', i, 't', '', 'c', '{{}}' from generate_series(1, 500) i"
    )
    await connection.execute(
        "insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot) "
        "select 's' || i, 0, 0, 1023, case when i > 1 then 1000 else 400 end, pg_current_snapshot() "
        "from generate_series(1, 400) i"
    )
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    values = (0, 500, timedelta(0), None)
    plan = await connection.fetchval(f"explain (analyze, format json) {store._sql['delete_passed']}", *values)
    assert rows_compared(json.loads(plan)[0]["Plan"]) < 2_000, "not 500 rows with 400 lanes"
    assert await connection.fetchval("select count(*) from postroad.outbox") == 100, "explain has deleted the others"


async def test_retention_compares_a_row_only_with_the_lanes_of_its_slot(log: PostgreSQLLog, connect: Any) -> None:
    """Half of many lanes have not passed the rows."""
    connection = await connect()
    await connection.execute(
        "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
        "select gen_random_uuid(), 't', i, 't', '', 'c', '{}' from generate_series(1, 500) i"
    )
    await connection.execute(
        "insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot) "
        "select 's' || i, lane, 4 * lane, 4 * lane + 3, 1000 * (lane % 2), pg_current_snapshot() "
        "from generate_series(1, 4) i, generate_series(0, 255) lane"
    )
    await connection.execute("analyze postroad.outbox, postroad.lanes")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    values = (0, 500, timedelta(0), None)
    plan = await connection.fetchval(f"explain (analyze, format json) {store._sql['delete_passed']}", *values)
    assert rows_compared(json.loads(plan)[0]["Plan"]) < 5_000, "not 500 rows with 512 lanes"
    kept = await connection.fetch("select slot from postroad.outbox")
    assert {slot for (slot,) in kept} == {slot for slot in range(1, 501) if slot // 4 % 2 == 0}


FILL_WITH_TROUBLE = """
    insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers)
    select gen_random_uuid(), 't', i % 1024, 't', '', 'c', '{}' from generate_series(1, 100000) i;

    -- Half of them follow one refused message; the others were refused too: ten are due, and ten wait for a route.
    insert into postroad.deferred (sink, lane, position, attempts, due_at, blocks, state, key, route)
    select 's', 0, i, (state = 'retrying')::int,
           case when i between 99981 and 99990 then now() when state = 'retrying' then now() + '1h' end,
           true, state, case when i <= 50000 then 'hot' when i % 2 = 0 then 'key ' || i end,
           case when i > 99990 then 'r' end
      from generate_series(1, 100000) i,
           lateral (select case when i between 2 and 50000 or i > 99990 then 'held' else 'retrying' end as state) s;

    insert into postroad.attempts (sink, position, attempt, error)
    select 's', i, 1, 'no' from generate_series(1, 100000) i;
"""

LOOKED_AT_MOST = [
    ("claim", ("s", 0, 1, 500, [], 100, 1 << 40), 300),
    ("claim", ("s", 0, 1, 500, ["r", "other"], 100, 1 << 40), 500),
    ("claim", ("s", 0, 1, 3, ["r"], 100, 1 << 40), 300),
    ("due_in", ("s", 0, False), 20),
    ("due_in", ("s", 0, True), 20),
    ("put_back", ("s", 0), 20),
    ("make_due", ("s", [2, 50_000, 99_999], True, [0.0, 0.0, 0.0]), 50),
    ("make_due", ("s", list(range(2, 5_002)), True, [0.0] * 5_000), 500_000),  # not 5,000 times 5,000
    ("scope_keys", ("s", 0, False), 100_000),  # none is to be rewritten, and the log is not read
    ("heads_of", ("s", 0, ["hot", "key 60000", "none"]), 20),
    ("forget_published", ("s", [1, 99_999]), 20),
    ("routes", ("s", 0), 20),
    ("heads", ("s", 0), 75_000),  # every row that blocks and has a key, and no other
    ("delete_passed", (40_000, 100, timedelta(0), None), 1_000),
]


@pytest.mark.parametrize("statistics", ["none", "fresh"])
async def test_trouble_is_looked_up_and_never_searched_for(log: PostgreSQLLog, connect: Any, statistics: str) -> None:
    connection = await connect()
    await take(log)
    await connection.execute("alter table postroad.deferred set (autovacuum_enabled = off)")
    await connection.execute(FILL_WITH_TROUBLE)
    if statistics == "fresh":
        await connection.execute("analyze")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    await connection.execute("set work_mem = '64kB'")  # a few thousand rows are too many for what is kept in memory
    for query, values, most in LOOKED_AT_MOST:
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetchval(f"explain (analyze, format json) {store._sql[query]}", *values)
        await transaction.rollback()
        assert rows_looked_at(json.loads(plan)[0]["Plan"]) <= most, (query, values)


async def test_loading_makes_due_what_waits_for_nothing_and_changes_nothing_else(
    log: PostgreSQLLog, connect: Any
) -> None:
    connection = await connect()
    lane = await take(log)
    await connection.execute(
        """
        insert into postroad.deferred (sink, lane, position, attempts, due_at, blocks, state, key, route)
        select 's', 0, position, (state = 'retrying')::int, due_at, true, state, key, route
          from (values (1, 'a', 'held', null, null), (2, 'a', 'held', null, null), (3, 'b', 'held', null, null),
                       (4, 'c', 'retrying', now() + interval '1 h', null), (5, 'c', 'held', null, null),
                       (6, 'd', 'held', null, 'r'), (7, 'e', 'held', null, 'r'), (8, null, 'held', null, 'other'))
               as t (position, key, state, due_at, route);
        insert into postroad.holds (sink, key, slot, who) values ('s', 'b', 0, 'an operator');
        """
    )
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"a": 1, "b": 0, "c": 4, "d": 6, "e": 7}
    assert sorted(loaded.routes) == ["other", "r"]
    assert [row.position for row in await log.deferred() if row.due] == [1, 6, 8]
    written = await connection.fetch("select position, xmin, ctid from postroad.deferred order by position")
    again = await log.store.load(loaded.lease)
    assert (again.blocked_keys, sorted(again.routes)) == (loaded.blocked_keys, ["other", "r"])
    assert written == await connection.fetch("select position, xmin, ctid from postroad.deferred order by position")


def fence_of(lane: Lease) -> tuple[object, ...]:
    return lane.sink, lane.lane, lane.owner, lane.epoch


def rows_looked_at(node: dict[str, Any]) -> int:
    scanned = "Relation Name" in node or "CTE Name" in node
    mine = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if scanned else 0
    return int(mine * node["Actual Loops"]) + sum(rows_looked_at(child) for child in node.get("Plans", []))


def rows_compared(node: dict[str, Any]) -> int:
    mine = node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
    return int(mine) + sum(rows_compared(child) for child in node.get("Plans", []))


async def read_all_quietly(log: PostgreSQLLog, lane: Lease) -> None:
    page = await log.store.read(lane, lane.cursor, PageLimit(1_000_000, 1 << 40))
    await log.store.settle(lane, page.after)


async def test_a_relay_that_is_frozen_in_a_transaction_does_not_keep_its_lane(log: PostgreSQLLog) -> None:
    """As one that is stopped, or whose machine sleeps, between two statements: the server ends its session."""
    frozen, other = PostgreSQLStore(log.url, connections=1), PostgreSQLStore(log.url)
    await frozen.open()
    await other.open()
    (lease,) = await take_lanes(frozen)
    taken = False
    with pytest.raises(StoreUnavailable):
        async with frozen._fenced(lease, lease.cursor), asyncio.timeout(60):
            while not await take_lanes(other):  # noqa: ASYNC110 - the server's clock decides
                await asyncio.sleep(0.1)
            taken = True
    assert taken
    await frozen.close()
    await other.close()


async def test_a_relay_that_is_frozen_in_a_statement_does_not_keep_its_lane(log: PostgreSQLLog) -> None:
    """The driver has the description of a statement, and is frozen before it sends the values: the server counts that
    as active, and the relay that waits for the lane ends the session.
    """
    frozen, other = PostgreSQLStore(log.url, connections=1), PostgreSQLStore(log.url)
    await frozen.open()
    await other.open()
    (lease,) = await take_lanes(frozen)
    taken = False
    with pytest.raises(StoreUnavailable):
        async with frozen._fenced(lease, lease.cursor) as rows, asyncio.timeout(60):
            await rows._connection.prepare("select 1")
            async with reporting_blockers(other, Listeners()):
                while not await take_lanes(other):  # noqa: ASYNC110 - the server's clock decides
                    await asyncio.sleep(0.1)
            taken = True
    assert taken
    await frozen.close()
    await other.close()


# -- payloads --------------------------------------------------------------------------------------------------------

COMPRESSION = """
    select c.relname, a.attcompression from pg_attribute a join pg_class c on c.oid = a.attrelid
     where c.relnamespace = 'postroad'::regnamespace and c.relkind = 'r' and a.attname = 'payload' order by 1
"""


async def offers_lz4(connection: Any) -> bool:
    """PostgreSQL 18 as it comes from PyPI is built without it."""
    values = "select enumvals from pg_settings where name = 'default_toast_compression'"
    return "lz4" in await connection.fetchval(values)


async def test_payloads_are_compressed_with_lz4_where_the_server_offers_it(log: PostgreSQLLog, connect: Any) -> None:
    connection = await connect()
    expected = (b"l", "lz4") if await offers_lz4(connection) else (b"\0", "pglz")
    found = [(row[0], row[1] or b"\0") for row in await connection.fetch(COMPRESSION)]
    assert found == [("outbox", expected[0]), ("scheduled", expected[0])]
    async with connection.transaction():
        await OUTBOX.add(connection, {"note": "a parcel " * 10_000}, type="t")
    assert await connection.fetchval("select pg_column_compression(payload) from postroad.outbox") == expected[1]


async def test_storage_that_an_application_has_set_is_left_alone(log: PostgreSQLLog, connect: Any) -> None:
    connection = await connect()
    await connection.execute("alter table postroad.outbox alter payload set compression pglz")
    await connection.execute("alter table postroad.scheduled alter payload set compression default")
    await connection.execute("alter table postroad.scheduled alter payload set storage external")
    await connection.execute(POSTGRESQL.migration_script())
    found = [(row[0], row[1] or b"\0") for row in await connection.fetch(COMPRESSION)]
    assert found == [("outbox", b"p"), ("scheduled", b"\0")]
