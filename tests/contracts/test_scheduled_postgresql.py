"""Canceling in PostgreSQL: who waits for whom, what an application's role may do, and what looking for work costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from postroad import Cancellation, Message, StoreUnavailable
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.base import Deferred, Lease, Moved
from postroad.stores.cursor import PageLimit
from postroad.stores.postgresql import PostgreSQLStore
from tests.contracts.test_postgresql import rows_looked_at
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PLENTY, PostgreSQLLog, log_fixture, numbered, read_all

CANCELED, TOO_LATE, UNKNOWN = Cancellation


log = log_fixture("postgresql", opened=True)


async def add(log: PostgreSQLLog, number: int, **fields: Any) -> UUID:
    id = new_id()
    await log.add(*numbered(number, id=id, **fields))
    return id


async def take(log: PostgreSQLLog, sink: str = "s") -> Lease:
    (lane,) = await take_lanes(log.store, sink, uuid4(), lanes=1, start="oldest")
    return lane


async def in_trouble(log: PostgreSQLLog) -> Lease:
    """A lane that has passed the log, whose first message was refused."""
    lane = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    refused = Deferred(page.messages[0].position, "k", State.RETRYING, attempts=1, due_in=3600)
    return (await log.store.record(lane, page.after, deferred=[refused])).lease


async def begin(connection: Any, **options: Any) -> Any:
    transaction = connection.transaction(**options)
    await transaction.start()
    return transaction


async def until_somebody_waits(log: PostgreSQLLog) -> None:
    """Until one of this database's sessions waits for a lock."""
    async with asyncio.timeout(60):
        while True:
            waiting = await log.execute("select from pg_stat_activity where wait_event_type = 'Lock'")
            if waiting:
                return
            await asyncio.sleep(0.01)


# -- moving and canceling at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
async def test_the_mover_passes_over_what_is_being_canceled(log: PostgreSQLLog, connect: Any, commit: bool) -> None:
    first = await add(log, 1, deliver_in="0")
    await add(log, 2, deliver_in="0")
    connection = await connect()
    transaction = await begin(connection)
    assert await OUTBOX.cancel(connection, first) is CANCELED
    assert await log.store.move_scheduled(10) == Moved(1, None), "it does not wait, and need not hurry"
    await (transaction.commit() if commit else transaction.rollback())
    assert (await log.store.move_scheduled(10)).moved == (0 if commit else 1)
    assert await read_all(log.store, await take(log)) == ([2] if commit else [2, 1])


@pytest.mark.parametrize("commit", [True, False])
async def test_cancel_waits_for_the_mover_and_returns_the_outcome(
    log: PostgreSQLLog, connect: Any, commit: bool
) -> None:
    id = await add(log, 1, deliver_in="0")
    mover, connection = await connect(), await connect()
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    moving = await begin(mover)
    assert (await mover.fetchrow(store._sql["move_scheduled"], 10, None))["moved"] == 1

    async def cancel() -> Any:
        async with connection.transaction():
            return await OUTBOX.cancel(connection, id)

    canceling = asyncio.create_task(cancel())
    await until_somebody_waits(log)
    assert not canceling.done()
    await (moving.commit() if commit else moving.rollback())
    assert await canceling is (TOO_LATE if commit else CANCELED)
    assert await read_all(log.store, await take(log)) == ([1] if commit else [])


async def test_in_higher_isolation_levels_the_loser_gets_the_databases_own_error(
    log: PostgreSQLLog, connect: Any
) -> None:
    id = await add(log, 1, deliver_in="0")
    connection = await connect()
    with pytest.raises(asyncpg.SerializationError):
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from postroad.outbox")  # its snapshot is from here
            await log.store.move_scheduled(10)
            await OUTBOX.cancel(connection, id)
    async with connection.transaction(isolation="repeatable_read"):
        assert await OUTBOX.cancel(connection, id) is TOO_LATE


async def test_in_higher_isolation_levels_also_for_a_message_in_trouble(log: PostgreSQLLog, connect: Any) -> None:
    id = await add(log, 1, key="k")
    lane = await in_trouble(log)
    connection = await connect()
    with pytest.raises(asyncpg.SerializationError):
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from postroad.outbox")
            await log.store.record(lane, lane.cursor, published=[1])
            await OUTBOX.cancel(connection, id)


# -- no lane waits for an application --------------------------------------------------------------------------------


async def due(log: PostgreSQLLog, *positions: int, held: bool = False) -> Lease:
    """A lane that has passed the log, with these messages due; or with all of them held, behind the first."""
    lane = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    first = min(positions)
    deferred = [
        Deferred(at, "k", State.HELD, due_in=0 if at == first else None)
        if held
        else Deferred(at, f"k{at}", State.RETRYING, attempts=1, due_in=0)
        for at in positions
    ]
    return (await log.store.record(lane, page.after, deferred=deferred)).lease


async def now(work: Awaitable[Any]) -> Any:
    """A limit that is not reached, unless it waits for the test itself."""
    return await asyncio.wait_for(work, 60)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_lane_does_not_wait_for_a_cancel(log: PostgreSQLLog, connect: Any, commit: bool) -> None:
    ids = [await add(log, number) for number in (1, 2)]
    lane = await due(log, 1, 2)
    connection = await connect()
    transaction = await begin(connection)
    assert await OUTBOX.cancel(connection, ids[0]) is CANCELED
    lane = await now(log.store.settle(lane, lane.cursor))
    claim = await now(log.store.claim(lane, 10))
    assert [each.message.position for each in claim.claimed] == [2]
    assert claim.locked
    assert claim.due_in is None, "it is not asked again at once"
    lane = (await now(log.store.record(claim.lease, lane.cursor, published=[2]))).lease
    loaded = await now(log.store.load(lane))
    assert (await now(log.store.claim(loaded.lease, 10))).locked
    await (transaction.commit() if commit else transaction.rollback())
    loaded = await log.store.load(lane)
    assert not loaded.locked
    claim = await log.store.claim(loaded.lease, 10)
    assert [each.message.position for each in claim.claimed] == ([] if commit else [1])
    assert not claim.locked


async def test_a_lane_finds_out_what_was_canceled(log: PostgreSQLLog, connect: Any) -> None:
    """It need not have anything to write. What waited for the message is due as soon as the lane has loaded that."""
    ids = [await add(log, number, key="k") for number in (1, 2)]
    lane = await due(log, 1, 2, held=True)
    assert await log.store.is_current(lane)
    assert (await log.store.read(lane, lane.cursor, PLENTY)).version == lane.version
    assert await log.cancel(ids[0]) == [CANCELED]
    assert not await log.store.is_current(lane)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert page.version > lane.version
    lane = await log.store.settle(lane, page.after)
    assert page.version > lane.version, "also when the lane has written meanwhile"
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"k": 2}
    assert await log.store.is_current(loaded.lease)
    claim = await log.store.claim(loaded.lease, 10)
    assert [each.message.position for each in claim.claimed] == [2]


@pytest.mark.parametrize("commit", [True, False])
async def test_nothing_overtakes_a_message_that_may_not_be_canceled_after_all(
    log: PostgreSQLLog, connect: Any, commit: bool
) -> None:
    ids = [await add(log, number, key="k") for number in (1, 2, 3)]
    lane = await due(log, 1, 2, 3, held=True)
    connection = await connect()
    transaction = await begin(connection)
    assert await OUTBOX.cancel(connection, ids[1]) is CANCELED
    claim = await now(log.store.claim(lane, 10))
    assert [each.message.position for each in claim.claimed] == [1], "the third waits for the second"
    assert claim.locked
    recorded = await now(log.store.record(claim.lease, lane.cursor, published=[1], freed=["k"]))
    assert recorded.locked, "the second could not be made due"
    await (transaction.commit() if commit else transaction.rollback())
    loaded = await log.store.load(recorded.lease)
    claim = await log.store.claim(loaded.lease, 10)
    assert [each.message.position for each in claim.claimed] == ([3] if commit else [2, 3])


async def test_what_is_too_late_to_cancel_is_not_locked(log: PostgreSQLLog, connect: Any) -> None:
    """At one sink it waits, at another it is being sent."""
    id = await add(log, 1)
    lane = await due(log, 1)
    other = await take(log, "other")
    page = await log.store.read(other, other.cursor, PLENTY)
    deferred = [Deferred(1, None, State.RETRYING, attempts=1, due_in=0)]
    other = (await log.store.record(other, page.after, deferred=deferred)).lease
    claimed = await log.store.claim(other, 10)
    connection = await connect()
    transaction = await begin(connection)
    assert await OUTBOX.cancel(connection, id) is TOO_LATE
    assert [each.message.position for each in (await now(log.store.claim(lane, 10))).claimed] == [1]
    await now(log.store.record(claimed.lease, other.cursor, published=[1]))
    await transaction.commit()
    assert await log.execute("select from postroad.audit") == []


async def test_retention_leaves_what_a_lane_has_not_noticed(log: PostgreSQLLog) -> None:
    id = await add(log, 1)
    lane = await due(log, 1)
    await log.cancel(id)
    assert (await log.store.delete_passed(after=0, older_than=timedelta(0), batch=10)).deleted == 0
    await log.store.load(lane)
    assert (await log.store.delete_passed(after=0, older_than=timedelta(0), batch=10)).deleted == 1


async def test_an_operator_waits_a_moment_only_and_the_error_names_the_blocker(
    log: PostgreSQLLog, connect: Any
) -> None:
    """While an operator waits, the lanes are locked."""
    id = await add(log, 1)
    await due(log, 1)
    connection = await connect()
    transaction = await begin(connection)
    assert await OUTBOX.cancel(connection, id) is CANCELED
    async with Admin(PostgreSQLAdminDatabase(log.url)) as operating:
        with pytest.raises(StoreUnavailable, match=f"locked by process {connection.get_server_pid()} of role postgres"):
            await operating.skip(Filter(ids=[id]), By("me"))
        await transaction.rollback()
        assert (await operating.skip(Filter(ids=[id]), By("me"))).changed == 1


async def test_a_claim_that_was_faster_makes_it_too_late(log: PostgreSQLLog, connect: Any) -> None:
    """The lane's transaction is under way when an application cancels."""
    id = await add(log, 1, key="k")
    await in_trouble(log)
    lane, connection = await connect(), await connect()
    claiming = await begin(lane)
    await lane.execute("update postroad.lanes set version = version + 1")
    await lane.execute("update postroad.deferred set state = 'sending', due_at = null, epoch = 1")

    async def cancel() -> Any:
        async with connection.transaction():
            return await OUTBOX.cancel(connection, id)

    canceling = asyncio.create_task(cancel())
    await until_somebody_waits(log)
    await claiming.commit()
    assert await canceling is TOO_LATE


async def test_a_lane_does_not_wait_for_a_cancel_that_is_too_late(log: PostgreSQLLog, connect: Any) -> None:
    sent = await add(log, 1)
    lane = await take(log)
    connection = await connect()
    async with connection.transaction():
        assert await OUTBOX.cancel(connection, sent) is TOO_LATE
        assert await OUTBOX.cancel(connection, uuid4()) is UNKNOWN
        page = await log.store.read(lane, lane.cursor, PLENTY)
        lane = await asyncio.wait_for(log.store.settle(lane, page.after), 60)
        assert await OUTBOX.cancel(connection, sent) is TOO_LATE
        await asyncio.wait_for(log.store.settle(lane, lane.cursor), 60)


async def test_a_late_row_in_trouble_is_canceled_while_its_lane_catches_up(log: PostgreSQLLog, connect: Any) -> None:
    """The lane's snapshot does not see the row yet, but its sub-cursor has passed it."""
    slow = await connect()
    lane = await take(log)
    ids = [new_id() for _ in range(6)]
    transaction = await begin(slow)
    await OUTBOX.add_many(slow, [Message(str(number), type="t", key="k", id=id) for number, id in enumerate(ids)])
    await log.add(*numbered(10))
    page = await log.store.read(lane, lane.cursor, PLENTY)
    lane = await log.store.settle(lane, page.after)
    await transaction.commit()
    page = await log.store.read(lane, lane.cursor, PageLimit(3, 1 << 20))
    assert page.after.catching_up
    refused = Deferred(page.messages[0].position, "k", State.DEAD, attempts=1, blocks=False)
    await log.store.record(lane, page.after, deferred=[refused])
    assert await log.cancel(ids[0], ids[1], ids[5]) == [CANCELED, TOO_LATE, TOO_LATE]


# -- roles -----------------------------------------------------------------------------------------------------------


async def test_an_application_can_schedule_and_cancel_with_the_printed_grants(
    log: PostgreSQLLog, application: Any
) -> None:
    async with application.transaction():
        waiting = await OUTBOX.add(application, "1", type="t", key="k", deliver_in="1h")
        await OUTBOX.add(application, "1", type="t", key="k", id=waiting, deliver_in="1h")
        sent, _ = await OUTBOX.add_many(application, [*numbered(2), *numbered(3, deliver_in="0")])
    async with application.transaction():
        assert await OUTBOX.cancel(application, waiting) is CANCELED
        assert await OUTBOX.cancel(application, sent) is TOO_LATE
        assert await OUTBOX.cancel(application, uuid4()) is UNKNOWN
    assert (await log.store.move_scheduled(10)).moved == 1
    assert await read_all(log.store, await take(log)) == [2, 3]


async def test_an_application_can_cancel_what_is_in_trouble(log: PostgreSQLLog, application: Any) -> None:
    async with application.transaction():
        id = await OUTBOX.add(application, "1", type="t", key="k")
    await in_trouble(log)
    async with application.transaction():
        assert await OUTBOX.cancel(application, id) is CANCELED
    assert [row.state for row in await log.deferred()] == ["canceled"]


@pytest.mark.parametrize(
    "forbidden",
    [
        "select payload from postroad.scheduled",
        "select due_at from postroad.scheduled",
        "delete from postroad.scheduled",
        "update postroad.scheduled set due_at = now()",
        "select * from postroad.deferred",
        "update postroad.deferred set state = 'canceled'",
        "select * from postroad.attempts",
        (
            "insert into postroad.scheduled (number, due_at, id, topic, slot, type, payload, content_type, headers) "
            "overriding system value values (1, now(), gen_random_uuid(), 't', 0, 't', '', 'c', '{}')"
        ),
        (
            "insert into postroad.scheduled (created_at, id, due_at, topic, slot, type, payload, content_type) "
            "values (now(), gen_random_uuid(), now(), 't', 0, 't', '', 'c')"
        ),
    ],
)
async def test_an_application_can_do_nothing_else(application: Any, forbidden: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await application.execute(forbidden)


async def test_who_was_granted_nothing_can_cancel_nothing(log: PostgreSQLLog) -> None:
    await log.execute("do $$ begin create role onlooker login; exception when duplicate_object then null; end $$")
    await log.execute("grant usage on schema postroad to onlooker")
    connection = await log.connect(user="onlooker")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="cancel"):
        await connection.execute("select postroad.cancel(gen_random_uuid())")
    await connection.close()


# -- what polling costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("due", "most"), [(0, 10), (5_000, 1_000)])
async def test_looking_for_what_is_due_looks_at_nothing_else(
    log: PostgreSQLLog, connect: Any, due: int, most: int
) -> None:
    connection = await connect()
    await connection.execute(
        "insert into postroad.scheduled (due_at, id, topic, slot, type, payload, content_type, headers) "
        "select now() + case when i <= $1 then '-1 day' else '1 day' end::interval, gen_random_uuid(), 't', i % 1024, "
        "'t', '', 'c', '{}' from generate_series(1, 20000) i",
        due,
    )
    await connection.execute("analyze postroad.scheduled")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    plan = await connection.fetchval(f"explain (analyze, format json) {store._sql['move_scheduled']}", 100, None)
    assert rows_looked_at(json.loads(plan)[0]["Plan"]) <= most
