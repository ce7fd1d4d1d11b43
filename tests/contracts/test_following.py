"""A sink that follows a replication slot: its cursor never passes a message that the slot's reader has not confirmed.

Each rule of relay/following.py and relay/notes.py has a test here that fails without it; `make mutants` removes them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postroad import Cancellation, InvalidSetting, Message, NotFound, Relay, RelaySettings, events
from postroad.admin import Action, Admin, By, Filter, NoticeKind, Reason, Remedy, Rewind, notices, open_admin
from postroad.brokers.registry import publisher_for
from postroad.errors import BrokerUnavailable
from postroad.relay.notes import Notes
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from postroad.stores.replication import Look
from tests.carriers import PUBLISH, SECONDS, Carrier
from tests.lanes import take_lanes
from tests.logs import OUTBOX, MemoryLog, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL

log = log_fixture("postgresql")
BY = By("olga", "a test")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.relay.following.LOOK_SECONDS", 0.02)


@pytest.fixture
async def slot(log: PostgreSQLLog) -> AsyncIterator[str]:
    """The name of a slot that is there, at the beginning of an empty log."""
    name = f"s{uuid4().hex[:12]}"
    await log.execute("drop publication if exists postroad")
    await log.execute(PUBLISH)
    await create(log, name)
    yield name
    await drop(log, name)


async def create(log: PostgreSQLLog, slot: str) -> None:
    await log.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)


async def drop(log: PostgreSQLLog, slot: str) -> None:
    """Drop the slot when its reader, which has disconnected, is gone."""
    gone = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active"
    async with asyncio.timeout(SECONDS):
        while await log.execute("select 1 from pg_replication_slots where slot_name = $1", slot):
            await log.execute(gone, slot)


class Following:
    """A relay that follows a slot, as a test sees it."""

    def __init__(self, log: PostgreSQLLog, slot: str, **settings: Any) -> None:
        self.log = log
        self.emitted: list[events.Event] = []
        self._looks = 0
        self._looked = asyncio.Event()
        self.may_look = asyncio.Event()
        self.may_look.set()
        store: Any = log.another_store()
        look = store.replication.look

        async def counted(lease: Lease, name: str, after: Cursor) -> Look:
            await self.may_look.wait()
            found: Look = await look(lease, name, after)
            self._looks += 1
            self._looked.set()
            return found

        store.replication.look = counted
        given = {"poll_interval": "10ms", "max_idle_backoff": "20ms", "wakeup": "off", **settings}
        self.relay = Relay(
            store, publisher_for(f"slot://{slot}"), sink="carried", settings=RelaySettings(**given), listeners=[self]
        )

    def on_event(self, event: events.Event) -> None:
        self.emitted.append(event)

    async def look(self) -> None:
        """Wait for a look that begins from now on, and what it leads to. The one that is under way may be older."""
        wanted = self._looks + 3
        async with asyncio.timeout(SECONDS):
            while self._looks < wanted:
                self._looked.clear()
                await self._looked.wait()

    async def until_event(self, kind: type[events.Event]) -> Any:
        async with asyncio.timeout(SECONDS):
            while True:
                for event in self.emitted:
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.01)

    async def until_confirmed_by(self, carrier: Carrier) -> None:
        """Have everything confirmed that is on disk, again and again, as Debezium does by its heartbeats, until no
        message waits. The carrier must have received them all.
        """
        async with asyncio.timeout(SECONDS):
            while await self.log.waiting():
                await self.log.execute("select pg_logical_emit_message(true, 'postroad', '')")
                carrier.confirm(await flushed(self.log))
                await asyncio.sleep(0.01)

    async def until_waiting(self, number: int) -> None:
        async with asyncio.timeout(SECONDS):
            while await self.log.waiting() != number:  # noqa: ASYNC110 - there is no signal
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(log: PostgreSQLLog, slot: str, **settings: Any) -> AsyncIterator[Following]:
    it = Following(log, slot, **settings)
    async with it.relay:
        await until_found(log, "select 1 from postroad.lanes where owner is not null")
        yield it


async def flushed(log: PostgreSQLLog) -> int:
    """Everything in the write-ahead log that is on disk, as a number."""
    return int((await log.execute("select (pg_current_wal_flush_lsn() - '0/0')::bigint"))[0][0])


async def until_confirmed(log: PostgreSQLLog, slot: str, lsn: int) -> None:
    reached = "select 1 from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn - '0/0' >= $2"
    await until_found(log, reached, slot, lsn)


async def until_found(log: PostgreSQLLog, query: str, *values: object) -> None:
    """Wait until the query returns a row."""
    async with asyncio.timeout(SECONDS):
        while not await log.execute(query, *values):  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.01)


async def until_up(log: PostgreSQLLog) -> None:
    """Wait until the server has recovered."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await log.execute("select 1")
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.05)
            else:
                return


async def until_paused(admin: Admin) -> None:
    async with asyncio.timeout(SECONDS):
        while not (await admin.sink("carried")).paused:  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.01)


@asynccontextmanager
async def frozen_wal_writer(log: PostgreSQLLog) -> AsyncIterator[int]:
    """Nothing reaches the disk but what a commit waits for. Yields the process."""
    process: int = (await log.execute("select pid from pg_stat_activity where backend_type = 'walwriter'"))[0][0]
    os.kill(process, signal.SIGSTOP)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@asynccontextmanager
async def stopped_looks(it: Following) -> AsyncIterator[None]:
    """The relay looks at nothing until the block ends."""
    it.may_look.clear()
    await asyncio.sleep(0)
    try:
        yield
    finally:
        it.may_look.set()


# -- what is carried -------------------------------------------------------------------------------------------------


async def test_a_message_is_published_when_the_slot_has_confirmed_it(log: PostgreSQLLog, slot: str) -> None:
    with Carrier(log.url, slot) as carrier:
        async with following(log, slot) as it:
            await log.add(*numbered(1, 2))
            carrier.carry(1, 2)
            await it.look()
            assert await log.waiting() == 2, "it was received, and not confirmed"
            await it.until_confirmed_by(carrier)
            assert it.relay.stats().by_lane[0].published == 2


async def test_a_transaction_that_commits_late_waits_for_its_own_confirm(log: PostgreSQLLog, slot: str) -> None:
    with Carrier(log.url, slot) as carrier:
        async with following(log, slot) as it, log.connected() as slow:
            transaction = slow.transaction()
            await transaction.start()
            await OUTBOX.add_many(slow, numbered(1))
            await log.add(*numbered(2))
            carrier.carry(2)
            await it.until_confirmed_by(carrier)
            await transaction.commit()
            await it.look()
            assert await log.waiting() == 1
            carrier.carry(1)
            await it.until_confirmed_by(carrier)
    assert carrier.carried == [2, 1]


async def test_a_prepared_transaction_waits_until_it_is_committed(log: PostgreSQLLog, slot: str) -> None:
    with Carrier(log.url, slot) as carrier:
        async with following(log, slot) as it, log.connected() as other:
            await other.execute("begin")
            await OUTBOX.add_many(other, numbered(1))
            await other.execute("prepare transaction 'later'")
            await log.add(*numbered(2))
            carrier.carry(2)
            await it.until_confirmed_by(carrier)
            await other.execute("commit prepared 'later'")
            await it.look()
            assert await log.waiting() == 1
            carrier.carry(1)
            await it.until_confirmed_by(carrier)


async def test_retention_deletes_only_what_was_carried(log: PostgreSQLLog, slot: str) -> None:
    await log.store.open()
    with Carrier(log.url, slot) as carrier:
        async with following(log, slot) as it:
            await log.add(*numbered(1))
            carrier.carry(1)
            await it.until_confirmed_by(carrier)
            await log.add(*numbered(2))
            await it.look()
            cleaned = await log.store.delete_passed(after=0, older_than=timedelta(0), batch=10)
            assert cleaned.deleted == 1
            assert [row[0] for row in await log.execute("select position from postroad.outbox")] == [2]
            carrier.carry(2)
    assert carrier.carried == [1, 2]


async def test_scheduled_messages_are_moved_into_the_log(log: PostgreSQLLog, slot: str) -> None:
    with Carrier(log.url, slot) as carrier:
        async with following(log, slot) as it:
            await log.add(Message(b"1", type="t", deliver_in=timedelta(milliseconds=10)))
            await asyncio.to_thread(carrier.carry, 1)
            await it.until_confirmed_by(carrier)
    assert await log.scheduled() == []


async def test_the_count_of_published_messages_is_kept(log: PostgreSQLLog, slot: str) -> None:
    await log.add(*numbered(*range(1, 26)))
    with Carrier(log.url, slot) as carrier:
        carrier.carry(*range(1, 26))
        it = Following(log, slot)
        running = asyncio.create_task(it.relay.run_until_empty())
        await until_found(log, "select 1 from postroad.lanes")
        await it.until_confirmed_by(carrier)
        assert (await running).published == 25
    async with open_admin(log.url) as admin:
        assert (await admin.sink("carried")).published_per_minute[-1] + (
            await admin.sink("carried")
        ).published_per_minute[-2] == 25


async def test_until_empty_gives_up_on_a_slot_that_no_program_reads(log: PostgreSQLLog, slot: str) -> None:
    await log.add(*numbered(1))
    with pytest.raises(BrokerUnavailable, match="no program reads the replication slot"):
        await Following(log, slot, until_empty_timeout="100ms").relay.run_until_empty()
    assert await log.waiting() == 1


# -- rule 1: the insert position of the write-ahead log, read after the snapshot -------------------------------------


async def test_a_commit_that_is_not_on_disk_yet_is_not_taken_for_carried(log: PostgreSQLLog, slot: str) -> None:
    """With asynchronous commit, a transaction is visible before the flushed end of the write-ahead log reaches it."""
    store: Any = log.store
    await store.open()
    (lease,) = await take_lanes(store, "carried", uuid4(), lanes=1, start="oldest")
    with Carrier(log.url, slot) as carrier:
        async with log.connected() as writer, frozen_wal_writer(log):
            await writer.execute("set synchronous_commit = off")
            carrier.confirm(await flushed(log))
            await until_confirmed(log, slot, await flushed(log))
            async with writer.transaction():
                await OUTBOX.add_many(writer, numbered(1))
            look = await store.replication.look(lease, slot, lease.cursor)
            assert look.added == 1, "it is visible"
            assert await flushed(log) < look.lsn, "and not on disk"
            notes = Notes(lease.cursor)
            notes.add(look)
            assert look.slot.confirmed == await flushed(log)
            assert notes.carried(look.slot) is None
        carrier.carry(1)
        carrier.confirm(await flushed(log))
        await until_confirmed(log, slot, look.lsn)
        look = await store.replication.look(lease, slot, notes.after)
        assert notes.carried(look.slot) is not None


# -- rule 2: notes belong to one server, from its start to its end ---------------------------------------------------


async def test_what_was_noted_before_a_crash_means_nothing_after_it(
    log: PostgreSQLLog, slot: str, postgresql: PostgreSQL
) -> None:
    """A commit is lost, and its position and transaction id are given out again, to a message that commits later than
    the noted end of the write-ahead log.
    """
    async with following(log, slot, lease="10m") as it:
        await it.look()
        async with frozen_wal_writer(log) as wal_writer:
            async with log.connected() as writer:
                await writer.execute("set synchronous_commit = off")
                for _ in range(50):  # some ids more than the relay needs when it loads its lane again
                    await writer.execute("select pg_current_xact_id()")
                async with writer.transaction():
                    await OUTBOX.add_many(writer, numbered(1))
                before = (await log.execute("select position, xid::text from postroad.outbox"))[0]
                await it.look()
                noted = int((await log.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint"))[0][0])
                assert await flushed(log) < noted
            os.kill(wal_writer, signal.SIGKILL)  # the server ends all processes, and recovers
        await until_up(log)
        assert await log.execute("select 1 from postroad.outbox") == [], "the commit was lost"
        async with log.connected() as slow:
            transaction = slow.transaction()
            await transaction.start()
            await OUTBOX.add_many(slow, numbered(2))
            again = (await slow.fetch("select position, xid::text from postroad.outbox"))[0]
            assert again["position"] == before["position"]
            assert int(again["xid"]) <= int(before["xid"]), "what was noted counts it as dealt with"
            while await flushed(log) < noted:
                await log.execute("select pg_logical_emit_message(true, 'filler', repeat('x', 10000))")
            with Carrier(log.url, slot) as carrier:
                carrier.confirm(await flushed(log))
                await until_confirmed(log, slot, noted)
                await it.look()
                await transaction.commit()
                await it.look()
                assert await log.waiting() == 1
                carrier.carry(before[0])
                await it.until_confirmed_by(carrier)


# -- rule 3: a slot that is not the one that was followed ------------------------------------------------------------


async def test_a_slot_that_was_made_anew_pauses_the_sink_until_it_is_adopted(log: PostgreSQLLog, slot: str) -> None:
    async with following(log, slot) as it:
        with Carrier(log.url, slot) as carrier:
            await log.add(*numbered(1))
            carrier.carry(1)
            await it.until_confirmed_by(carrier)
        async with stopped_looks(it):
            await log.add(*numbered(2))  # for the old slot, which no program reads any more
            await drop(log, slot)
            await create(log, slot)
            carrier = Carrier(log.url, slot)
            carrier.__enter__()
            await log.add(*numbered(3))
            carrier.carry(3)
            carrier.confirm(await flushed(log))
            await until_confirmed(log, slot, await flushed(log) - 1)
        try:
            lost = await it.until_event(events.SlotLost)
            assert "was dropped and made anew" in lost.reason
            assert carrier.carried == [3]
            assert await log.waiting() == 2, "2 was carried by no program"
        finally:
            carrier.__exit__(None, None, None)
    await check_paused_until_adopted(log, slot, "was dropped and made anew", waiting=2)


async def check_paused_until_adopted(log: PostgreSQLLog, slot: str, reason: str, *, waiting: int) -> None:
    """The pause outlives relays, and can't be ended by `resume`."""
    it = Following(log, slot)
    with Carrier(log.url, slot) as carrier:
        carrier.confirm(await flushed(log))
        async with it.relay, open_admin(log.url) as admin:
            await it.until_event(events.LanePaused)
            assert await log.waiting() == waiting
            sink = await admin.sink("carried")
            assert sink.slot is not None
            assert reason in str(sink.slot.lost)
            (notice,) = [each for each in notices(await admin.status()) if each.kind is NoticeKind.SLOT_LOST]
            assert reason in notice.text
            assert notice.remedy == Remedy(action=Action.ADOPT_SLOT, sink="carried")
            newest = (await log.execute("select id from postroad.outbox order by position desc limit 1"))[0][0]
            (answer,) = (await admin.why(newest)).answers
            assert answer.reason is Reason.SLOT_LOST
            with pytest.raises(InvalidSetting, match="adopt the slot for sink carried"):
                await admin.resume("carried", BY)
            assert (await admin.adopt_slot("carried", BY)).changed == 1
            await it.until_confirmed_by(carrier)
            assert (await admin.audit(1))[0].command == "sink adopt-slot"
            with pytest.raises(NotFound, match="has lost no replication slot"):
                await admin.preview_adopt_slot("carried")


async def test_a_slot_that_is_gone_pauses_the_sink(log: PostgreSQLLog, slot: str) -> None:
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await it.look()
        await log.add(*numbered(1))
        await drop(log, slot)
        assert "does not exist any more" in (await it.until_event(events.SlotLost)).reason
        await until_paused(admin)
        with pytest.raises(NotFound, match="there is no replication slot"):
            await admin.preview_adopt_slot("carried")
    await create(log, slot)
    await check_paused_until_adopted(log, slot, "does not exist any more", waiting=1)


async def test_a_slot_without_its_write_ahead_log_pauses_the_sink(log: PostgreSQLLog, slot: str) -> None:
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await it.look()
        await log.add(*numbered(1))
        await log.execute("alter system set max_slot_wal_keep_size = '1MB'")
        try:
            await log.execute("select pg_reload_conf()")
            for _ in range(4):
                await log.execute("select pg_logical_emit_message(true, 'filler', 'x')")
                await log.execute("select pg_switch_wal()")
            await log.execute("checkpoint")
            assert "is lost" in (await it.until_event(events.SlotLost)).reason
            await until_paused(admin)
            with pytest.raises(NotFound, match="drop it"):
                await admin.preview_adopt_slot("carried")
        finally:
            await log.execute("alter system reset max_slot_wal_keep_size")
            await log.execute("select pg_reload_conf()")
    await drop(log, slot)
    await create(log, slot)
    await check_paused_until_adopted(log, slot, "is lost", waiting=1)


async def test_a_slot_of_a_promoted_server_pauses_the_sink(log: PostgreSQLLog, slot: str) -> None:
    """Slots of the old primary are not on the new one; one of the same name was made there."""
    async with following(log, slot) as it:
        await it.look()
    await log.execute("update postroad.replication_slots set timeline = '00000000'")
    it = Following(log, slot)
    async with it.relay:
        assert "the server was promoted" in (await it.until_event(events.SlotLost)).reason


async def test_a_restart_of_the_server_keeps_the_slot(log: PostgreSQLLog, slot: str, postgresql: PostgreSQL) -> None:
    """Also a crash, after which the server counts anew."""
    async with following(log, slot) as it:
        with Carrier(log.url, slot) as carrier:
            await log.add(*numbered(1, 2))
            await log.add(*numbered(3))
            carrier.carry(1, 2, 3)
            await it.until_confirmed_by(carrier)
        for mode in ("fast", "immediate"):
            await asyncio.to_thread(postgresql.restart, mode)
            await until_up(log)
            await log.add(*numbered(4))
            with Carrier(log.url, slot) as carrier:
                last = (await log.execute("select max(position) from postroad.outbox"))[0][0]
                carrier.carry(last)
                await it.until_confirmed_by(carrier)
    assert not [event for event in it.emitted if isinstance(event, events.SlotLost)]


# -- rule 4: only while a program reads the slot ---------------------------------------------------------------------


async def test_a_slot_that_no_program_reads_confirms_nothing(log: PostgreSQLLog, slot: str) -> None:
    """Debezium creates the slot, then carries a snapshot of the log, and reads the slot only then."""
    await drop(log, slot)
    async with following(log, slot) as it:
        await log.add(*numbered(1))
        await it.look()
        await create(log, slot)
        await it.look()
        assert await log.waiting() == 1, "the slot begins after it, and the snapshot may fail"
        with Carrier(log.url, slot) as carrier:
            await it.until_confirmed_by(carrier)


async def test_a_slot_that_is_not_there_yet_is_waited_for(log: PostgreSQLLog, slot: str) -> None:
    await drop(log, slot)
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await log.add(*numbered(1))
        assert "there is no replication slot" in (await it.until_event(events.BrokerUnavailable)).reason
        (notice,) = [each for each in notices(await admin.status()) if each.kind is NoticeKind.SLOT_UNREAD]
        assert "there is no replication slot" in notice.text
        await create(log, slot)
        with Carrier(log.url, slot) as carrier:
            await it.until_confirmed_by(carrier)
    assert not [event for event in it.emitted if isinstance(event, events.SlotLost)]


# -- rule 5: a slot that confirms nothing is reported ----------------------------------------------------------------


async def test_a_slot_that_confirms_nothing_is_reported(
    log: PostgreSQLLog, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.relay.following.STILL_SECONDS", 0.05)
    async with following(log, slot) as it, open_admin(log.url) as admin:
        with Carrier(log.url, slot) as carrier:
            await log.add(*numbered(1))
            carrier.carry(1)
            assert "heartbeat.action.query" in (await it.until_event(events.BrokerUnavailable)).reason
            id = (await log.execute("select id from postroad.outbox"))[0][0]
            (answer,) = (await admin.why(id)).answers
            assert answer.reason is Reason.NOT_CONFIRMED
            assert "has not confirmed it" in answer.text
            await it.until_confirmed_by(carrier)
            await it.until_event(events.BrokerRecovered)
            (answer,) = (await admin.why(id)).answers
            assert answer.reason is Reason.PUBLISHED


async def test_a_slot_that_no_program_reads_is_reported(
    log: PostgreSQLLog, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.relay.following.STILL_SECONDS", 0.05)
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await log.add(*numbered(1))
        assert "no program reads" in (await it.until_event(events.BrokerUnavailable)).reason
        id = (await log.execute("select id from postroad.outbox"))[0][0]
        (answer,) = (await admin.why(id)).answers
        assert "no program reads" in answer.text
        (notice,) = [each for each in notices(await admin.status()) if each.kind is NoticeKind.SLOT_UNREAD]
        assert notice.problem


# -- operators -------------------------------------------------------------------------------------------------------


async def test_operators_can_not_decide_about_messages_that_another_program_carries(
    log: PostgreSQLLog, slot: str
) -> None:
    await log.add(*numbered(1, key="k"))
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await it.look()
        id = (await log.execute("select id from postroad.outbox"))[0][0]
        which = Filter(ids=[id])
        for refused in (
            admin.hold("carried", "k", BY),
            admin.preview_hold("carried", "k"),
            admin.skip(which, BY),
            admin.preview_skip(id),
            admin.skip_key("carried", "k", BY),
            admin.preview_skip_key("carried", "k"),
            admin.poison(which, BY),
            admin.preview_poison(id),
            admin.retry(Filter(sink="carried", all=True), BY),
            admin.drop(Filter(sink="carried", all=True), BY),
            admin.rewind(Rewind(sink="carried", to=1), BY),
            admin.preview_rewind(Rewind(sink="carried", to=1)),
        ):
            with pytest.raises(InvalidSetting, match="another program carries its messages"):
                await refused
        assert await log.deferred() == []
        assert (await admin.pause("carried", BY)).changed == 1
        await it.until_event(events.LanePaused)
        with Carrier(log.url, slot) as carrier:
            assert (await admin.resume("carried", BY)).changed == 1
            await it.until_confirmed_by(carrier)


async def test_another_sink_of_the_same_log_is_not_concerned(log: PostgreSQLLog, slot: str) -> None:
    await log.add(*numbered(1))
    async with following(log, slot) as it, open_admin(log.url) as admin:
        await it.look()
        await log.store.open()
        await log.store.leases.create("broker", "memory:", lanes=1, start="oldest")
        id = (await log.execute("select id from postroad.outbox"))[0][0]
        assert [row.sink for row in await admin.preview_skip(id)] == ["broker"]
        assert (await admin.skip(Filter(ids=[id]), BY)).changed == 1
    assert [row.sink for row in await log.deferred()] == ["broker"]


async def test_a_sink_can_leave_its_slot_and_can_not_begin_to_follow_one(log: PostgreSQLLog, slot: str) -> None:
    async with following(log, slot) as it:
        await it.look()
    async with open_admin(log.url) as admin:
        await admin.retarget("carried", "local:handler", BY)
        assert (await admin.sink("carried")).slot is None
        assert await log.execute("select 1 from postroad.replication_slots") == []
        with pytest.raises(InvalidSetting, match="Let a sink of its own follow the slot"):
            await admin.retarget("carried", f"slot://{slot}", BY)
        with pytest.raises(InvalidSetting, match="Let a sink of its own follow the slot"):
            await admin.preview_retarget("carried", f"slot://{slot}")


async def test_a_message_in_the_log_can_not_be_canceled(log: PostgreSQLLog, slot: str) -> None:
    """Whatever the slot's reader has confirmed: the row is in the write-ahead log."""
    async with following(log, slot) as it:
        await log.add(*numbered(1))
        await it.look()
        id = (await log.execute("select id from postroad.outbox"))[0][0]
        assert await log.cancel(id) == [Cancellation.TOO_LATE]


@pytest.mark.parametrize("url", ["slot://", "slot://Shop", "slot://a-b", f"slot://{'a' * 64}"])
def test_the_name_of_a_slot_is_checked(url: str) -> None:
    with pytest.raises(InvalidSetting, match="must be slot://NAME"):
        publisher_for(url)


async def test_only_postgresql_has_slots() -> None:
    memory = MemoryLog()
    relay = Relay(memory.store, publisher_for("slot://shop"))
    with pytest.raises(InvalidSetting, match="only PostgreSQL has replication slots"):
        await relay.run_until_empty()
    await memory.close()
