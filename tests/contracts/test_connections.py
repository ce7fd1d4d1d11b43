"""`Outbox.add` and `Outbox.cancel` keep the same promises on every kind of connection that users have."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad import (
    Cancellation,
    ConnectionClosed,
    IdTaken,
    InvalidMessage,
    Message,
    NotMigrated,
    NoTransaction,
    Outbox,
    Tombstone,
)
from postroad.stores.connections import NeverAwaited
from postroad.stores.sqlite import migrate_sqlite
from tests.adapters.base import Adapter, Database, OnPostgreSQL, OnSQLite, done
from tests.adapters.kinds import KINDS, Kind
from tests.logs import PostgreSQLLog, numbered

OUTBOX = Outbox(source="/orders")


@dataclass
class OrderCreated:
    order: int


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


async def types(database: Database) -> list[str]:
    return [row[0] for row in await database.rows(f"select type from {database.outbox} order by position")]


async def scheduled(database: Database) -> list[str]:
    return [row[0] for row in await database.rows(f"select type from {database.scheduled} order by due_at, number")]


async def orders(database: Database) -> list[int]:
    return [row[0] for row in await database.rows("select id from orders order by id")]


async def test_a_message_is_committed_with_its_row(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        id = await done(OUTBOX.add(connection, OrderCreated(1), key=1))
        assert isinstance(id, UUID)
        ids = await done(OUTBOX.add_many(connection, [Message(OrderCreated(2), key=2), Message("x", type="note")]))
        assert await types(database) == [], "add does not commit"
    assert await orders(database) == [1]
    assert await types(database) == ["order.created", "order.created", "note"]
    written = await database.rows(f"select id from {database.outbox} order by position")
    assert [UUID(str(row[0])) for row in written] == [id, *ids]


async def test_every_column_arrives_as_it_was_given(adapter: Adapter, database: Database) -> None:
    """One at a time and many at once: bytes that are no text, a percent sign, no key, headers of the user's."""
    payload = bytes(range(256))
    messages = [
        Message(payload, type="100%s", topic="t$1?", headers={"tenant": "ä%"}, correlation_id="c", key="ключ '\"{},"),
        Message(b"", type="empty"),
        Message(Tombstone(), type="customer", key=7),
    ]
    async with adapter.transaction() as connection:
        await done(OUTBOX.add_many(connection, messages))
        for each in messages:
            await done(OUTBOX.add_many(connection, [each]))
    columns = "topic, key, type, payload, content_type, headers"
    rows = await database.rows(f"select {columns}, slot from {database.outbox} order by position")
    assert len(rows) == 6
    assert [row[:6] for row in rows[:3]] == [row[:6] for row in rows[3:]]
    topic, key, type, stored, content_type, headers, slot = rows[0]
    assert (topic, key, type, bytes(stored)) == ("t$1?", "ключ '\"{},", "100%s", payload)
    assert content_type == "application/octet-stream"
    assert headers == '{"source":"/orders","correlation_id":"c","tenant":"ä%"}'
    assert 0 <= slot < 1024
    assert rows[1][:4] == ("empty", None, "empty", b"")
    assert rows[2][:6] == ("customer", "7", "customer", b"", "", '{"source":"/orders"}')


async def test_a_message_is_gone_with_its_rollback(adapter: Adapter, database: Database) -> None:
    with pytest.raises(LookupError):
        async with adapter.transaction() as connection:
            await adapter.order(connection, 1)
            await done(OUTBOX.add(connection, OrderCreated(1), key=1))
            await done(OUTBOX.add_many(connection, numbered(1, 2)))
            raise LookupError
    assert await orders(database) == []
    assert await types(database) == []


async def test_a_message_is_gone_with_its_savepoint(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        await done(OUTBOX.add(connection, "x", type="before"))
        with pytest.raises(LookupError):
            async with adapter.savepoint(connection):
                await done(OUTBOX.add(connection, "x", type="gone"))
                raise LookupError
        async with adapter.savepoint(connection):
            await done(OUTBOX.add(connection, "x", type="kept"))
        await done(OUTBOX.add(connection, "x", type="after"))
    assert await types(database) == ["before", "kept", "after"]


async def test_one_round_trip(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await done(OUTBOX.add(connection, OrderCreated(1)))  # drivers may prepare a statement when they first see it
        await done(OUTBOX.add_many(connection, numbered(1, 2)))
        async with adapter.trips(connection) as one:
            await done(OUTBOX.add(connection, OrderCreated(2)))
        async with adapter.trips(connection) as many:
            await done(OUTBOX.add_many(connection, numbered(*range(3, 100))))
        async with adapter.trips(connection) as none:
            assert await done(OUTBOX.add_many(connection, [])) == []
    assert (one.count, many.count, none.count) == (1, 1, 0)
    assert len(await types(database)) == 101


async def test_the_order_is_kept(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await done(OUTBOX.add_many(connection, [Message("x", type=f"n{n}") for n in range(300)]))
    assert await types(database) == [f"n{n}" for n in range(300)]


async def test_adding_a_message_again_is_a_no_op(adapter: Adapter, database: Database) -> None:
    id = uuid4()
    for number in range(2):
        async with adapter.transaction() as connection:
            trace = {"try": str(number)}  # headers may differ
            assert await done(OUTBOX.add(connection, "x", type="first", id=id, headers=trace)) == id
            again = [Message("x", type="first", id=id), Message("x", type="other", id=UUID(int=7))]
            await done(OUTBOX.add_many(connection, again))
    assert await types(database) == ["first", "other"]


@pytest.mark.parametrize("later", [{}, {"deliver_in": "1h"}], ids=["now", "later"])
async def test_an_id_that_another_message_has(adapter: Adapter, database: Database, later: dict[str, Any]) -> None:
    id = uuid4()
    async with adapter.transaction() as connection:
        await done(OUTBOX.add(connection, "x", type="t", key="k", id=id, **later))
    others: list[dict[str, Any]] = [{"type": "other"}, {"topic": "other"}, {"key": "other"}, {}]
    for other in others:
        with pytest.raises(IdTaken, match="another message has"):
            async with adapter.transaction() as connection:
                outbox = OUTBOX if other else Outbox(source="/other")
                fields: dict[str, Any] = {"type": "t", "key": "k", "id": id} | other | later
                await done(outbox.add_many(connection, [Message("x", **fields)]))
    with pytest.raises(IdTaken):
        async with adapter.transaction() as connection:
            many = [Message("y", type="t", key="k", id=id, **later), Message("z", type="t", **later)]
            await done(OUTBOX.add_many(connection, many))
    assert len([*await types(database), *await scheduled(database)]) == 1


async def test_outside_a_transaction(adapter: Adapter, database: Database) -> None:
    async with adapter.outside() as connection:
        with pytest.raises(NoTransaction, match="committed by itself"):
            await done(OUTBOX.add(connection, OrderCreated(1)))
        with pytest.raises(NoTransaction):
            await done(OUTBOX.add_many(connection, numbered(1, 2)))
    assert await types(database) == []


async def test_a_closed_connection(adapter: Adapter, database: Database) -> None:
    async with adapter.closed() as connection:
        with pytest.raises(ConnectionClosed):
            await done(OUTBOX.add(connection, OrderCreated(1)))
    assert await types(database) == []


async def test_a_database_that_was_not_migrated(adapter: Adapter, database: Database) -> None:
    await database.unmigrate()
    with pytest.raises(NotMigrated, match="postroad migrate"):
        async with adapter.transaction() as connection:
            await done(OUTBOX.add(connection, OrderCreated(1)))
    with pytest.raises(NotMigrated, match="postroad migrate"):
        async with adapter.transaction() as connection:
            await done(OUTBOX.add_many(connection, numbered(1, 2)))


async def test_what_is_invalid_is_found_before_anything_is_written(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        no_key: Any = None
        with pytest.raises(InvalidMessage, match="key is None"):
            await done(OUTBOX.add(connection, OrderCreated(1), key=no_key))
        with pytest.raises(InvalidMessage):
            await done(OUTBOX.add_many(connection, [Message(OrderCreated(1)), Message(OrderCreated(2), topic="")]))
    assert await types(database) == []


async def test_a_forgotten_await_complains(
    kind: Kind, adapter: Adapter, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Sync connections have added by then, and have nothing to complain about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeverAwaited)
        async with adapter.transaction() as connection:
            OUTBOX.add(connection, OrderCreated(1))
            gc.collect()
    is_async = kind.name.startswith("a") or kind.name.endswith("async")
    assert [warning.category for warning in caught] == [NeverAwaited] * is_async
    assert ("was never awaited" in caplog.text) == is_async
    assert await types(database) == ["order.created"] * (not is_async)


# -- later -----------------------------------------------------------------------------------------------------------


async def test_a_message_for_later_is_committed_with_its_row(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        id = await done(OUTBOX.add(connection, OrderCreated(1), key=1, deliver_in="10m"))
        mixed = [
            Message("x", type="third", deliver_in=timedelta(hours=1)),
            Message("x", type="now"),
            Message("x", type="second", deliver_at=datetime.now(UTC) + timedelta(minutes=30)),
            Message("x", type="now.too"),
        ]
        ids = await done(OUTBOX.add_many(connection, mixed))
        assert await scheduled(database) == [], "add does not commit"
    assert await orders(database) == [1]
    assert await types(database) == ["now", "now.too"]
    assert await scheduled(database) == ["order.created", "second", "third"]
    written = await database.rows(f"select id from {database.scheduled} order by due_at")
    assert [UUID(str(row[0])) for row in written] == [id, ids[2], ids[0]]


async def test_every_column_for_later_arrives_as_it_was_given(adapter: Adapter, database: Database) -> None:
    at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=-7)))
    payload = bytes(range(256))
    messages = [
        Message(payload, type="100%s", topic="t$1?", headers={"tenant": "ä%"}, key="ключ '\"{},", deliver_at=at),
        Message(b"", type="empty", deliver_in="400d"),
        Message(Tombstone(), type="tombstone", key=7, deliver_in="400d"),
    ]
    async with adapter.transaction() as connection:
        await done(OUTBOX.add_many(connection, messages))
    seconds = "due_at / 1e6" if "_" in database.outbox else "extract(epoch from due_at)::float8"
    columns = f"topic, key, type, payload, content_type, headers, slot, {seconds}, created_at < due_at"
    later, empty, tombstone = sorted(
        await database.rows(f"select {columns} from {database.scheduled}"), key=lambda row: str(row[2])
    )
    assert (later[0], later[1], later[2], bytes(later[3])) == ("t$1?", "ключ '\"{},", "100%s", payload)
    assert (later[4], later[5]) == ("application/octet-stream", '{"source":"/orders","tenant":"ä%"}')
    assert later[7] == pytest.approx(at.timestamp(), abs=1e-5)
    assert 0 <= later[6] < 1024
    assert (*empty[:3], bytes(empty[3])) == ("empty", None, "empty", b"")
    assert (*tombstone[:3], bytes(tombstone[3]), tombstone[4]) == ("tombstone", "7", "tombstone", b"", "")
    assert empty[7] == pytest.approx((datetime.now(UTC) + timedelta(days=400)).timestamp(), abs=60)


async def test_a_message_for_later_is_gone_with_its_rollback(adapter: Adapter, database: Database) -> None:
    with pytest.raises(LookupError):
        async with adapter.transaction() as connection:
            await done(OUTBOX.add(connection, OrderCreated(1), deliver_in="0"))
            await done(OUTBOX.add_many(connection, numbered(1, 2, deliver_in="0")))
            raise LookupError
    assert await scheduled(database) == []


async def test_adding_a_message_for_later_again_is_a_no_op(adapter: Adapter, database: Database) -> None:
    id = uuid4()
    for _ in range(2):
        async with adapter.transaction() as connection:
            await done(OUTBOX.add(connection, "x", type="first", id=id, deliver_in="1h"))
            await done(OUTBOX.add_many(connection, [Message("x", type="first", id=id, deliver_in="2h")]))
    assert await scheduled(database) == ["first"]


async def test_round_trips_for_later(kind: Kind, adapter: Adapter, database: Database) -> None:
    """On PostgreSQL always one; SQLite takes a statement for each table."""
    mixed = [*numbered(*range(50)), *numbered(*range(50, 99), deliver_in="1h")]
    async with adapter.transaction() as connection:
        await done(OUTBOX.add_many(connection, mixed))  # drivers may prepare a statement when they first see it
        async with adapter.trips(connection) as one:
            await done(OUTBOX.add(connection, OrderCreated(1), deliver_in="1h"))
        async with adapter.trips(connection) as many:
            await done(OUTBOX.add_many(connection, mixed))
    assert (one.count, many.count) == (1, 1 if kind.dialect == "postgresql" else 2)


# -- canceling -------------------------------------------------------------------------------------------------------


async def add_committed(adapter: Adapter, **fields: Any) -> Any:
    async with adapter.transaction() as connection:
        return await done(OUTBOX.add(connection, OrderCreated(1), key=1, **fields))


async def test_a_message_is_canceled_with_its_row(adapter: Adapter, database: Database) -> None:
    waiting, sent = await add_committed(adapter, deliver_in="1h"), await add_committed(adapter)
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        assert await done(OUTBOX.cancel(connection, waiting)) is Cancellation.CANCELED
        assert await done(OUTBOX.cancel(connection, sent)) is Cancellation.TOO_LATE
        assert await done(OUTBOX.cancel(connection, uuid4())) is Cancellation.UNKNOWN
        assert await scheduled(database) == ["order.created"], "cancel does not commit"
    assert await orders(database) == [1]
    assert await scheduled(database) == []


async def test_a_cancel_is_undone_by_a_rollback(adapter: Adapter, database: Database) -> None:
    waiting = await add_committed(adapter, deliver_in="1h")
    with pytest.raises(LookupError):
        async with adapter.transaction() as connection:
            assert await done(OUTBOX.cancel(connection, waiting))
            raise LookupError
    assert await scheduled(database) == ["order.created"]


async def test_a_cancel_is_undone_with_its_savepoint(adapter: Adapter, database: Database) -> None:
    gone, stays = await add_committed(adapter, deliver_in="1h"), await add_committed(adapter, deliver_in="1h")
    async with adapter.transaction() as connection:
        await adapter.order(connection, 1)
        with pytest.raises(LookupError):
            async with adapter.savepoint(connection):
                assert await done(OUTBOX.cancel(connection, stays))
                raise LookupError
        assert await done(OUTBOX.cancel(connection, gone))
    rows = await database.rows(f"select id from {database.scheduled}")
    assert [UUID(str(row[0])) for row in rows] == [stays]


async def test_what_the_transaction_itself_has_added_is_canceled(adapter: Adapter, database: Database) -> None:
    async with adapter.transaction() as connection:
        waiting = await done(OUTBOX.add(connection, OrderCreated(1), deliver_in="1h"))
        sent = await done(OUTBOX.add(connection, OrderCreated(1)))
        assert await done(OUTBOX.cancel(connection, waiting)) is Cancellation.CANCELED
        assert await done(OUTBOX.cancel(connection, sent)) is Cancellation.TOO_LATE
    assert await scheduled(database) == []


async def test_round_trips_of_cancel(kind: Kind, adapter: Adapter, database: Database) -> None:
    """On PostgreSQL one. SQLite, where none goes over a wire, takes a few statements."""
    async with adapter.transaction() as connection:
        await done(OUTBOX.cancel(connection, uuid4()))
        async with adapter.trips(connection) as trips:
            await done(OUTBOX.cancel(connection, uuid4()))
    assert trips.count == 1 if kind.dialect == "postgresql" else trips.count <= 4


async def test_cancel_outside_a_transaction(adapter: Adapter, database: Database) -> None:
    waiting = await add_committed(adapter, deliver_in="1h")
    async with adapter.outside() as connection:
        with pytest.raises(NoTransaction, match="by itself"):
            await done(OUTBOX.cancel(connection, waiting))
    assert await scheduled(database) == ["order.created"]


async def test_cancel_on_a_closed_connection(adapter: Adapter, database: Database) -> None:
    async with adapter.closed() as connection:
        with pytest.raises(ConnectionClosed):
            await done(OUTBOX.cancel(connection, uuid4()))


async def test_later_and_cancel_in_a_database_that_was_not_migrated(adapter: Adapter, database: Database) -> None:
    await database.unmigrate()
    with pytest.raises(NotMigrated, match="postroad migrate"):
        async with adapter.transaction() as connection:
            await done(OUTBOX.cancel(connection, uuid4()))
    with pytest.raises(NotMigrated, match="postroad migrate"):
        async with adapter.transaction() as connection:
            await done(OUTBOX.add_many(connection, [*numbered(1, 2), *numbered(3, deliver_in="1h")]))


async def test_later_and_cancel_in_a_database_of_an_older_version(adapter: Adapter, database: Database) -> None:
    """There `add` works as it did, and only what is new asks for the migration."""
    await database.rows(f"drop table {database.scheduled}")
    if "." in database.scheduled:
        await database.rows("drop function postroad.cancel(uuid)")
    for new in (
        lambda connection: OUTBOX.cancel(connection, uuid4()),
        lambda connection: OUTBOX.add(connection, OrderCreated(1), deliver_in="1h"),
    ):
        with pytest.raises(NotMigrated, match="is not there, or too old, and this postroad needs version"):
            async with adapter.transaction() as connection:
                await done(new(connection))
    async with adapter.transaction() as connection:
        await done(OUTBOX.add(connection, OrderCreated(1)))
    assert await types(database) == ["order.created"]


async def test_a_forgotten_await_of_cancel_complains(
    kind: Kind, adapter: Adapter, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeverAwaited)
        async with adapter.transaction() as connection:
            OUTBOX.cancel(connection, uuid4())
            gc.collect()
    is_async = kind.name.startswith("a") or kind.name.endswith("async")
    assert [warning.category for warning in caught] == [NeverAwaited] * is_async
    assert ("nothing was canceled for" in caplog.text) == is_async
