"""Each check of `postroad doctor` on real servers: made ill, found, and mended, by the fix itself where that is SQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from postroad.admin import By, ConsumerFacts, Finding, Level, Limits, SecretFile, examine, open_admin
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.permissions import all_may_read
from postroad.relay import Relay
from postroad.stores import postgresql_facts
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.grants import grants_script
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import take_lanes
from tests.logs import PostgreSQLLog, numbered
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL

NOW = timedelta(0)
BY = By("anna", "a test")
SECONDS = 60


@pytest.fixture
async def log(postgresql: PostgreSQL) -> AsyncIterator[PostgreSQLLog]:
    log = await PostgreSQLLog.fresh(postgresql)
    yield log
    await log.close()


async def found(url: str, check: str, *, watch_seconds: float = 0.0, **options: Any) -> list[Finding]:
    """What one check finds."""
    findings = [each for each in await examine(url, watch_seconds=watch_seconds, **options) if each.check == check]
    assert findings, f"{check} was not made"
    assert all(each.link == f"docs/doctor.md#{check}" for each in findings)
    assert all((each.fix is None) == (each.level in {Level.OK, Level.SKIPPED}) for each in findings)
    return findings


async def the_one(url: str, check: str, **options: Any) -> Finding:
    (finding,) = await found(url, check, **options)
    return finding


async def until_found(level: Level, url: str, check: str, **options: Any) -> Finding:
    """Statistics and sessions are not up to date at once."""
    async with asyncio.timeout(SECONDS):
        while True:
            findings = await found(url, check, **options)
            if findings[0].level is level:
                return findings[0]
            await asyncio.sleep(0.05)


async def run_fix(log: PostgreSQLLog, finding: Finding) -> None:
    """Run a fix that is SQL, as it is shown, statement by statement."""
    assert finding.fix is not None
    async with log.connected() as connection:
        for statement in finding.fix.partition(" -- ")[0].split("; "):
            await connection.execute(statement)


# -- what SQL makes ill and the fix mends ----------------------------------------------------------------------------


class Illness(NamedTuple):
    check: str
    level: Level
    sql: str
    says: str
    limits: Limits = Limits()


FOREIGN_TRIGGER = """
    create or replace function public.noise() returns trigger language plpgsql as 'begin return new; end';
    create trigger "Noise" before insert on postroad.outbox for each row execute function public.noise()"""
MANY_DEAD = """
    insert into postroad.progress (sink, lane, position, snapshot, published, refused)
    select 's', 0, i, '1:1:', 0, 0 from generate_series(1, 5000) i; delete from postroad.progress"""
COLD_UPDATES = """
    insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot)
    values ('s', 0, 0, 1023, 0, '1:1:');
    create index "By position" on postroad.lanes (position);
    do $$ begin for i in 1..500 loop update postroad.lanes set position = i; end loop; end $$"""

BY_SQL = [
    Illness("triggers", Level.ERROR, "alter table postroad.outbox disable trigger wake_naps", "wake_naps on postroad"),
    Illness("triggers", Level.WARNING, FOREIGN_TRIGGER, "a trigger Noise that is not postroad's"),
    Illness("log-indexes", Level.WARNING, "create index slow on postroad.outbox (topic)", "an index slow"),
    Illness(
        "invalid-indexes",
        Level.ERROR,
        "update pg_index set indisvalid = false where indexrelid = 'postroad.outbox_xid'::regclass",
        "postroad.outbox_xid of outbox is invalid",
    ),
    Illness(
        "replication-slots",
        Level.WARNING,
        "select pg_create_physical_replication_slot('forgotten', true)",
        "the replication slot forgotten and keeps",
    ),
    Illness("autovacuum", Level.ERROR, "alter table postroad.lanes set (autovacuum_enabled = off)", "postroad.lanes"),
    Illness(
        "dead-rows",
        Level.WARNING,
        f"alter table postroad.progress set (autovacuum_enabled = off); {MANY_DEAD}",
        "postroad.progress has 5,000 dead rows",
        Limits(dead_rows=1000),
    ),
    Illness("hot-updates", Level.WARNING, COLD_UPDATES, "only 0% of 500 updates", Limits(hot_updates=100)),
]  # fmt: skip


@pytest.mark.parametrize("illness", BY_SQL, ids=lambda each: f"{each.check}-{each.level}")
async def test_what_is_made_ill_is_found_and_the_fix_mends_it(log: PostgreSQLLog, illness: Illness) -> None:
    assert (await the_one(log.url, illness.check, limits=illness.limits)).level is Level.OK
    async with log.connected() as connection:
        for statement in illness.sql.split(";\n"):
            await connection.execute(statement)
    finding = await until_found(illness.level, log.url, illness.check, limits=illness.limits)
    assert illness.says in finding.text
    assert finding.evidence
    await run_fix(log, finding)
    await until_found(Level.OK, log.url, illness.check, limits=illness.limits)


async def test_a_trigger_that_is_missing(log: PostgreSQLLog) -> None:
    await log.execute("drop trigger refuse_row on postroad.scheduled")
    finding = await the_one(log.url, "triggers")
    assert finding.level is Level.ERROR
    assert "refuse_row on postroad.scheduled is missing" in finding.text
    async with log.connected() as connection:
        await connection.execute(POSTGRESQL.migration_script())  # what the fix pipes into psql
    assert (await the_one(log.url, "triggers")).level is Level.OK


# -- the schema and the server ---------------------------------------------------------------------------------------


async def test_the_schema(log: PostgreSQLLog) -> None:
    assert (await the_one(log.url, "schema")).level is Level.OK
    await log.execute("update postroad.installation set min_client = 99")
    assert "asks for a client of version 99" in (await the_one(log.url, "schema")).text
    await log.execute("update postroad.installation set min_client = 1")
    await log.execute("update postroad.migrations set version = 0")
    assert "at version 0, and this postroad needs 1" in (await the_one(log.url, "schema")).text
    await log.execute("drop schema postroad cascade")
    finding = await the_one(log.url, "schema")
    assert (finding.level, finding.fix) == (Level.ERROR, "postroad migrate --schema postroad")
    assert (await the_one(log.url, "triggers")).level is Level.SKIPPED
    await log.migrate()
    assert (await the_one(log.url, "schema")).level is Level.OK


async def test_a_log_of_another_cluster(log: PostgreSQLLog) -> None:
    assert (await the_one(log.url, "server")).level is Level.OK
    await log.execute("update postroad.installation set system_identifier = 1")
    finding = await the_one(log.url, "server")
    assert (finding.level, finding.evidence["moved"]) == (Level.WARNING, True)
    ((identifier,),) = await log.execute("select system_identifier from postroad.installation")
    assert identifier == 1, "doctor has converted nothing"
    await log.store.open()
    assert (await the_one(log.url, "server")).level is Level.OK


async def test_a_sequence_with_a_cache(log: PostgreSQLLog) -> None:
    await log.execute("alter table postroad.outbox alter position set cache 10")
    finding = await the_one(log.url, "server")
    assert "caches 10 values" in finding.text
    await log.execute(str(finding.fix).partition(";")[0])
    assert (await the_one(log.url, "server")).level is Level.OK


async def test_a_log_that_is_replicated_into(log: PostgreSQLLog) -> None:
    await log.execute(
        "create subscription copied connection 'host=127.0.0.1 port=1' publication p "
        "with (connect = false, slot_name = none)"
    )
    try:
        await log.execute(
            "insert into pg_subscription_rel (srsubid, srrelid, srsubstate) "
            "select oid, 'postroad.outbox'::regclass, 'r' from pg_subscription where subname = 'copied'"
        )
        assert "logical replication subscription" in (await the_one(log.url, "server")).text
    finally:
        await log.execute("drop subscription copied")
    assert (await the_one(log.url, "server")).level is Level.OK


async def test_a_standby(postgresql15: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    with postgresql15.standby() as standby:
        finding = await the_one(standby.url(log.url.rpartition("/")[2]), "server")
        assert (finding.level, finding.evidence["standby"]) == (Level.ERROR, True)
    assert (await the_one(log.url, "server")).level is Level.OK


async def test_a_database_that_is_away(log: PostgreSQLLog, postgresql: PostgreSQL) -> None:
    postgresql.stop()
    try:
        findings = await examine(log.url)
        assert {each.check for each in findings if each.level is Level.ERROR} == {"database"}
        assert "can't be reached" in next(each.text for each in findings if each.check == "database")
    finally:
        postgresql.start()
    assert (await the_one(log.url, "database")).level is Level.OK


# -- notifications ---------------------------------------------------------------------------------------------------


async def test_a_pooler_without_direct(postgresql15: PostgreSQL, pgbouncer15: PgBouncer) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    pooled = pgbouncer15.url(log.url)
    assert (await the_one(log.url, "listen")).level is Level.OK
    assert "a pooler is in between" in (await the_one(pooled, "listen")).text
    assert "leads to a pooler, too" in (await the_one(pooled, "listen", direct=pooled)).text
    assert "another database" in (await the_one(pooled, "listen", direct=postgresql15.url())).text
    assert (await the_one(pooled, "listen", direct=log.url)).level is Level.OK
    assert not [each for each in await examine(pooled, watch_seconds=0) if each.level is Level.ERROR]


async def test_the_notification_queue(postgresql18: PostgreSQL) -> None:
    """From 17 on its size can be set, and so can be tested."""
    postgresql18.start()
    postgresql18.execute(postgresql18.url(), "alter system set max_notify_queue_pages = 64")
    try:
        postgresql18.restart()
        log = await PostgreSQLLog.fresh(postgresql18)
        sleeper, writer = await log.connect(), await log.connect()
        await sleeper.execute("listen postroad")
        await sleeper.execute("begin")
        for usage, level in ((0.2, Level.WARNING), (0.6, Level.ERROR)):
            while await writer.fetchval("select pg_notification_queue_usage()") <= usage:
                await writer.execute("select pg_notify('x', repeat('x', 7000) || i) from generate_series(1, 5) i")
            assert (await the_one(log.url, "notification-queue")).level is level
        await sleeper.execute("rollback")
        await writer.execute("select pg_notify('x', 'the last one that listens empties the queue')")
        await until_found(Level.OK, log.url, "notification-queue")
        await log.close()
    finally:
        postgresql18.start()
        postgresql18.execute(postgresql18.url(), "alter system reset max_notify_queue_pages")
        postgresql18.restart()


# -- transactions and sessions ---------------------------------------------------------------------------------------


async def test_an_old_transaction(log: PostgreSQLLog) -> None:
    limits = Limits(transaction=timedelta(milliseconds=1))
    other = await log.connect(server_settings={"application_name": "forgotten"})
    await other.execute("begin; select 1")
    finding = await until_found(Level.WARNING, log.url, "oldest-transaction", limits=limits)
    assert f"process {other.get_server_pid()}" in finding.text
    await run_fix(log, finding)
    await until_found(Level.OK, log.url, "oldest-transaction", limits=Limits())


async def test_the_age_of_a_transaction_that_the_role_may_not_see(log: PostgreSQLLog) -> None:
    stranger = await stranger_to(log)
    other = await log.connect()
    await other.execute("begin; select pg_current_xact_id()")
    finding = await the_one(stranger, "oldest-transaction")
    assert finding.level is Level.SKIPPED
    assert "grant pg_read_all_stats to doctor_stranger" in finding.text
    await other.execute("rollback")


async def test_a_prepared_transaction(log: PostgreSQLLog) -> None:
    limits = Limits(prepared_transaction=NOW)
    async with log.connected() as connection:
        await connection.execute("begin; select pg_current_xact_id(); prepare transaction 'it''s old'")
    finding = await the_one(log.url, "prepared-transactions", limits=limits)
    assert finding.level is Level.WARNING
    await run_fix(log, finding)
    assert (await the_one(log.url, "prepared-transactions", limits=limits)).level is Level.OK


async def test_a_session_that_locks_what_relays_need(log: PostgreSQLLog) -> None:
    other = await log.connect()
    await other.execute("begin; lock table postroad.lanes")
    finding = await until_found(Level.ERROR, log.url, "locks")
    assert f"is locked by process {other.get_server_pid()} of role postgres" in finding.text
    await run_fix(log, finding)
    await until_found(Level.OK, log.url, "locks")


async def test_the_age_of_transaction_ids(log: PostgreSQLLog, postgresql: PostgreSQL) -> None:
    async with log.connected() as connection:
        for _ in range(100):
            await connection.execute("select pg_current_xact_id()")
        for limits, level in (
            (Limits(transaction_ids=90), Level.WARNING),
            (Limits(transaction_ids_error=90), Level.ERROR),
        ):
            assert (await the_one(log.url, "transaction-ids", limits=limits)).level is level
        await connection.execute("vacuum (freeze)")
    assert (await the_one(log.url, "transaction-ids", limits=Limits(transaction_ids=90))).level is Level.OK


async def test_autovacuum_of_the_server(log: PostgreSQLLog, postgresql: PostgreSQL) -> None:
    postgresql.execute(postgresql.url(), "alter system set autovacuum = off")
    postgresql.execute(postgresql.url(), "select pg_reload_conf()")
    try:
        finding = await until_found(Level.ERROR, log.url, "autovacuum")
        assert "the server has autovacuum = off" in finding.text
        await run_fix(log, finding)
        await until_found(Level.OK, log.url, "autovacuum")
    finally:
        postgresql.execute(postgresql.url(), "alter system reset autovacuum")
        postgresql.execute(postgresql.url(), "select pg_reload_conf()")


# -- roles and limits ------------------------------------------------------------------------------------------------


async def create_role(log: PostgreSQLLog, name: str) -> None:
    """Roles belong to the server: another test may have made it."""
    await log.execute(f"do $$ begin create role {name} login; exception when duplicate_object then null; end $$")


async def stranger_to(log: PostgreSQLLog) -> str:
    """The URL of a role that may connect, and nothing else."""
    await create_role(log, "doctor_stranger")
    return log.url.replace("postgres@", "doctor_stranger@")


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("statement_timeout = '5s'", "role doctor_stranger"),
        ("statement_timeout = 5000", "database {database}"),
        ("idle_session_timeout = '1min'", "role doctor_stranger in database {database}"),
    ],
)
async def test_a_timeout_of_the_relays_role(log: PostgreSQLLog, setting: str, where: str) -> None:
    url, database = await stranger_to(log), log.url.rpartition("/")[2]
    place = where.format(database=database)
    assert (await the_one(url, "timeouts")).level is Level.OK
    try:
        await log.execute(f"alter {place} set {setting}")
        finding = await the_one(url, "timeouts")
        assert (finding.level, finding.evidence["name"]) == (Level.WARNING, setting.partition(" ")[0])
        await run_fix(log, finding)
        assert (await the_one(url, "timeouts")).level is Level.OK
    finally:
        for each in (place, f"role doctor_stranger in database {database}"):
            await log.execute(f"alter {each} reset all")


async def test_few_connections_are_left(log: PostgreSQLLog) -> None:
    url, database = await stranger_to(log), log.url.rpartition("/")[2]
    assert (await the_one(url, "connections")).level is Level.OK
    for what in (f"database {database}", "role doctor_stranger"):
        await log.execute(f"alter {what} connection limit 8")
        finding = await the_one(url, "connections")
        assert finding.level is Level.WARNING
        assert f"{what} has" in finding.text
        await run_fix(log, finding)
        assert (await the_one(url, "connections")).level is Level.OK


async def test_clocks_that_differ(log: PostgreSQLLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await the_one(log.url, "clock")).level is Level.OK
    real = time.time
    for off, level in ((10, Level.WARNING), (-100, Level.ERROR)):
        late = SimpleNamespace(time=lambda off=off: real() - off)
        monkeypatch.setattr(postgresql_facts, "time", late)  # this machine's clock is wrong
        finding = await the_one(log.url, "clock")
        assert finding.level is level
        assert abs(finding.evidence["difference_seconds"] - off) < 5


async def test_an_application_that_reads_payloads(log: PostgreSQLLog) -> None:
    await create_role(log, "doctor_shop")
    async with log.connected() as owner:
        await owner.execute(grants_script("doctor_shop"))
        assert (await the_one(log.url, "application-rights")).level is Level.OK
        await owner.execute("grant all on all tables in schema postroad to doctor_shop")
        finding = await the_one(log.url, "application-rights")
        assert (finding.level, finding.evidence["role"]) == (Level.WARNING, "doctor_shop")
        await owner.execute(str(finding.fix).partition(";")[0])
        await owner.execute(grants_script("doctor_shop"))
    assert (await the_one(log.url, "application-rights")).level is Level.OK


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        relay.stop()
        await task


async def test_a_relay_that_is_a_superuser(log: PostgreSQLLog) -> None:
    assert (await the_one(log.url, "relay-rights")).level is Level.SKIPPED
    await create_role(log, "doctor_relay")
    async with log.connected() as owner:
        await owner.execute(grants_script("doctor_relay", kind="relay"))
    async with running(Relay(PostgreSQLStore(log.url), NullPublisher())):
        finding = await until_found(Level.WARNING, log.url, "relay-rights")
        assert finding.evidence["role"] == "postgres"
    async with running(Relay(PostgreSQLStore(log.url.replace("postgres@", "doctor_relay@")), NullPublisher())):
        finding = await until_found(Level.OK, log.url, "relay-rights")
        assert finding.evidence["roles"] == ["doctor_relay"]


# -- the log and relays ----------------------------------------------------------------------------------------------


async def test_a_forgotten_sink(log: PostgreSQLLog) -> None:
    await log.store.open()
    await take_lanes(log.store, "it's old")
    assert (await the_one(log.url, "forgotten-sink")).level is Level.OK
    await log.execute("update postroad.sinks set served_at = now() - interval '3 days'")
    await log.execute("update postroad.lanes set owner = null, lease_until = null")
    await log.execute("update postroad.relays set heartbeat_at = now() - interval '3 days'")
    finding = await the_one(log.url, "forgotten-sink")
    assert finding.level is Level.ERROR
    assert "for 3 d" in finding.text
    assert "postroad sink remove 'it'\"'\"'s old'" in str(finding.fix), "it can be pasted into a shell"
    await log.execute("delete from postroad.relays")
    async with open_admin(log.url) as admin:
        await admin.remove_sink("it's old", BY)
    assert (await the_one(log.url, "forgotten-sink")).level is Level.SKIPPED


async def test_an_old_log(log: PostgreSQLLog) -> None:
    await log.add(*numbered(1))
    settings = RelaySettings(retain="1d")
    assert (await the_one(log.url, "log-age", relay=settings)).level is Level.OK
    await log.execute("update postroad.outbox set created_at = now() - interval '2 days'")
    finding = await the_one(log.url, "log-age", relay=settings)
    assert finding.level is Level.WARNING
    assert "no sink exists yet" in finding.text
    await Relay(PostgreSQLStore(log.url), NullPublisher()).run_until_empty()
    assert "every sink has passed it" in (await the_one(log.url, "log-age", relay=settings)).text
    async with open_admin(log.url) as admin:
        await admin.cleanup(timedelta(days=1), BY)
    assert (await the_one(log.url, "log-age", relay=settings)).level is Level.OK


RELAY = """insert into postroad.relays (owner, pid, alive_until, heartbeat_at, sink, host, version)
           values ($1, $2, now() + $3, now() + least($3, interval '0'), 's', 'h', $4)"""


async def add_relay(log: PostgreSQLLog, pid: int, version: str = "1", alive: timedelta = timedelta(hours=1)) -> None:
    await log.execute(RELAY, uuid4(), pid, alive, version)


async def test_more_relays_than_lanes(log: PostgreSQLLog) -> None:
    await log.store.open()
    await take_lanes(log.store, "s", lanes=2)
    await log.execute("delete from postroad.relays")
    for pid in (1, 2):
        await add_relay(log, pid)
    assert (await the_one(log.url, "spare-relays")).level is Level.OK
    await add_relay(log, 3)
    finding = await the_one(log.url, "spare-relays")
    assert "has 3 relays and 2 lanes: 1 of them only stand by" in finding.text
    await log.execute("delete from postroad.relays where pid = 3")
    assert (await the_one(log.url, "spare-relays")).level is Level.OK


async def test_mixed_versions(log: PostgreSQLLog) -> None:
    await add_relay(log, 1, "0.1")
    assert (await the_one(log.url, "versions")).level is Level.OK
    await add_relay(log, 2, "0.2")
    assert "2 versions: 0.1, 0.2" in (await the_one(log.url, "versions")).text
    await log.execute("update postroad.relays set alive_until = now() - interval '1 s' where version = '0.1'")
    assert (await the_one(log.url, "versions")).level is Level.OK


async def test_relays_that_die(log: PostgreSQLLog) -> None:
    for pid in range(3):
        assert (await the_one(log.url, "flapping-leases")).level is Level.OK
        await add_relay(log, pid, alive=timedelta(minutes=-1))
    assert "3 relays died" in (await the_one(log.url, "flapping-leases")).text
    await log.execute("update postroad.relays set heartbeat_at = now() - interval '2 hours'")
    assert (await the_one(log.url, "flapping-leases")).level is Level.OK


async def test_lanes_that_change_owners(log: PostgreSQLLog) -> None:
    await log.store.open()
    await take_lanes(log.store, "s", lanes=2)

    async def take_again_and_again() -> None:
        while True:
            await log.execute("update postroad.lanes set epoch = epoch + 1 where lane = 1")

    taking = asyncio.create_task(take_again_and_again())
    try:
        finding = await until_found(Level.WARNING, log.url, "flapping-leases", watch_seconds=1)
        assert list(finding.evidence["taken"]) == ["s/1"]
    finally:
        taking.cancel()
        await asyncio.wait([taking])
    assert (await the_one(log.url, "flapping-leases")).level is Level.OK


async def test_what_is_paused_or_held_for_long(log: PostgreSQLLog) -> None:
    await log.store.open()
    await take_lanes(log.store, "s")
    async with open_admin(log.url) as admin:
        for check, begin, end in (
            ("paused", admin.pause("s", BY), admin.resume("s", BY)),
            ("held-keys", admin.hold("s", "customer 7", BY), admin.release("s", "customer 7", BY)),
        ):
            await begin
            assert (await the_one(log.url, check)).level is Level.OK, "not for long yet"
            finding = await the_one(log.url, check, limits=Limits(paused=NOW, held=NOW))
            assert finding.level is Level.WARNING
            assert "by anna" in finding.text
            await end
            assert (await the_one(log.url, check, limits=Limits(paused=NOW, held=NOW))).level is Level.OK


# -- the inbox and files ---------------------------------------------------------------------------------------------


async def test_an_inbox_that_forgets_too_soon(log: PostgreSQLLog) -> None:
    def consumer(days: float) -> list[ConsumerFacts]:
        return [ConsumerFacts("stock", days * 86400, 8 * 86400, {})]

    assert (await the_one(log.url, "inbox-retention")).level is Level.SKIPPED
    assert "retain='9d'" in str((await the_one(log.url, "inbox-retention", consumers=consumer(7))).fix)
    assert (await the_one(log.url, "inbox-retention", consumers=consumer(9))).level is Level.OK


BEAT = "select postroad.consumer_heartbeat('stock', $1, 'h', 7, '1', 'queue', $2::interval, 0, 0, 0, 0)"


async def test_a_consumer_that_died(log: PostgreSQLLog) -> None:
    first, second = uuid4(), uuid4()
    assert (await the_one(log.url, "consumers")).level is Level.SKIPPED
    await log.execute(BEAT, first, timedelta(minutes=1))
    assert (await the_one(log.url, "consumers")).level is Level.OK
    await log.execute(BEAT, first, timedelta(minutes=-1))
    finding = await the_one(log.url, "consumers")
    assert finding.level is Level.ERROR
    assert "consumer 'stock' is not alive: h (7) was last seen" in finding.text
    await log.execute(BEAT, second, timedelta(minutes=1))
    assert (await the_one(log.url, "consumers")).level is Level.OK, "another process has it"
    await log.execute("select postroad.consumer_ended('stock', $1)", second)
    assert (await the_one(log.url, "consumers")).level is Level.ERROR
    await log.execute("select postroad.consumer_ended('stock', $1)", first)
    assert (await the_one(log.url, "consumers")).level is Level.SKIPPED, "it has ended in good order"


async def test_an_attempt_that_was_left_running(log: PostgreSQLLog) -> None:
    await log.execute("select postroad.begin_attempt('1s', 'stock', 'a', 'order.created', 'crashed')")
    limits = Limits(running_attempt=NOW)
    assert (await the_one(log.url, "running-attempts")).level is Level.OK, "it may well run"
    finding = await the_one(log.url, "running-attempts", limits=limits)
    assert finding.evidence["consumer"] == "stock"
    await log.execute(str(finding.fix).partition("if its queue is gone: ")[2])
    assert (await the_one(log.url, "running-attempts", limits=limits)).level is Level.OK


async def test_a_file_that_all_can_read(log: PostgreSQLLog, tmp_path: Path) -> None:
    file = tmp_path / "my password"
    file.write_text("geheim")
    for mode, level in ((0o644, Level.WARNING), (0o640, Level.OK)):
        file.chmod(mode)
        files = [SecretFile(str(file), "database_password_file", all_may_read(file))]
        finding = await the_one(log.url, "secret-files", files=files)
        assert finding.level is level
        assert finding.fix in {None, f"chmod o-rwx '{file}'"}


# -- for all checks --------------------------------------------------------------------------------------------------


async def test_it_changes_nothing(log: PostgreSQLLog, postgresql: PostgreSQL) -> None:
    await log.add(*numbered(*range(10)))
    await Relay(PostgreSQLStore(log.url), NullPublisher()).run_until_empty()
    await log.execute("update postroad.installation set system_identifier = 1")  # a store would convert the log

    def content() -> str:
        dumped = postgresql.dump(log.url, "--schema", "postroad", "--inserts")
        return "\n".join(line for line in dumped.splitlines() if "restrict" not in line)

    before = content()
    await examine(log.url, direct=log.url, watch_seconds=0)
    assert content() == before


async def test_a_role_without_rights_gets_reasons(log: PostgreSQLLog) -> None:
    findings = await examine(await stranger_to(log), watch_seconds=0)
    assert {each.check for each in findings if each.level is Level.ERROR} == set()
    skipped = {each.check: each.text for each in findings if each.level is Level.SKIPPED}
    assert {"schema", "forgotten-sink", "versions", "held-keys", "running-attempts"} <= set(skipped)
    assert "permission denied" in skipped["forgotten-sink"]
