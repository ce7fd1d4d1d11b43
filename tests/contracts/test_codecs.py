"""Codecs keep the same promises on every kind of connection: a message is committed with its payload, or not at all."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from postroad import IdTaken, InvalidMessage, Message, Outbox, PayloadsUnavailable, Tombstone
from postroad.codecs import ClaimCheck, Encrypt, KeyRing, Zstd, decoded
from postroad.message import StoredMessage
from postroad.stores.connections import Pending
from postroad.stores.memory import MemoryStore
from postroad.stores.sqlite import migrate_sqlite
from tests.adapters.base import Adapter, Database, OnPostgreSQL, OnSQLite, done
from tests.adapters.kinds import KINDS, Kind
from tests.logs import PostgreSQLLog
from tests.payload_stores import Payloads
from tests.services.postgresql import PostgreSQL

KEYS = KeyRing({"2026-11": os.urandom(32)}, current="2026-11")
LARGE = {"text": "0123456789" * 1000, "noise": os.urandom(3000).hex()}
SMALL = {"text": "small"}


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


@pytest.fixture
def payloads() -> Payloads:
    return Payloads()


def codecs(payloads: Payloads) -> list[Any]:
    return [ClaimCheck(payloads, above="1KB"), Zstd(above="1KB"), Encrypt(KEYS)]


def outbox(payloads: Payloads) -> Outbox:
    return Outbox(source="/orders", codecs=codecs(payloads))


async def stored(database: Database, *, table: str | None = None) -> list[StoredMessage]:
    order = "position" if table is None else "due_at, number"
    columns = "id, topic, key, slot, type, payload, content_type, headers"
    rows = await database.rows(f"select {columns} from {table or database.outbox} order by {order}")
    return [
        StoredMessage(at, UUID(str(id)), topic, key, slot, type, bytes(payload), content, str(headers), 0)
        for at, (id, topic, key, slot, type, payload, content, headers) in enumerate(rows, start=1)
    ]


async def test_what_was_added_is_read_as_it_was(adapter: Adapter, database: Database, payloads: Payloads) -> None:
    """One, many, scheduled; large and small; compressed, encrypted and stored elsewhere."""
    add, soon = outbox(payloads), datetime.now(UTC) + timedelta(days=1)
    async with adapter.transaction() as connection:
        await done(add.add(connection, LARGE, type="first", key=1))
        await adapter.order(connection, 1)
        several = [
            Message(LARGE, type="second"),
            Message(SMALL, type="third"),
            Message(Tombstone(), type="gone", key=7),
            Message(LARGE, type="fourth"),
            Message(LARGE, type="later", deliver_in="1h"),
        ]
        await done(add.add_many(connection, several))
        await done(add.add(connection, LARGE, type="on time", deliver_at=soon))
        assert await database.rows(f"select 1 from {database.outbox}") == [], "a savepoint's release does not commit"
    messages = await stored(database)
    scheduled = await stored(database, table=database.scheduled)
    assert [each.type for each in messages] == ["first", "second", "third", "gone", "fourth"]
    assert [each.type for each in scheduled] == ["later", "on time"]
    assert len(payloads.objects) == 5
    for message in [*messages, *scheduled]:
        if message.is_tombstone:
            assert message.all_headers == {"source": "/orders"}
            continue
        large = message.type != "third"
        assert (message.payload == b"") is large
        assert b"small" not in message.payload
        assert message.headers == {}, "what codecs did is not among the user's own headers"
        opened = await decoded(message, codecs(payloads))
        assert opened.headers == {}
        event = LARGE if large else SMALL
        assert opened.payload.decode() == str(event).replace("'", '"').replace(": ", ":").replace(", ", ",")


async def test_a_rollback_leaves_no_row(adapter: Adapter, database: Database, payloads: Payloads) -> None:
    with pytest.raises(LookupError):
        async with adapter.transaction() as connection:
            await done(outbox(payloads).add(connection, LARGE, type="large"))
            raise LookupError
    assert await stored(database) == []
    assert len(payloads.objects) == 1, "the sweep deletes it"


async def test_a_put_that_fails_takes_only_its_row_back(
    adapter: Adapter, database: Database, payloads: Payloads
) -> None:
    """An application that catches the error and commits must not commit a message without its payload."""
    add = outbox(payloads)
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        await done(add.add(connection, LARGE, type="before"))
        payloads.fails = True
        with pytest.raises(PayloadsUnavailable):
            await done(add.add(connection, LARGE, type="failed"))
        with pytest.raises(PayloadsUnavailable):
            await done(add.add_many(connection, [Message(SMALL, type="small"), Message(LARGE, type="failed, too")]))
        payloads.fails = False
        await adapter.order(connection, 2)
        await done(add.add(connection, LARGE, type="after"))
    assert [each.type for each in await stored(database)] == ["before", "after"]
    assert [row[0] for row in await database.rows("select id from orders order by id")] == [1, 2]
    assert len(payloads.objects) == 2


async def test_a_cancelled_put_takes_its_row_back(adapter: Adapter, database: Database, payloads: Payloads) -> None:
    payloads.blocked = asyncio.Event()
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        adding = outbox(payloads).add(connection, LARGE, type="cancelled")
        if not isinstance(adding, Pending):
            return  # what is not awaited can't be cancelled
        task = asyncio.ensure_future(adding)
        await payloads.blocked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await stored(database) == []
    assert await database.rows("select id from orders") == [(1,)]


async def test_adding_again_is_recognized(adapter: Adapter, database: Database, payloads: Payloads) -> None:
    """Encrypted or not: the same message has the same bytes."""
    id, other = uuid4(), uuid4()
    plain = Outbox(source="/orders", codecs=[Zstd(above="1KB"), Encrypt(KEYS)])
    async with adapter.transaction() as connection:
        for _ in range(2):
            await done(plain.add(connection, LARGE, type="same", id=id))
            await done(outbox(payloads).add(connection, LARGE, type="same", id=other))
    assert [each.id for each in await stored(database)] == [id, other]
    [_, elsewhere] = await stored(database)
    assert elsewhere.all_headers["dataref"] in payloads.objects
    with pytest.raises(IdTaken):
        async with adapter.transaction() as connection:
            await done(plain.add(connection, SMALL, type="same", id=id))


async def test_the_row_is_written_before_its_payload_is_stored(postgresql15: PostgreSQL) -> None:
    """A sweep knows by its transaction's id whether a payload is still wanted, and only an INSERT gives it one."""
    log = await PostgreSQLLog.fresh(postgresql15)
    written: list[Any] = []

    class Looking(Payloads):
        def put(self, path: str, payload: bytes) -> None:
            written.append(connection.execute("select pg_current_xact_id_if_assigned()::text").fetchone())
            written.append(connection.execute("select headers ->> 'dataref' from postroad.outbox").fetchone())

    with psycopg.connect(log.url) as connection:
        outbox(Looking()).add(connection, LARGE, type="large")
        [(id,), (path,)] = written
    assert id is not None
    assert path in [each.all_headers["dataref"] for each in await stored(OnPostgreSQL(log))]


# -- without a database ----------------------------------------------------------------------------------------------


def test_the_memory_store_has_savepoints_too(payloads: Payloads) -> None:
    add, store = outbox(payloads), MemoryStore()
    with store.begin() as transaction:
        add.add(transaction, SMALL, type="before")
        payloads.fails = True
        with pytest.raises(PayloadsUnavailable):
            add.add(transaction, LARGE, type="failed")
        assert [row.type for row in transaction.rows] == ["before"]


def test_a_row_that_is_still_too_large_is_refused() -> None:
    """`largest_payload` limits what is written, not what was compressed."""
    with MemoryStore().begin() as transaction:
        add = Outbox(source="/x", codecs=[Zstd()], largest_payload=4000)
        add.add(transaction, {"zeros": "0" * 100_000}, type="shrinks")
        with pytest.raises(InvalidMessage, match=r"has [\d,]+ bytes and the limit is 4,000; have it stored elsewhere"):
            add.add(transaction, os.urandom(5000), type="does.not")


def test_headers_of_codecs_are_reserved() -> None:
    with MemoryStore().begin() as transaction:
        for name in ("content_encoding", "encryption", "dataref"):
            with pytest.raises(InvalidMessage, match=f"header '{name}' is postroad's own"):
                Outbox(source="/x").add(transaction, SMALL, type="x", headers={name: "zstd"})
