"""`Inbox.first_time` keeps the same promises on every kind of connection that users have."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import warnings
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from postroad import (
    ConnectionClosed,
    Consumer,
    Inbox,
    InvalidMessage,
    InvalidSetting,
    NotMigrated,
    NoTransaction,
    Received,
)
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.errors import TransactionAborted, TransactionEnded
from postroad.consumer.retention import InboxRetention
from postroad.consumer.transaction_check import check_transaction
from postroad.consumer.transactions import Transactions, run_steps, run_steps_async
from postroad.inbox import FirstTimes
from postroad.listeners import Listeners
from postroad.retry import Backoff
from postroad.stores.connections import NeverAwaited, reported_through, state_through
from postroad.stores.grants import grants_script
from postroad.stores.memory import MemoryStore
from postroad.stores.sqlite import migrate_sqlite
from postroad.stores.statements import Arrival
from tests.adapters.base import Adapter, Database, OnPostgreSQL, OnSQLite, done
from tests.adapters.kinds import KINDS, Kind
from tests.consumers import execute
from tests.logs import PostgreSQLLog, log_fixture
from tests.places import asyncpg_transactions

INBOX = Inbox()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
async def database(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if kind.dialect == "postgresql":
        log = await PostgreSQLLog.fresh(request.getfixturevalue("postgresql15"))
        return await OnPostgreSQL(log).prepare()
    migrate_sqlite(tmp_path / "shop.sqlite")
    return OnSQLite(tmp_path / "shop.sqlite")


@pytest.fixture
async def adapter(kind: Kind, database: Database) -> Adapter:
    return kind.make(database)


log = log_fixture("postgresql15")


def inbox_of(database: Database) -> str:
    return database.outbox.replace("outbox", "inbox")


async def unmigrate(database: Database) -> None:
    if isinstance(database, OnSQLite):
        database._execute(f"drop table {inbox_of(database)}")
    else:
        await database.rows(f"drop table {inbox_of(database)}")


async def noted(database: Database) -> list[tuple[Any, ...]]:
    return await database.rows(f"select consumer, id, type from {inbox_of(database)} order by consumer, id")


async def test_the_first_time_is_noted_with_the_effect(adapter: Adapter, database: Database) -> None:
    id = uuid4()
    async with adapter.transaction() as connection:
        assert await done(INBOX.first_time(connection, id, consumer="stock", type="order.created")) is True
        await adapter.order(connection, 1)
        assert await noted(database) == [], "it does not commit"
    async with adapter.transaction() as connection:
        assert await done(INBOX.first_time(connection, str(id), consumer="stock")) is False
        assert await done(INBOX.first_time(connection, id, consumer="mail")) is True
        await adapter.order(connection, 2)  # a second time is no error: the transaction goes on
    assert await noted(database) == [("mail", str(id), ""), ("stock", str(id), "order.created")]
    assert await database.rows("select id from orders order by id") == [(1,), (2,)]


async def test_a_rollback_leaves_nothing(adapter: Adapter, database: Database) -> None:
    with pytest.raises(LookupError):
        async with adapter.transaction() as connection:
            assert await done(INBOX.first_time(connection, "m", consumer="stock"))
            await adapter.order(connection, 1)
            raise LookupError
    assert await noted(database) == []
    async with adapter.transaction() as connection:
        assert await done(INBOX.first_time(connection, "m", consumer="stock")) is True


async def test_twice_in_one_transaction_and_in_a_savepoint(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        with pytest.raises(LookupError):
            async with adapter.savepoint(connection):
                assert await done(INBOX.first_time(connection, "m", consumer="stock"))
                raise LookupError
        assert await done(INBOX.first_time(connection, "m", consumer="stock"))
        assert not await done(INBOX.first_time(connection, "m", consumer="stock"))
    assert len(await noted(database)) == 1


async def test_a_batch_is_answered_in_its_order(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        assert await done(INBOX.first_time(connection, "b", consumer="stock"))
    batch = [(id, f"type-{id}") for id in ("c", "b", "ä%s'\"", "c", "a")]
    async with adapter.transaction() as connection:
        answers = await done(INBOX.first_times(connection, batch, consumer="stock"))
        assert answers == [True, False, True, False, True]
        assert await done(INBOX.first_times(connection, batch, consumer="stock")) == [False] * 5
        assert await done(INBOX.first_times(connection, [], consumer="stock")) == []
    assert await noted(database) == [
        ("stock", "a", "type-a"),
        ("stock", "b", ""),
        ("stock", "c", "type-c"),
        ("stock", "ä%s'\"", "type-ä%s'\""),
    ]


async def test_one_round_trip(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        await done(INBOX.first_time(connection, "a", consumer="stock"))  # drivers may prepare what they first see
        await done(INBOX.first_times(connection, [("b", ""), ("c", "")], consumer="stock"))
        async with adapter.trips(connection) as one:
            await done(INBOX.first_time(connection, "d", consumer="stock"))
        async with adapter.trips(connection) as many:
            await done(INBOX.first_times(connection, [(str(n), "") for n in range(100)], consumer="stock"))
    assert (one.count, many.count) == (1, 1)
    assert len(await noted(database)) == 104


async def test_a_transaction_that_an_error_has_aborted_is_recognized(
    kind: Kind, adapter: Adapter, database: Database
) -> None:
    """Its COMMIT would be answered by a roll-back, which drivers don't call an error."""
    async with adapter.transaction() as connection:
        watched = await Watched.from_now_on(kind, connection)
        await watched.check()
    async with adapter.transaction() as connection:
        watched = await Watched.from_now_on(kind, connection)
        with pytest.raises(NotMigrated):  # any error would do
            await done(Inbox(schema="nowhere").first_time(connection, "m", consumer="stock"))
        if kind.dialect == "sqlite":
            await watched.check()
        else:
            with pytest.raises(TransactionAborted):
                await watched.check()
    assert len(await noted(database)) == 1 + (kind.dialect == "sqlite")


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_another_transaction_is_recognized(kind: Kind, adapter: Adapter, end: str) -> None:
    with suppress(Exception):  # what was begun here may not be there any more
        async with adapter.transaction() as connection:
            watched = await Watched.from_now_on(kind, connection)
            for sql in (end, "begin"):
                if (ran := execute(connection, sql)) is not None and watched.transactions.is_async:
                    await ran
            with pytest.raises(TransactionEnded):
                await watched.check()
            raise LookupError
    assert watched.checked


class Watched(NamedTuple):
    """A transaction as a consumer watches it."""

    transactions: Transactions
    connection: Any
    reported: bool | None
    recorded: FirstTimes
    checked: list[bool]

    @classmethod
    async def from_now_on(cls, kind: Kind, connection: Any) -> Watched:
        transactions = Transactions(object, "postroad", 1)
        transactions.is_async = is_async(kind)
        reported = reported_through(connection)
        if reported is not None and not isinstance(reported, bool):
            reported = await reported
        asked = INBOX.record(connection, [Arrival(str(uuid4()), "")], consumer="stock")
        return cls(transactions, connection, reported, await done(asked), [])

    async def check(self) -> None:
        self.checked.append(True)
        state = state_through(self.connection, self.reported)
        steps = check_transaction("postroad", self.connection, state, self.recorded.transaction)
        if self.transactions.is_async:
            await run_steps_async(steps)
        else:
            run_steps(steps)


def is_async(kind: Kind) -> bool:
    return kind.name.startswith("a") or kind.name.endswith("async")


async def test_outside_a_transaction(adapter: Adapter, database: Database) -> None:
    async with adapter.outside() as connection:
        with pytest.raises(NoTransaction, match="committed by itself"):
            await done(INBOX.first_time(connection, "m", consumer="stock"))
    assert await noted(database) == []


async def test_a_closed_connection(adapter: Adapter) -> None:
    async with adapter.closed() as connection:
        with pytest.raises(ConnectionClosed):
            await done(INBOX.first_time(connection, "m", consumer="stock"))


async def test_a_database_that_was_not_migrated(adapter: Adapter, database: Database) -> None:
    await unmigrate(database)
    with pytest.raises(NotMigrated, match="postroad migrate"):
        async with adapter.transaction() as connection:
            await done(INBOX.first_time(connection, "m", consumer="stock"))


async def test_a_forgotten_await_complains(kind: Kind, adapter: Adapter) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeverAwaited)
        async with adapter.transaction() as connection:
            INBOX.first_time(connection, "m-1", consumer="stock")
            gc.collect()
    assert ["m-1" in str(warning.message) for warning in caught] == [True] * is_async(kind)


async def test_it_is_no_truth_value_before_it_is_awaited(log: PostgreSQLLog) -> None:
    connection = await log.connect()
    async with connection.transaction():
        pending = INBOX.first_time(connection, "m", consumer="stock")
        with pytest.raises(TypeError, match="truth value"):
            bool(pending)
        assert await pending
    await connection.close()


# -- races, on PostgreSQL --------------------------------------------------------------------------------------------


async def waiting(log: PostgreSQLLog, count: int = 1) -> None:
    """Until so many transactions wait for a lock."""
    async with asyncio.timeout(60):
        while True:
            sql = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            )
            if (await log.execute(sql))[0][0] >= count:
                return


@pytest.mark.parametrize("commits", [True, False])
async def test_the_second_waits_for_the_first_and_gets_the_right_answer(log: PostgreSQLLog, commits: bool) -> None:
    first, second = await log.connect(), await log.connect()
    begun = first.transaction()
    await begun.start()
    assert await INBOX.first_time(first, "m", consumer="stock")
    async with second.transaction():
        asked = asyncio.ensure_future(_first_time(second, "m"))
        await waiting(log)
        assert not asked.done()
        await (begun.commit() if commits else begun.rollback())
        assert await asked is not commits
        assert await second.fetchval("select 1") == 1, "the transaction is not aborted"
    await first.close()
    await second.close()


async def _first_time(connection: Any, id: str, inbox: Inbox = INBOX) -> bool:
    first: bool = await inbox.first_time(connection, id, consumer="stock")
    return first


async def test_the_wait_ends_with_the_lock_timeout(log: PostgreSQLLog) -> None:
    inbox = Inbox(lock_timeout="50ms")
    first, second = await log.connect(), await log.connect()
    async with first.transaction():
        await _first_time(first, "m")
        with pytest.raises(asyncpg.LockNotAvailableError):
            async with second.transaction():
                await _first_time(second, "m", inbox)
    await first.close()
    await second.close()


@pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
async def test_the_lock_timeout_is_for_the_inbox_alone(log: PostgreSQLLog, ids: list[str]) -> None:
    connection = await log.connect()
    await connection.execute("set lock_timeout = '77s'")
    for _ in range(2):  # new ids, and ids that are known
        async with connection.transaction():
            await Inbox(lock_timeout="50ms").first_times(connection, [(id, "") for id in ids], consumer="stock")
            assert await connection.fetchval("show lock_timeout") == "77s"
        assert await connection.fetchval("show default_transaction_read_only") == "off"
    await connection.close()


async def test_batches_in_any_order_never_deadlock(log: PostgreSQLLog) -> None:
    """Both write a row of their own first, and then meet: unsorted, each would wait for the other's."""
    connections = [await log.connect() for _ in range(2)]
    inbox = Inbox(lock_timeout="0")
    batch = [(f"{n:04}", "") for n in range(2000)]

    async def note(connection: Any, messages: list[tuple[str, str]]) -> list[bool]:
        async with connection.transaction():
            answers: list[bool] = await inbox.first_times(connection, messages, consumer="stock")
            return answers

    for number in range(5):
        there = [(f"{number}-{id}", "") for id, _ in batch]
        one, other = await asyncio.gather(note(connections[0], there), note(connections[1], there[::-1]))
        assert sorted((sum(one), sum(other))) == [0, len(batch)]
    for connection in connections:
        await connection.close()


async def test_higher_isolation_levels_get_an_error_to_try_again(log: PostgreSQLLog) -> None:
    first, second = await log.connect(), await log.connect()
    with pytest.raises(asyncpg.SerializationError):
        async with second.transaction(isolation="repeatable_read"):
            await second.fetchval("select 1")  # its snapshot is from before
            async with first.transaction():
                await _first_time(first, "m")
            await _first_time(second, "m")
    async with second.transaction(isolation="repeatable_read"):
        assert not await _first_time(second, "m")
    await first.close()
    await second.close()


async def test_a_role_with_the_grants_can_consume_and_not_read_the_log(log: PostgreSQLLog) -> None:
    await log.execute("drop role if exists consuming_app")
    await log.execute("create role consuming_app login")
    try:
        owner = await log.connect()
        await owner.execute(grants_script("consuming_app"))
        await owner.close()
        connection = await log.connect(user="consuming_app")
        async with connection.transaction():
            assert await _first_time(connection, "m")
            assert await INBOX.first_times(connection, [("m", ""), ("n", "")], consumer="stock") == [False, True]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(
                "insert into postroad.inbox (consumer, id, type, processed_at) values ('a','b','c', now())"
            )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("select * from postroad.outbox")
        await connection.close()
        await consume_and_forget(log.url.replace("//postgres@", "//consuming_app@"))
    finally:
        await log.execute("drop owned by consuming_app")
        await log.execute("drop role consuming_app")


async def consume_and_forget(url: str) -> None:
    begin, _, _ = asyncpg_transactions(url)
    queue: MemoryQueue = MemoryQueue()
    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, retry=Backoff(max_attempts=1))

    @it.on(dict, type="order.created")
    async def handle(event: Any, tx: Any, message: Received) -> None:
        if message.id == "bad":
            raise LookupError

    for id in ("good", "bad"):
        queue.put(b"{}", message_id=id, type="order.created", redelivered=True)
    summary = await it.run_until_empty()
    assert (summary.handled, summary.dead) == (1, 1)
    assert await InboxRetention("stock", it._attempts, Listeners(), retain=timedelta(0)).run_once() == 3


# -- rows as users like them, memory, and what is wrong --------------------------------------------------------------


async def test_rows_of_dicts_don_t_matter(log: PostgreSQLLog, tmp_path: Path) -> None:
    with psycopg.connect(log.url, row_factory=dict_row) as connection:
        assert INBOX.first_time(connection, "m", consumer="stock")
    migrate_sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as sqlite, sqlite:
        sqlite.row_factory = lambda cursor, row: {"row": row}
        assert INBOX.first_time(sqlite, "m", consumer="stock")
        assert not INBOX.first_time(sqlite, "m", consumer="stock")


def test_memory() -> None:
    store = MemoryStore()
    with store.begin() as transaction:
        assert INBOX.first_time(transaction, UUID(int=1), consumer="stock")
        assert not INBOX.first_time(transaction, UUID(int=1), consumer="stock")
    with pytest.raises(LookupError), store.begin() as transaction:
        assert INBOX.first_times(transaction, [(UUID(int=1), ""), ("x", "")], consumer="stock") == [False, True]
        raise LookupError
    with store.begin() as transaction:
        assert INBOX.first_time(transaction, "x", consumer="stock")
    with pytest.raises(NoTransaction):
        INBOX.first_time(transaction, "x", consumer="stock")


@pytest.mark.parametrize("id", ["", "x" * 1025, "\0", "\ud800", None, 7])
def test_ids_that_are_none(id: Any) -> None:
    with MemoryStore().begin() as transaction, pytest.raises(InvalidMessage, match="message_id is"):
        INBOX.first_time(transaction, id, consumer="stock")


def test_other_arguments_that_are_wrong() -> None:
    wrong: Any = None
    with MemoryStore().begin() as transaction:
        with pytest.raises(InvalidMessage, match="type is"):
            INBOX.first_time(transaction, "m", consumer="stock", type="x" * 256)
        with pytest.raises(InvalidSetting, match="consumer is None"):
            INBOX.first_time(transaction, "m", consumer=wrong)
    with pytest.raises(InvalidSetting, match="lock_timeout"):
        Inbox(lock_timeout="5")


# -- what a message is known by --------------------------------------------------------------------------------------


async def test_another_sources_message_with_the_same_id_is_another_message(adapter: Adapter) -> None:
    id = uuid4()
    sources = ("/forged", "/orders", "/orders", None, None)
    async with adapter.transaction() as connection:
        answers = [await done(INBOX.first_time(connection, id, consumer="c", source=source)) for source in sources]
        batch = [(id, "t", "/forged"), (id, "t", "/new"), (id, "t", None), (id, "t", "/new")]
        many = await done(INBOX.first_times(connection, batch, consumer="c"))
    assert answers == [True, True, False, True, False]
    assert many == [False, True, False, False]
