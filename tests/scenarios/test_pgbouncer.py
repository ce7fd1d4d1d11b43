"""Behind PgBouncer in transaction mode: a session belongs to a client for one transaction, and LISTEN does not work."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from postroad import Inbox, Message, StoreUnavailable
from postroad.consumer.errors import TransactionAborted
from postroad.consumer.transaction_check import check_transaction
from postroad.consumer.transactions import run_steps_async
from postroad.relay import Relay
from postroad.stores.connections import state_through
from postroad.stores.connections.asyncpg import asyncpg_reported
from postroad.stores.cursor import PageLimit, share_out
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from postroad.stores.statements import Arrival
from tests.contracts.test_wakeup import SECONDS, listen_events, relay, running, until_asleep, until_listen_events
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PLENTY, Arrivals, PostgreSQLLog, numbered
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL


@pytest.fixture
async def log(postgresql15: PostgreSQL, pgbouncer15: PgBouncer) -> AsyncIterator[Pooled]:
    """A log whose relays go through the pooler."""
    direct = await PostgreSQLLog.fresh(postgresql15)
    log = Pooled(pgbouncer15.url(direct.url))
    log.direct = direct.url
    yield log
    await log.close()


class Pooled(PostgreSQLLog):
    direct: str

    async def add(self, *messages: Any) -> None:
        """As an application with asyncpg must: its statements can't be kept."""
        async with self.connected(statement_cache_size=0) as connection, connection.transaction():
            await OUTBOX.add_many(connection, messages)


def pooled(log: Any, broker: Any, *, direct: str | None = None, **settings: Any) -> Relay:
    store = PostgreSQLStore(log.url, direct=direct)
    return Relay(store, broker, settings=relay(log, broker, **settings)._settings)


async def test_the_relay_logs_it_polls_and_delivers_everything(log: Pooled, caplog: pytest.LogCaptureFixture) -> None:
    broker = Arrivals()
    async with running(pooled(log, broker, max_idle_backoff="10ms", lanes=4)) as it:
        await until_listen_events(caplog, "listen_lost")
        assert "behind a pooler, and LISTEN does not work there; set direct to the server's own URL" in caplog.text
        await asyncio.gather(*(log.add(*numbered(*range(n, n + 20))) for n in range(0, 200, 20)))
        await broker.until(*range(200))
        assert not any(wait.nap or wait.asleep for wait in it._wakeup._waits)
    assert sorted(broker.numbers) == list(range(200)), "and nothing twice"


async def test_with_a_direct_url_it_is_woken(log: Pooled, caplog: pytest.LogCaptureFixture) -> None:
    broker = Arrivals()
    async with running(pooled(log, broker, direct=log.direct)) as it:
        for number in range(3):
            await until_asleep(it)
            await log.add(*numbered(number))
            await broker.until(number)
    assert listen_events(caplog) == []


async def test_psycopg_adds_through_it(log: Pooled) -> None:
    with psycopg.connect(log.url, prepare_threshold=None) as connection:
        for number in range(10):
            OUTBOX.add_many(connection, numbered(number))
            connection.commit()
    broker = Arrivals()
    await pooled(log, broker).run_until_empty()
    assert sorted(broker.numbers) == list(range(10))


async def test_every_transaction_has_the_settings_that_a_page_is_planned_with(log: Pooled) -> None:
    store = PostgreSQLStore(log.url, connections=2)
    await store.open()
    strangers = [await log.connect(statement_cache_size=0) for _ in range(3)]
    for _ in range(5):
        async with store._connection() as connection:
            assert await connection.fetchval("show plan_cache_mode") == "force_custom_plan"
        for stranger in strangers:
            async with stranger.transaction():
                assert await stranger.fetchval("show plan_cache_mode") == "auto", "and no other session has them"
    for stranger in strangers:
        await stranger.close()
    await store.close()


async def test_a_lane_is_loaded_again_after_a_restart_that_no_connection_noticed(
    log: Pooled, postgresql15: PostgreSQL, pgbouncer15: PgBouncer
) -> None:
    """The pooler keeps its clients while the server is away."""
    broker = Arrivals()
    it = pooled(log, broker, max_idle_backoff="10ms")
    async with running(it):
        await log.add(*numbered(1))
        await broker.until(1)
        made = it._store._servers  # type: ignore[attr-defined]
        postgresql15.restart("immediate")
        await log_again(log, 2)
        await broker.until(2)
        assert it._store._servers > made  # type: ignore[attr-defined]


async def log_again(log: Pooled, number: int) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await log.add(*numbered(number))
            except (asyncpg.PostgresError, OSError):
                await asyncio.sleep(0.05)


async def test_a_crash_of_the_servers_processes_is_noticed_too(log: Pooled, postgresql15: PostgreSQL) -> None:
    """One of them is killed, and the others begin anew under the same parent."""
    store = PostgreSQLStore(log.url, connections=1)
    await store.open()
    try:
        async with store._connection() as connection:
            process, made = await connection.fetchval("select pg_backend_pid()"), store._servers
        os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            while store._servers == made:  # until the server has noticed the kill, the pooler has other connections
                try:
                    async with store._connection():
                        pass
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
    finally:
        await store.close()


async def test_migrating_through_it(log: Pooled) -> None:
    for _ in range(3):
        assert await migrate_postgresql(log.url) == []


async def test_a_cursor_is_on_disk_when_it_was_settled(log: Pooled, postgresql15: PostgreSQL) -> None:
    """It could not be noticed that the server went back in time, so it must not."""
    await log.add(*numbered(1))
    store = PostgreSQLStore(log.url)
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    page = await store.read(lane, lane.cursor, PLENTY)
    await store.settle(lane, page.after)
    postgresql15.restart("immediate")
    assert postgresql15.execute(log.direct, "select position from postroad.lanes").strip() == str(page.after.position)
    await store.close()


@pytest.mark.parametrize("query", ["read_large_page", "read_many_apart"])
async def test_a_row_that_commits_between_two_statements_of_a_read_is_not_passed(log: Pooled, query: str) -> None:
    """Behind a pooler statements are easily in one transaction, where the next transaction id would be an old one."""
    await log.add(Message({"text": "x" * 500}, type="large"))
    store, limit = PostgreSQLStore(log.url), PageLimit(rows=10, payload_bytes=1000)
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    with psycopg.connect(log.direct) as open_long, psycopg.connect(log.direct) as older:
        older.execute("select pg_current_xact_id()")

        class Between(dict[str, str]):
            def __getitem__(self, name: str) -> str:
                if name == query and not open_long.info.transaction_status:
                    OUTBOX.add(open_long, "1", type="late")
                    OUTBOX.add(older, "2", type="next")
                    older.commit()
                return super().__getitem__(name)

        store._sql = Between(store._sql)
        store.many._sql = store._sql
        if query == "read_large_page":
            page = await store.read(lane, lane.cursor, limit)
            messages, after = page.messages, page.after
        else:
            sweep = await store.many.read([(lane, lane.cursor)], limit)
            ((page,),) = share_out(sweep, [(range(256), lane.cursor)], limit=limit, page_rows=10)  # type: ignore[misc]
            messages, after = page.messages, page.after
        assert [message.type for message in messages] == ["large", "next"]
        open_long.commit()
    assert [message.type for message in (await store.read(lane, after, limit)).messages] == ["late"]
    await store.close()


async def test_a_transaction_that_an_error_has_aborted_is_known(log: Pooled) -> None:
    """Whether or not the pooler passes on what the server reports; and the next client finds everything as it was."""
    inbox = Inbox()
    connection = await log.connect(statement_cache_size=0)
    for aborted in (False, True, False):
        async with connection.transaction():
            reported = asyncpg_reported(connection)
            recorded = await inbox.record(connection, [Arrival(str(uuid4()), "")], consumer="stock")
            if aborted:
                with pytest.raises(asyncpg.UndefinedTableError):
                    await connection.execute("select from nowhere")
            state = state_through(connection, reported)
            steps = check_transaction("postroad", connection, state, recorded.transaction)
            if aborted:
                with pytest.raises(TransactionAborted):
                    await run_steps_async(steps)
            else:
                await run_steps_async(steps)
    assert await connection.fetchval("show default_transaction_read_only") == "off"
    await connection.close()
