"""Logs with messages waiting in them, made inside the database: what a relay finds after a long pause."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from benchmarks.payload import PAYLOAD_SQL, key_sql, payload, transactions
from postroad.brokers.registry import publisher_for
from postroad.config import DEFAULT_SCHEMA
from postroad.message import new_id, slot_of
from postroad.sink_filter import EVERYTHING, SinkFilter
from postroad.stores import store_for
from postroad.stores.postgresql import migrate_postgresql
from postroad.stores.sqlite import migrate_sqlite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from postroad.stores.base import Start
    from tests.services.postgresql import PostgreSQL

TOPIC = "order.placed"
HEADERS = '{"source":"/benchmarks"}'
LANES = 4

# Ids as Outbox.add makes them: the time in milliseconds, then a version and random bits.
_FILL = """
insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
select id, {topic}, key, {schema}.slot_of(coalesce(key, id::text)), '{type}',
       convert_to({payload}, 'UTF8'), 'application/json', '{headers}'
  from (select n, {key} as key,
               overlay(overlay(gen_random_uuid()::text placing '7' from 15) placing
                       overlay(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                               placing '-' from 9 for 0) from 1 for 13)::uuid as id
          from generate_series({first}, {last}) n) message
"""


def create_log(server: PostgreSQL) -> str:
    """A database with an empty log; its URL."""
    url = server.create_database()
    asyncio.run(migrate_postgresql(url))
    return url


def create_sinks(
    url: str,
    sinks: Sequence[str],
    *,
    start: Start = "oldest",
    to: str = "null://",
    lanes: int = LANES,
    filter: SinkFilter = EVERYTHING,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Create these sinks, with cursors, before the messages that they are going to deliver there. `given` are settings
    of the destination's publisher.
    """
    destination = publisher_for(to, **given or {}).destination

    async def create() -> None:
        store = store_for(url)
        await store.open()
        try:
            for sink in sinks:
                await store.leases.create(sink, destination, lanes=lanes, start=start, filter=filter)
        finally:
            await store.close()

    asyncio.run(create())


def fill(server: PostgreSQL, url: str, messages: int, *, keys: int = 0, topic: str | None = None) -> None:
    """Add messages, in transactions of some thousands."""
    server.psql(url, ";".join(fill_sql(first, last, keys=keys, topic=topic) for first, last in transactions(messages)))


def fill_sql(first: int, last: int, *, keys: int = 0, key: str | None = None, topic: str | None = None) -> str:
    """A statement that adds the messages with these numbers. `key` and `topic` are SQL for those of number n."""
    return _FILL.format(
        schema=DEFAULT_SCHEMA,
        topic=topic or f"'{TOPIC}'",
        type=TOPIC,
        headers=HEADERS,
        payload=PAYLOAD_SQL,
        key=key or key_sql(keys),
        first=first,
        last=last,
    )


def fill_sqlite(path: Path, messages: int) -> None:
    """Make an SQLite file with a log of so many messages."""
    migrate_sqlite(path)
    columns = "id, topic, key, slot, type, payload, content_type, headers"
    insert = f"insert into {DEFAULT_SCHEMA}_outbox ({columns}) values (?, ?, ?, ?, ?, ?, ?, ?)"
    with closing(sqlite3.connect(path)) as connection:
        for first, last in transactions(messages):
            with connection:
                connection.executemany(insert, (_sqlite_row(n) for n in range(first, last + 1)))


def _sqlite_row(n: int) -> tuple[object, ...]:
    message_id = new_id()
    slot = slot_of(None, message_id)
    return (str(message_id), TOPIC, None, slot, TOPIC, payload(n).encode(), "application/json", HEADERS)
