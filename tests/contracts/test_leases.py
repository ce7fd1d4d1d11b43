"""The contract of `Leases`, tested on every store; and on PostgreSQL, its part about sessions and locks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from urllib.parse import urlsplit

import asyncpg
import pytest

from postroad import StoreUnavailable
from postroad.errors import LaneChanged, LeaseLost
from postroad.stores.leases import LivenessLock, SinkSnapshot, Suspect
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from postroad.stores.postgresql_leases import PostgreSQLLivenessLock
from postroad.stores.postgresql_pool import in_transaction
from tests.conftest import serving
from tests.lanes import HERE, identity
from tests.logs import PLENTY, Log, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL
from tests.services.proxy import Proxy

LONG = 3600.0
OVER = -1.0
A, B, C = (identity() for _ in range(3))


log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18", lanes=4)


served = log_fixture("postgresql15", lanes=4)


@pytest.fixture
def database() -> Iterator[PostgreSQL]:
    """One of its own, because it crashes."""
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        yield server


def peers(snapshot: SinkSnapshot) -> dict[object, int]:
    return {peer.owner: peer.lanes for peer in snapshot.peers}


# -- taking and releasing --------------------------------------------------------------------------------------------


async def test_a_sink_that_is_there_stays_as_it_is(log: Log) -> None:
    await log.store.leases.create("s", HERE, lanes=7, start="now")
    assert (await log.store.leases.inspect(A)).lanes == 4


async def test_a_taken_lane_is_not_taken_by_another_before_its_lease_has_expired(log: Log) -> None:
    leases = log.store.leases
    mine = await leases.take(A, 3, LONG)
    assert [lease.lane for lease in mine] == [0, 1, 2]
    assert {(lease.owner, lease.epoch) for lease in mine} == {(A.owner, 1)}
    assert [lease.lane for lease in await leases.take(B, 4, OVER)] == [3]
    assert [lease.lane for lease in await leases.take(C, 4, LONG)] == [3], "its lease was over at once"
    assert await leases.take(B, 4, LONG) == []


async def test_taking_a_lane_fences_off_its_previous_owner(log: Log) -> None:
    leases = log.store.leases
    (old, *_) = await leases.take(A, 1, OVER)
    (new, *_) = await leases.take(B, 1, LONG)
    assert (new.lane, new.epoch) == (old.lane, old.epoch + 1)
    with pytest.raises(LaneChanged):
        await log.store.settle(old, old.cursor)
    with pytest.raises(LeaseLost, match="taken by another relay"):
        await log.store.load(old)
    await log.store.settle(new, new.cursor)


async def test_own_lanes_are_reclaimed_only_where_that_is_asked_for(log: Log) -> None:
    leases = log.store.leases
    first = await leases.take(A, 4, OVER)
    assert await leases.take(A, 4, LONG) == []
    again = await leases.take(A, 1, LONG, reclaim=[2])
    assert [(lease.lane, lease.epoch) for lease in again] == [(2, first[2].epoch + 1)]
    assert await leases.take(B, 4, LONG, reclaim=[2]) != [], "the others' leases are over"
    assert (await leases.inspect(A)).mine == {2: 2}


async def test_excluded_lanes_are_not_taken(log: Log) -> None:
    leases = log.store.leases
    assert [lease.lane for lease in await leases.take(A, 2, LONG, exclude=[0, 2])] == [1, 3]
    assert await leases.take(A, 4, LONG, reclaim=[1], exclude=[0, 1, 2]) == []


async def test_a_released_lane_is_free(log: Log) -> None:
    leases = log.store.leases
    (lease, *_) = await leases.take(A, 4, LONG)
    await leases.release(lease)
    assert list((await leases.inspect(B)).free) == [0]
    with pytest.raises(LaneChanged):
        await log.store.settle(lease, lease.cursor)
    with pytest.raises(LeaseLost):
        await log.store.load(lease)
    assert [each.lane for each in await leases.take(B, 4, LONG)] == [0]


async def test_releasing_a_lane_of_another_owner_changes_nothing(log: Log) -> None:
    leases = log.store.leases
    (old, *_) = await leases.take(A, 1, OVER)
    (new, *_) = await leases.take(B, 1, LONG)
    await leases.release(old)
    assert 0 not in (await leases.inspect(C)).free
    await log.store.settle(new, new.cursor)


async def test_a_lane_goes_on_where_the_last_owner_settled(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="k"))
    lanes = await log.store.leases.take(A, 4, LONG)
    pages = [await log.store.read(lane, lane.cursor, PLENTY) for lane in lanes]
    (busy,) = [number for number, page in enumerate(pages) if page.messages]
    settled = await log.store.settle(lanes[busy], pages[busy].after)
    await log.store.leases.release(settled)
    (taken,) = await log.store.leases.take(B, 4, LONG)
    assert taken.cursor == pages[busy].after


# -- beating and looking ---------------------------------------------------------------------------------------------


async def test_a_heartbeat_renews_own_lanes(log: Log) -> None:
    leases = log.store.leases
    await leases.take(A, 2, OVER)
    snapshot = await leases.heartbeat(A, LONG)
    assert (dict(snapshot.mine), sorted(snapshot.renewed), list(snapshot.free)) == ({0: 1, 1: 1}, [0, 1], [2, 3])
    assert [lease.lane for lease in await leases.take(B, 4, LONG)] == [2, 3]


async def test_a_heartbeat_does_not_bring_back_a_lane_of_another_owner(log: Log) -> None:
    leases = log.store.leases
    await leases.take(A, 4, OVER)
    await leases.take(B, 1, LONG)
    snapshot = await leases.heartbeat(A, LONG)
    assert sorted(snapshot.mine) == sorted(snapshot.renewed) == [1, 2, 3]
    assert (await leases.inspect(B)).mine == {0: 2}


async def test_looking_changes_nothing(log: Log) -> None:
    leases = log.store.leases
    await leases.take(A, 4, OVER)
    snapshot = await leases.inspect(A)
    assert (list(snapshot.renewed), list(snapshot.peers)) == ([], [])
    assert len(await leases.take(B, 4, LONG)) == 4


async def test_relays_that_live_are_peers_in_the_order_in_which_they_came(log: Log) -> None:
    leases = log.store.leases
    await leases.heartbeat(A, LONG)
    await leases.heartbeat(B, OVER)
    await asyncio.sleep(0.002)  # SQLite's clock has milliseconds; relays that came in the same one are ordered by id
    await leases.heartbeat(C, LONG)
    await leases.heartbeat(identity("another sink"), LONG)
    await leases.take(C, 3, LONG)
    snapshot = await leases.heartbeat(A, LONG)
    assert [(peer.owner, peer.lanes) for peer in snapshot.peers] == [(A.owner, 0), (C.owner, 3)]
    assert list(snapshot.suspects) == [], "a relay that never announced a lock is not suspected"


async def test_deregistering_leaves_nothing_behind(log: Log) -> None:
    leases = log.store.leases
    await leases.heartbeat(A, LONG)
    await leases.take(A, 4, LONG)
    await leases.deregister(A)
    snapshot = await leases.heartbeat(B, LONG)
    assert (len(snapshot.free), list(peers(snapshot))) == (4, [B.owner])
    assert [relay.owner for relay in await leases.relays()] == [B.owner]


async def test_a_relay_that_died_more_than_a_day_ago_is_forgotten(log: Log) -> None:
    leases = log.store.leases
    await leases.heartbeat(A, -23 * LONG)
    await leases.heartbeat(B, -25 * LONG)
    await leases.heartbeat(C, LONG)
    assert {relay.owner for relay in await leases.relays()} == {A.owner, C.owner}


async def test_the_last_relay_of_a_sink_is_kept_because_it_says_when_the_sink_was_served(log: Log) -> None:
    leases = log.store.leases
    before, last = (identity("other") for _ in range(2))
    await leases.heartbeat(before, -25 * LONG)
    await leases.heartbeat(last, -24.5 * LONG)
    await leases.heartbeat(A, LONG)
    await leases.heartbeat(A, LONG)
    assert {relay.owner for relay in await leases.relays()} == {last.owner, A.owner}


async def test_what_an_operator_sees(log: Log) -> None:
    leases = log.store.leases
    for who, seconds in ((A, LONG), (B, LONG), (C, OVER)):
        await leases.heartbeat(who, seconds)
    await leases.take(A, 2, LONG)
    seen = {relay.owner: relay for relay in await leases.relays()}
    assert [seen[who.owner].state for who in (A, B, C)] == ["active", "standby", "dead"]
    it = seen[A.owner]
    assert (it.sink, it.host, it.pid, it.version, list(it.lanes)) == ("s", "a.host", 4711, "1.2.3", [0, 1])
    assert 0 <= it.heartbeat_seconds < 60
    assert it.started_at.tzinfo is not None


# -- PostgreSQL: no statement waits ----------------------------------------------------------------------------------


async def test_a_locked_lane_is_neither_waited_for_nor_renewed(served: PostgreSQLLog) -> None:
    """As an application that cancels a message, and takes its time to commit."""
    leases = served.store.leases
    await leases.take(A, 2, OVER)
    application = await served.connect()
    transaction = application.transaction()
    await transaction.start()
    await application.execute("select from postroad.lanes where lane = 0 for update")
    async with asyncio.timeout(60):
        snapshot = await leases.heartbeat(A, LONG)
        assert (sorted(snapshot.mine), list(snapshot.renewed)) == ([0, 1], [1])
        assert [lease.lane for lease in await leases.take(B, 4, LONG)] == [2, 3], "nor taken"
    await transaction.rollback()
    await application.close()
    assert sorted((await leases.heartbeat(A, LONG)).renewed) == [0, 1]


async def test_many_relays_that_take_at_once_share_the_lanes_without_waiting(served: PostgreSQLLog) -> None:
    stores = [PostgreSQLStore(served.url, connections=1) for _ in range(6)]
    for store in stores:
        await store.open()
    await served.store.leases.create("wide", HERE, lanes=64, start="oldest")
    taken = await asyncio.gather(*(store.leases.take(identity("wide"), 11, LONG) for store in stores))
    numbers = [lease.lane for leases in taken for lease in leases]
    for store in stores:
        await store.close()
    assert len(numbers) == len(set(numbers))
    rest = await served.store.leases.take(identity("wide"), 64, LONG)
    assert len(numbers) + len(rest) == 64


async def test_a_new_sink_is_created_while_others_send_heartbeats(served: PostgreSQLLog) -> None:
    beating = await served.connect()
    async with asyncio.timeout(60), beating.transaction():
        await beating.execute("update postroad.lanes set lease_until = now()")
        await served.store.leases.create("another", HERE, lanes=2, start="oldest")
    await beating.close()
    assert (await served.store.leases.inspect(identity("another"))).lanes == 2


# -- PostgreSQL: a session that shows who lives ----------------------------------------------------------------------


class Watched:
    """A relay with a session."""

    def __init__(self, log: PostgreSQLLog, lock: int | None = None) -> None:
        self.log = log
        self.leases = log.store.leases
        self.identity = identity()
        self.changed = asyncio.Event()
        self.lock = lock
        self.liveness_lock: PostgreSQLLivenessLock

    async def begin(self) -> Watched:
        await self.leases.heartbeat(self.identity, LONG)
        liveness_lock = await self.leases.open_session(self.identity, self.lock, self.changed.set)
        assert isinstance(liveness_lock, PostgreSQLLivenessLock)
        self.liveness_lock = liveness_lock
        return self

    async def cut(self) -> None:
        """Its session ends, for whatever reason; the relay lives."""
        self.changed.clear()
        await self.log.execute("select pg_terminate_backend($1, 60000)", self.liveness_lock.process)
        await asyncio.wait_for(self.changed.wait(), 60)

    async def make_older(self) -> None:
        await self.log.execute(
            "update postroad.relays set heartbeat_at = heartbeat_at - interval '2 s' where owner = $1",
            self.identity.owner,
        )

    async def suspects(self, liveness_lock: LivenessLock | None = None) -> list[Suspect]:
        return list((await self.leases.inspect(self.identity if liveness_lock else B, liveness_lock)).suspects)


@pytest.fixture
async def watched(served: PostgreSQLLog) -> AsyncIterator[Watched]:
    it = await Watched(served).begin()
    await it.leases.take(it.identity, 4, LONG)
    yield it
    it.liveness_lock.close()


async def test_a_relay_that_holds_its_lock_is_no_suspect(watched: Watched) -> None:
    await watched.make_older()
    assert watched.liveness_lock.held
    assert await watched.suspects() == []
    assert await watched.leases.evict(B, [Suspect(watched.identity.owner, 1)]) == []


async def test_a_process_that_died_is_missed_at_once(watched: Watched) -> None:
    await watched.cut()
    assert (watched.liveness_lock.held, watched.liveness_lock.lost) == (False, True)
    suspects = await watched.suspects()
    assert suspects == [Suspect(watched.identity.owner, 1)]
    assert await watched.leases.evict(B, suspects) == [], "its last heartbeat is less than a second ago"
    await watched.make_older()
    assert await watched.leases.evict(B, suspects) == [watched.identity.owner]
    snapshot = await watched.leases.heartbeat(B, LONG)
    assert (len(snapshot.free), list(peers(snapshot)), list(snapshot.suspects)) == (4, [B.owner], [])


async def test_a_relay_that_sends_another_heartbeat_is_not_dead(watched: Watched) -> None:
    """Its session was cut, and it lives: it says that it holds no lock, and the lease alone decides."""
    await watched.cut()
    suspects = await watched.suspects()
    await watched.leases.heartbeat(watched.identity, LONG, watched.liveness_lock)
    await watched.make_older()
    assert await watched.leases.evict(B, suspects) == []
    assert await watched.suspects() == []
    again = await watched.leases.open_session(watched.identity, None, watched.changed.set)
    assert again is not None
    assert again.held
    await watched.leases.heartbeat(watched.identity, LONG, again)
    await watched.make_older()
    assert await watched.suspects() == []
    again.close()


async def test_a_suspect_that_has_sent_a_heartbeat_since_is_not_dead(watched: Watched) -> None:
    """Whatever its row says of a lock: it was suspected of something else than what is true now."""
    await watched.cut()
    suspects = await watched.suspects()
    await watched.make_older()
    await watched.log.execute("update postroad.relays set heartbeats = heartbeats + 1")
    assert await watched.leases.evict(B, suspects) == []
    assert await watched.leases.evict(B, await watched.suspects()) == [watched.identity.owner]


async def test_a_restarted_server_makes_no_suspects(watched: Watched) -> None:
    """Its locks are gone, whether or not the relay lives."""
    await watched.log.execute("update postroad.relays set server_started = 'before'")
    await watched.cut()
    await watched.make_older()
    assert await watched.suspects() == []
    assert await watched.leases.evict(B, [Suspect(watched.identity.owner, 1)]) == []


async def test_a_suspect_with_a_locked_lane_stays_a_suspect(watched: Watched) -> None:
    """As by an application that cancels a message, and takes its time to commit."""
    await watched.cut()
    await watched.make_older()
    suspects = await watched.suspects()
    application = await watched.log.connect()
    async with asyncio.timeout(60), application.transaction():
        await application.execute("select from postroad.lanes where lane = 2 for update")
        assert await watched.leases.evict(B, suspects) == []
    snapshot = await watched.leases.heartbeat(B, LONG)
    assert (list(snapshot.free), list(snapshot.suspects)) == ([0, 1, 3], suspects)
    await application.close()
    assert await watched.leases.evict(B, suspects) == [watched.identity.owner]
    assert list((await watched.leases.inspect(B)).free) == [0, 1, 2, 3]


async def test_a_relay_that_deregisters_with_a_locked_lane_becomes_a_suspect(watched: Watched) -> None:
    application = await watched.log.connect()
    async with asyncio.timeout(60), application.transaction():
        await application.execute("select from postroad.lanes where lane = 2 for update")
        await watched.cut()
        await watched.leases.deregister(watched.identity)
    await application.close()
    await watched.make_older()
    assert await watched.leases.evict(B, await watched.suspects()) == [watched.identity.owner]
    assert list((await watched.leases.inspect(B)).free) == [0, 1, 2, 3]


async def test_a_session_that_is_gone_without_a_word_is_known_to_be_gone(watched: Watched) -> None:
    """As when a router forgets the connection: the server has ended it, and the relay was not notified."""
    process = watched.liveness_lock.process
    assert (await watched.leases.heartbeat(watched.identity, LONG, watched.liveness_lock)).lock_held
    await watched.cut()
    watched.liveness_lock.held = True  # as far as the relay knows
    assert not (await watched.leases.inspect(watched.identity, watched.liveness_lock)).lock_held
    assert await watched.suspects() != [], "looking says nothing"
    assert not (await watched.leases.heartbeat(watched.identity, LONG, watched.liveness_lock)).lock_held
    await watched.make_older()
    assert await watched.suspects() == [], "it holds no lock, and says so"
    assert watched.liveness_lock.process == process


async def test_a_crash_of_the_server_makes_no_suspects(database: PostgreSQL) -> None:
    """When one of its processes is killed the server ends all sessions, and the time of its start stays."""
    log = await PostgreSQLLog.fresh(database)
    await log.store.open()
    await log.store.leases.create("s", HERE, lanes=4, start="oldest")
    watched = await Watched(log).begin()
    before = await starts(log)
    os.kill(watched.liveness_lock.process, signal.SIGKILL)
    async with asyncio.timeout(60):
        while not (after := await starts(log)) or after[1] == before[1]:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)
    assert after[0] == before[0]
    await log.store.close()
    await log.store.open()
    await watched.make_older()
    assert await watched.suspects() == []
    assert await watched.leases.evict(B, [Suspect(watched.identity.owner, 1)]) == []
    await log.store.close()


async def starts(log: PostgreSQLLog) -> list[object]:
    """When the server was started, and when it has forgotten its statistics; nothing while it can't be asked."""
    try:
        (row,) = await log.execute("select pg_postmaster_start_time(), stats_reset from pg_stat_bgwriter")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return []
    return list(row)


async def test_a_relay_without_a_lock_is_no_suspect(served: PostgreSQLLog) -> None:
    """As behind a pooler."""
    await served.store.leases.heartbeat(A, LONG)
    await served.execute("update postroad.relays set heartbeat_at = heartbeat_at - interval '1 min'")
    assert (await served.store.leases.inspect(B)).suspects == []
    assert await served.store.leases.evict(B, [Suspect(A.owner, 1)]) == []


async def test_one_lock_for_all_is_held_by_one(served: PostgreSQLLog) -> None:
    first, second = await Watched(served, lock=-42).begin(), await Watched(served, lock=-42).begin()
    assert (first.liveness_lock.held, second.liveness_lock.held) == (True, False)
    assert await second.liveness_lock.acquire() is False
    assert await second.liveness_lock.holder() == f"server process {first.liveness_lock.process} (postroad liveness)"
    held = await served.execute("select pid from pg_locks where locktype = 'advisory' and objsubid = 1 and granted")
    assert [row["pid"] for row in held] == [first.liveness_lock.process], "an operator finds it"
    await first.cut()
    assert await second.liveness_lock.holder() is None
    assert await second.liveness_lock.acquire() is True
    assert [peer.lock for peer in (await second.leases.inspect(B)).peers] == [-42, -42], "as far as they say"
    await first.make_older()
    suspects = await second.suspects(second.liveness_lock)
    assert [each.owner for each in suspects] == [first.identity.owner], "that it is ours makes it no less free"
    assert await second.leases.evict(second.identity, suspects) == [first.identity.owner]
    assert [relay.lock for relay in await second.leases.relays()] == [-42, -42]
    second.liveness_lock.close()


async def test_other_relays_are_notified_of_released_lanes_and_new_relays(watched: Watched) -> None:
    watched.changed.clear()
    (lease, *_) = await watched.leases.take(watched.identity, 1, LONG, reclaim=[0])
    await watched.leases.release(lease)
    await asyncio.wait_for(watched.changed.wait(), 60)
    await watched.liveness_lock.holder()  # its answer comes after all notifications that were sent before
    watched.changed.clear()
    other = await Watched(watched.log).begin()
    await asyncio.wait_for(watched.changed.wait(), 60)
    other.liveness_lock.close()


async def test_a_session_at_another_database_is_refused(served: PostgreSQLLog, postgresql15: PostgreSQL) -> None:
    """No relay here would see its lock."""
    elsewhere = postgresql15.create_database()
    await migrate_postgresql(elsewhere)
    store = PostgreSQLStore(served.url, direct=elsewhere)
    await store.open()
    await store.leases.heartbeat(A, LONG)
    with pytest.raises(StoreUnavailable, match="`direct` leads to another database"):
        await store.leases.open_session(A, None, lambda: None)
    await store.close()
    postgresql15.drop_database(elsewhere)


async def test_a_pooler_lends_no_session(served: PostgreSQLLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes up the process number that a client gets when it connects."""
    monkeypatch.setattr("asyncpg.Connection.get_server_pid", lambda _: 1)
    await served.store.leases.heartbeat(A, LONG)
    assert await served.store.leases.open_session(A, None, lambda: None) is None


# -- PostgreSQL: a server that is silent -----------------------------------------------------------------------------


@pytest.mark.parametrize("in_a_transaction", [False, True])
async def test_a_timeout_ends_the_wait_for_a_silent_server(served: PostgreSQLLog, *, in_a_transaction: bool) -> None:
    """asyncpg would wait until the server has confirmed that it has cancelled the statement."""
    port = urlsplit(served.url).port
    assert port is not None
    async with Proxy(port) as proxy, asyncio.timeout(60):
        store = PostgreSQLStore(proxy.url(served.url), connections=1)
        await store.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit, store._connection() as connection:
                transaction = in_transaction(connection) if in_a_transaction else nullcontext()
                async with transaction:
                    proxy.go_silent()
                    limit.reschedule(asyncio.get_running_loop().time() + 0.1)
                    await connection.fetchval("select 1")
        assert (await store.leases.inspect(A)).lanes == 4, "by another connection"
        await store.close()
