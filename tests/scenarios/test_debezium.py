"""The log, carried by the real Debezium into a real Kafka, with the configuration that `postroad debezium` prints.

Every field arrives as it was added, in order per key, while retention deletes; also after a kill, and after the slot
was dropped, when the sink that follows the slot keeps what no slot had.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from postroad import Message, Relay, RelaySettings, events
from postroad.admin import By, Carrier, Finding, Level, examine_carrier, open_admin
from postroad.brokers.registry import publisher_for
from tests.conftest import serving
from tests.logs import OUTBOX, PostgreSQLLog
from tests.services.debezium import Debezium
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL

SECONDS = 120
ROLE = "debezium"
KEYS = [None, "order-1", "order-2", "Käse ☕"]


def command(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"POSTROAD_DATABASE": url}
    run = [sys.executable, "-m", "postroad", "debezium", *options]
    return subprocess.run(run, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
async def log(postgresql15: PostgreSQL) -> AsyncIterator[PostgreSQLLog]:
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.execute("drop publication if exists postroad")
    yield log
    await log.close()


@pytest.fixture
def slot() -> str:
    return f"debezium_{uuid4().hex[:8]}"


async def prepare(log: PostgreSQLLog) -> None:
    if not await log.execute("select 1 from pg_roles where rolname = $1", ROLE):
        await log.execute(f"create role {ROLE} login replication")
    await log.execute("create publication postroad for table postroad.outbox with (publish = 'insert')")
    await log.execute(f"grant usage on schema postroad to {ROLE}")
    await log.execute(f"grant select on postroad.outbox to {ROLE}")


class Kept(NamedTuple):
    """What was added, to be compared with what arrives."""

    topic: str
    type: str
    key: str | None
    payload: bytes
    content_type: str
    headers: dict[str, str]
    created_at: datetime
    position: int


COLUMNS = "id, topic, type, key, payload, content_type, headers::text, created_at, position"
NEWEST = f"select {COLUMNS} from postroad.outbox where xid = pg_current_xact_id()"


class Shop:
    """Adds messages. Writers of a key lock it, so that its messages have an order."""

    def __init__(self, log: PostgreSQLLog, topics: list[str]) -> None:
        self._log = log
        self._topics = topics
        self._numbers = dict.fromkeys(KEYS, 0)
        self.added: dict[UUID, Kept] = {}

    async def place(self, messages: int) -> None:
        """Add so many with each of several writers at once."""
        await asyncio.gather(*(self._write(writer, messages) for writer in range(5)))

    async def _write(self, writer: int, messages: int) -> None:
        async with self._log.connected() as connection:
            for number in range(messages):
                key = KEYS[(writer + number) % len(KEYS)]
                async with connection.transaction():
                    await connection.execute("select pg_advisory_xact_lock(hashtext($1))", str(key))
                    self._numbers[key] += 1
                    topic = self._topics[0 if key is None else KEYS.index(key) % 2]
                    event = {"number": self._numbers[key], "note": "☕"}
                    own: Any = {} if key is None else {"key": key}
                    message = Message(event, type="order.placed", topic=topic, headers={"writer": str(writer)}, **own)
                    await OUTBOX.add_many(connection, [message])
                    id, *row = await connection.fetchrow(NEWEST)
                    row[5] = json.loads(row[5])
                    self.added[id] = Kept(*row)


async def until_arrived(kafka: Kafka, topics: list[str], wanted: set[UUID], debezium: Debezium) -> list[Any]:
    """All records, as soon as these messages are among them."""
    deadline = time.monotonic() + SECONDS
    while True:
        records = [record for topic in topics for record in await asyncio.to_thread(kafka.records, topic)]
        if wanted <= {UUID(header(record, "ce_id")) for record in records}:
            return records
        assert time.monotonic() < deadline, debezium.output
        await asyncio.sleep(0.2)


def header(record: Any, name: str) -> str:
    return str(dict(record.headers())[name].decode())


def check(records: list[Any], added: dict[UUID, Kept]) -> None:
    """Every field as it was added, and the first arrivals of each key in order."""
    seen: set[UUID] = set()
    last: dict[str, int] = {}
    for record in records:
        id = UUID(header(record, "ce_id"))
        if id in seen:
            continue
        seen.add(id)
        expected = added[id]
        assert record.topic() == expected.topic
        assert record.key() == (None if expected.key is None else expected.key.encode())
        assert record.value() == expected.payload
        assert header(record, "ce_source") == "/tests"
        assert header(record, "ce_type") == expected.type
        assert header(record, "content-type") == expected.content_type
        assert datetime.fromisoformat(header(record, "ce_time")) == expected.created_at
        assert json.loads(header(record, "postroad_headers")) == expected.headers
        assert int(header(record, "position")) == expected.position
        if expected.key is not None:
            number = json.loads(record.value())["number"]
            assert number == last.get(expected.key, 0) + 1, expected.key
            last[expected.key] = number
    assert seen == set(added)


@asynccontextmanager
async def following(log: PostgreSQLLog, slot: str) -> AsyncIterator[list[events.Event]]:
    """A relay that follows the slot, and deletes what was carried."""
    emitted: list[events.Event] = []

    class Listener:
        def on_event(self, event: events.Event) -> None:
            emitted.append(event)

    settings = RelaySettings(retain="0s", cleanup_interval="100ms")
    publisher = publisher_for(f"slot://{slot}")
    async with Relay(log.another_store(), publisher, sink="carried", settings=settings, listeners=[Listener()]):
        yield emitted


async def until_passed(log: PostgreSQLLog) -> None:
    """Everything was carried, as far as the sink knows."""
    async with asyncio.timeout(SECONDS):
        while await log.waiting():  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.1)


async def test_debezium_carries_the_log(log: PostgreSQLLog, kafka: Kafka, slot: str) -> None:
    await prepare(log)
    topics = [kafka.create_topic(), kafka.create_topic()]
    kafka.create_topic(f"__debezium-heartbeat.{slot}")
    printed = command(log.url, "--slot", slot, "--source", "/tests")
    assert printed.returncode == 0, printed.stderr
    shop = Shop(log, topics)
    await shop.place(10)  # what Debezium finds when it is started
    with serving(lambda: Debezium(kafka.bootstrap, json.loads(printed.stdout)["config"])) as debezium:
        async with following(log, slot) as emitted, open_admin(log.url) as admin:
            await shop.place(10)
            await until_arrived(kafka, topics, set(shop.added), debezium)
            debezium.kill()
            await shop.place(10)
            await asyncio.to_thread(debezium.start)
            check(await until_arrived(kafka, topics, set(shop.added), debezium), shop.added)
            await until_passed(log)
            assert any(isinstance(event, events.MessagesDeleted) for event in emitted)
            assert await faults(log, slot) == []

            debezium.stop()
            await shop.place(5)  # what the slot has, and Debezium has not
            await until_dropped(log, slot)
            await until_lost(emitted)
            await shop.place(5)  # what no slot has
            await asyncio.to_thread(debezium.start)
            check(await until_arrived(kafka, topics, set(shop.added), debezium), shop.added)
            assert await log.waiting() == 50, "the sink does not take it for carried"
            assert (await admin.adopt_slot("carried", By("olga", "the snapshot has carried it"))).changed == 1
            await until_passed(log)
    await until_dropped(log, slot)


async def until_dropped(log: PostgreSQLLog, slot: str) -> None:
    gone = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active"
    async with asyncio.timeout(SECONDS):
        while await log.execute("select 1 from pg_replication_slots where slot_name = $1", slot):
            await log.execute(gone, slot)


async def until_lost(emitted: list[events.Event]) -> None:
    async with asyncio.timeout(SECONDS):
        while not any(isinstance(event, events.SlotLost) for event in emitted):  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.05)


# -- the command -----------------------------------------------------------------------------------------------------


async def faults(log: PostgreSQLLog, slot: str = "postroad", role: str = ROLE) -> list[Finding]:
    found = await examine_carrier(log.url, Carrier(slot, "postroad", role))
    return [finding for finding in found if finding.level is not Level.OK]


async def test_what_is_missing_is_named_with_the_statement_that_adds_it(log: PostgreSQLLog) -> None:
    role = f"{ROLE}_2"
    await log.execute(f"drop role if exists {role}")
    found = await asyncio.to_thread(command, log.url, "--role", role)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "there is no publication 'postroad' with postroad.outbox" in found.stderr
    assert f"there is no role '{role}'" in found.stderr
    config = json.loads(found.stdout)["config"]
    assert config["database.password"] == "PASSWORD"
    assert config["database.user"] == role
    await log.execute(f"create role {role}")
    fixed = []
    while wrong := await faults(log, role=role):
        fixed.append(str(wrong[0].fix))
        await log.execute(fixed[-1])
    assert fixed == [
        "create publication postroad for table postroad.outbox with (publish = 'insert')",
        f"alter role {role} login",
        f"alter role {role} replication",
        f"grant usage on schema postroad to {role}",
        f"grant select on postroad.outbox to {role}",
    ]
    await log.execute(f"drop owned by {role}")
    await log.execute(f"drop role {role}")


async def test_wrong_publications_and_slots_are_named(log: PostgreSQLLog, slot: str) -> None:
    await prepare(log)
    await log.execute("alter publication postroad set (publish = 'insert, delete')")
    (finding,) = await faults(log)
    assert "also publishes what retention deletes" in finding.text
    await log.execute(str(finding.fix))
    await log.execute("drop publication postroad")
    await log.execute("create publication postroad for table postroad.outbox where (position > 5)")
    (finding,) = await faults(log)
    assert "does not publish every inserted row" in finding.text
    await log.execute("drop publication postroad")
    await log.execute("create publication postroad for table postroad.outbox with (publish = 'insert')")
    await log.execute("select pg_create_logical_replication_slot($1, 'test_decoding')", slot)
    (finding,) = await faults(log, slot)
    assert "is of test_decoding, not pgoutput" in finding.text
    await until_dropped(log, slot)
    await log.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    (finding,) = await faults(log, slot)
    assert "no program reads the replication slot" in finding.text
    await until_dropped(log, slot)
    assert await faults(log, slot) == []
    found = await asyncio.to_thread(command, log.url, "--slot", slot, "--to", "slot://other")
    assert found.returncode != 0
    assert "they must name the same slot" in found.stderr


def test_only_postgresql_can_be_carried(tmp_path: Path) -> None:
    found = command(f"sqlite:///{tmp_path}/shop.db")
    assert found.returncode != 0
    assert "only PostgreSQL can be read by logical replication" in found.stderr
    assert "Traceback" not in found.stderr
