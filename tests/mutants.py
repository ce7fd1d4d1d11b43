"""`make mutants`: plant each known mistake in a copy of the source, and fail unless the tests catch every one.

Each mutant is a mistake that has cost somebody messages; it names the tests that are there to catch it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

CURSOR = "postroad/stores/cursor.py"
LANE = "postroad/relay/lane.py"
MESSAGE = "postroad/message.py"
HANDLER_TRANSACTION = "postroad/consumer/handler_transaction.py"
DELIVERY = "postroad/consumer/delivery.py"
TRANSACTIONS = "postroad/consumer/transactions.py"
PROBE = "postroad/consumer/probe.py"
SENDING = "postroad/relay/sending.py"
TROUBLE = "postroad/relay/deferred.py"
WAKEUP = "postroad/relay/wakeup.py"
PG = "postroad/stores/postgresql.py"
PG_LEASES = "postroad/stores/sql/postgresql/leases.sql"
PG_PATIENCE = "postroad/stores/postgresql_pool.py"
ATTENDANCE = "postroad/relay/liveness.py"
TENURE = "postroad/relay/owned_lane.py"
HOLDINGS = "postroad/relay/ownership.py"
PG_NAPS = "postroad/stores/sql/postgresql/0004_naps.sql"
PG_LIMITS = "postroad/stores/sql/postgresql/0008_limits.sql"
PG_QUERIES = "postroad/stores/sql/postgresql/queries.sql"
PG_OWNERS = "postroad/stores/sql/postgresql/0009_rights.sql"
PG_RIGHTS = "postroad/stores/sql/postgresql/0007_rights.sql"
SQLITE_SCHEMA = "postroad/stores/sql/sqlite/0001_log.sql"
VERIFY = "postroad/verify.py"
PAYLOAD = "postroad/payload.py"
SQLITE_QUERIES = "postroad/stores/sql/sqlite/queries.sql"
PG_OPERATING = "postroad/stores/sql/postgresql/operating.sql"
SQLITE_OPERATING = "postroad/stores/sql/sqlite/operating.sql"
STORE_CONTRACT = "postroad/stores/base.py"

STORES = "tests/contracts/test_stores.py"
POSTGRESQL = "tests/contracts/test_postgresql.py"
LIMITS = "tests/security/test_limits.py"
RELAY = "tests/contracts/test_relay.py"
REFUSALS = "tests/contracts/test_refusals.py"
ORDER = "tests/properties/test_order.py"
LEASES = "tests/contracts/test_leases.py"
RELAYS = "tests/contracts/test_relays.py"
TENURES = "tests/unit/test_owned_lane.py"
HOLDINGS_TEST = "tests/unit/test_ownership.py"
LEASES_MACHINE = "tests/properties/test_leases.py"
VERIFYING = "tests/unit/test_verify.py"
OUTBOX = "tests/contracts/test_outbox.py"
CANCELING = "tests/contracts/test_canceling.py"
CANCELING_MACHINE = "tests/properties/test_canceling.py"
SCHEDULED = "tests/contracts/test_scheduled.py"
SCHEDULED_PG = "tests/contracts/test_scheduled_postgresql.py"
RACE = "tests/scenarios/test_scheduled.py"
LOG_MACHINE = "tests/properties/test_log.py"
WAKING = "tests/contracts/test_wakeup.py"
NAPS = "tests/contracts/test_naps_postgresql.py"
WAKEUP_SEARCH = "tests/properties/test_wakeup.py"
CARRIED = "tests/unit/test_carried_heartbeats.py"
POOLER = "tests/scenarios/test_pgbouncer.py"
LOST = "tests/contracts/test_lost_connections.py"
PUT_BACK = "tests/scenarios/test_put_back.py"
RESTARTS = "tests/scenarios/test_database_restarts.py"
INBOX = "tests/contracts/test_inbox.py"
RIGHTS_CONSUMERS = "tests/security/test_rights_of_consumers.py"
RIGHTS_MESSAGES = "tests/security/test_rights_of_messages.py"
CONSUMER = "tests/contracts/test_consumer.py"
CONSUMER_FAILURES = "tests/contracts/test_consumer_failures.py"
BEGIN = "tests/contracts/test_begin.py"
OUTAGES = "tests/contracts/test_consumer_outages.py"
HANDLERS_THAT_END = "tests/contracts/test_handlers_that_end.py"
CONSUMER_STOPS = "tests/contracts/test_consumer_stops.py"
CONSUMERS = "tests/scenarios/test_consumers.py"
KEYS = "tests/unit/test_keys.py"
ACKS = "tests/unit/test_amqp_acks.py"
SEARCH_PATH = "tests/security/test_search_path.py"
SINKS = "tests/contracts/test_sinks.py"
UNROUTABLE = "tests/contracts/test_unroutable.py"
PAYLOADS = "tests/unit/test_payload.py"


class Mutant(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    times: int = 1
    """How often the right text stands in the file; all of them become wrong."""


MUTANTS = [
    # Reading the log
    Mutant("in progress is taken from xip only", PG_QUERIES, "(xid >= $4 or xid = any($5))",
           "(xid = any($5) or xid = $4 and false)", (POSTGRESQL,), times=2),
    Mutant("in progress is taken from xmax only", PG_QUERIES, "(xid >= $4 or xid = any($5))",
           "(xid >= $4 or xid = any($5) and false)", (POSTGRESQL,), times=2),
    Mutant("only what lies ahead of the position is read", PG_QUERIES, "and position + 0 <= $3",
           "and position + 0 <= $3 and false", (POSTGRESQL,)),
    Mutant("again, for the property test", PG_QUERIES, "and position + 0 <= $3",
           "and position + 0 <= $3 and false", (LOG_MACHINE,)),
    Mutant("the sub-cursor is dropped", CURSOR,
           "after = Cursor(before.position, before.snapshot, rows[late - 1].position, snapshot)",
           "after = Cursor(before.position, snapshot)", (POSTGRESQL,)),
    Mutant("again, for the property test", CURSOR,
           "after = Cursor(before.position, before.snapshot, rows[late - 1].position, snapshot)",
           "after = Cursor(before.position, snapshot)", (LOG_MACHINE,)),
    Mutant("next rows go out although late rows filled the page", CURSOR, "if late and limit.reached(rows[:late]):",
           "if late == len(rows) and limit.reached(rows[:late]):", (POSTGRESQL,)),
    Mutant("catching up sees more than the first look saw", PG_QUERIES,
           "and pg_visible_in_snapshot(xid, $13::text::pg_snapshot)", "and $13::text is not null", (POSTGRESQL,)),
    Mutant("a page left half-way forgets its late rows", CURSOR,
           "return Cursor(before.position, before.snapshot, position, self.snapshot)",
           "return Cursor(before.position, self.snapshot)", (POSTGRESQL,)),
    Mutant("the position falls to the last row read", CURSOR, "position = max(before.position, log_end)",
           "position = rows[-1].position if rows else log_end", (POSTGRESQL, STORES)),
    Mutant("a quiet lane never advances", CURSOR, "position = max(before.position, log_end)",
           "position = max(before.position, rows[-1].position if rows else 0)", (STORES,)),
    Mutant("headers do not count in a page that they cut short", MESSAGE,
           "return len(self.payload) + len(self.headers_json)", "return len(self.payload)", (STORES,)),
    Mutant("a row that is too large goes out empty", SENDING,
           "if message.is_unread}", "if message.is_unread and False}", (LIMITS,)),
    Mutant("a slot is not checked", PG_LIMITS, "or new.slot <>", "or 1 = 0 and new.slot <>", (LIMITS,), times=2),
    Mutant("the late query is written naively", PG_QUERIES,
           "and position + 0 <= $3\n                 order by position + 0",
           "and position <= $3\n                 order by position", (POSTGRESQL,)),
    Mutant("a late page looks at all late rows", PG_QUERIES, "(xid >= $4 or xid = any($5)) is true",
           "(xid >= $4 or xid = any($5))", (POSTGRESQL,)),
    Mutant("a standby is read", PG, 'if facts["standby"]:', "if False:", (POSTGRESQL,)),
    Mutant("a log that is replicated into is read", PG, 'if facts["subscribed"]:', "if False:", (POSTGRESQL,)),
    Mutant("another cluster's transaction ids are believed", PG,
           '        if facts["moved"] or facts["future"]:\n            await', "        if False:\n            await",
           (POSTGRESQL,)),
    Mutant("a restore forgets what the old snapshots owe", PG_QUERIES, "when position in (select position from owed)",
           "when false", (POSTGRESQL,)),
    # The fence
    Mutant("the fence has no version (PostgreSQL)", PG_QUERIES, "and epoch = $4 and version = $5",
           "and epoch = $4 and version <> -$5::bigint", (STORES,), times=4),
    Mutant("the fence has no version (SQLite)", SQLITE_QUERIES, "and epoch = ?4 and version = ?5",
           "and epoch = ?4 and version <> -?5", (STORES,), times=3),
    Mutant("the fence has no version, seen by the relay", PG_QUERIES, "and epoch = $4 and version = $5",
           "and epoch = $4 and version <> -$5::bigint", (RELAY,), times=4),
    Mutant("a lane is loaded whoever owns it", PG_QUERIES, "and owner = $3 and epoch = $4\nreturning",
           "and coalesce($3::uuid, $4::bigint::text::uuid) is not null\nreturning", (STORES,)),
    # Leases
    Mutant("taking a lane does not raise the epoch", PG_LEASES,
           "set owner = $2, epoch = epoch + 1, version = version + 1",
           "set owner = $2, version = version + 1", (STORES, LEASES)),
    Mutant("a lane is taken although its lease is not over", PG_LEASES,
           "else owner is null or coalesce(lease_until < clock_timestamp(), true) end",
           "else true end", (LEASES,)),
    Mutant("again, for the property test", PG_LEASES,
           "else owner is null or coalesce(lease_until < clock_timestamp(), true) end",
           "else true end", (LEASES_MACHINE,)),
    Mutant("a heartbeat waits for an application", PG_LEASES,
           "where sink = $2 and owner = $1 and $7 for update skip locked",
           "where sink = $2 and owner = $1 and $7 for update", (LEASES,)),
    Mutant("who died on a server before this one is robbed", PG_LEASES,
           "and r.lock_key is not null and r.server_started = {schema}.server_started()", "and r.lock_key is not null",
           (LEASES,)),
    Mutant("who was heard of just now is robbed", PG_LEASES,
           "and r.heartbeat_at < clock_timestamp() - interval '1 second'", "", (LEASES,)),
    Mutant("who has beaten since is robbed", PG_LEASES, "and r.beats = suspect.beats", "", (LEASES,)),
    Mutant("who died is not buried", PG_LEASES, "and r.beats = suspect.beats", "and r.beats < suspect.beats",
           (LEASES_MACHINE,)),
    Mutant("a wave begins although the lease is over", TENURE, "if not self._holds():", "if self.lost:",
           (TENURES, RELAYS)),
    Mutant("a lane that was taken anew sends by what it knew", TENURE,
           "if loaded.epoch != self.lease.epoch:", "if False:", (TENURES,)),
    Mutant("a lease counts from its answer", HOLDINGS, "tenure.until = self._end_of_lease(sent)",
           "tenure.until = self._end_of_lease(self._clock.now())", (HOLDINGS_TEST,)),
    Mutant("who has too much keeps it", HOLDINGS, "for number in kept[share:]:", "for number in []:", (RELAYS,)),
    Mutant("leases: a session that can't be opened is waited for", ATTENDANCE,
           "asyncio.timeout(self._patience)", "asyncio.timeout(None)", (HOLDINGS_TEST,)),
    Mutant("leases: who holds the lock and is frozen keeps all from working", HOLDINGS,
           "and stands_in(standing.peers, self._runner.owner, lock_id)", "and False", (HOLDINGS_TEST,)),
    Mutant("leases: two work although one has the lock", TENURE, "peer.lock == lock_id and peer.owner != me", "False",
           (TENURES,)),
    Mutant("leases: a lock that changes hands is not left to who gets it", HOLDINGS,
           "and (self._free.left or bool(self._tenures))", "", (HOLDINGS_TEST,)),
    Mutant("leases: a session that is gone without a word is believed", PG_LEASES,
           "select $8::integer is null or $8 in", "select true or $8 in", (LEASES,)),
    Mutant("leases: that the server knows of no session goes unheard", HOLDINGS,
           "if not standing.present:", "if False:", (HOLDINGS_TEST,)),
    Mutant("leases: a crash of the server makes suspects", PG_RIGHTS,
           "coalesce(' ' || (select stats_reset::text from pg_stat_bgwriter), '')", "''", (LEASES,)),
    Mutant("leases: a silent server is waited for", PG_PATIENCE,
           "await pool.release(connection, timeout=FAREWELL_SECONDS)", "await pool.release(connection)", (LEASES,)),
    Mutant("leases: a silent server is waited for in a transaction", PG_PATIENCE,
           "asyncio.timeout(FAREWELL_SECONDS)", "asyncio.timeout(None)", (LEASES,)),
    Mutant("leases: lanes wait out an outage", "postroad/relay/breaker.py", "for event in (self._closed, stopping)",
           "for event in (self._closed,)", (RELAYS,)),
    Mutant("leases: what was just given up is taken back", HOLDINGS,
           "if lane not in running or", "if lane not in self._tenures or", (HOLDINGS_TEST,)),
    Mutant("leases: a lost lane is taken back while it runs", HOLDINGS, "again=again, but=lost", "again=again",
           (HOLDINGS_TEST,)),
    Mutant("leases: a lane that is to be given up waits for its confirms for ever", "postroad/relay/relay.py",
           "tenure.stop = lambda: self._stop_lane(lane)", "tenure.stop = lane.stop", (RELAYS,)),
    Mutant("leases: a lane is left to one that does not come", HOLDINGS,
           "share = fair_share(standing.lanes, peers,", "share = fair_share(standing.lanes, standing.peers,",
           (HOLDINGS_TEST,)),
    Mutant("leases: who has a locked lane left is dead", PG_LEASES,
           "where r.owner = any($1::uuid[]) and not exists (select from {schema}.lanes l where l.owner = r.owner)",
           "where r.owner = any($1::uuid[])", (LEASES,)),
    Mutant("leases: who leaves a locked lane is forgotten", PG_LEASES,
           "and (r.lock_key is null or not exists (select from {schema}.lanes l where l.owner = $1))", "", (LEASES,)),
    Mutant("leases: the dead are never forgotten", PG_LEASES, "and alive_until < clock_timestamp() - interval '1 day'",
           "and false", (LEASES,)),
    Mutant("a server that was started anew goes unnoticed", PG,
           "if lease is not None and self._loaded.get((lease.sink, lease.lane)) != self._servers:", "if False:",
           (LOST,)),
    # Publishing
    Mutant("a key's messages go at once", "postroad/relay/waves.py", "if len(set(keys)) == len(keys):",
           "if True:", (RELAY,)),
    Mutant("the cursor passes what was not confirmed", LANE,
           "self._note(page.messages[:beginning], outcome, page.cursor_after(beginning))",
           "self._note(page.messages[:beginning], outcome, page.after)", (RELAY,)),
    Mutant("what an outage had confirmed goes again", SENDING, "outcome.confirmed |= outage.confirmed", "pass",
           (RELAY,)),
    # Comparing what was committed with what arrived
    Mutant("a reason is good for all that ever arrived", VERIFY, "self.began - self.reach <= before.at <= self.ended",
           "before.at <= self.ended", (VERIFYING,)),
    Mutant("what came again may come for ever", VERIFY, "in pairwise(every)",
           "in ((every[0], other) for other in every[1:])", (VERIFYING,)),
    # Going back in time
    Mutant("a lane that is older than remembered is read", STORE_CONTRACT, "if version < self.version:", "if False:",
           (STORES,)),
    Mutant("a log that begins anew below the saved cursor is read", STORE_CONTRACT,
           "if log_end < self.cursor.position:", "if False:", (PUT_BACK,)),
    Mutant("a log that ends before the cursor is read", STORE_CONTRACT, "if log_end < cursor.position:", "if False:",
           (STORES,)),
    Mutant("a lane that is another's is read", STORE_CONTRACT, "if version is None:",
           "if version is None:\n            return\n        if version is None:", (STORES,)),
    Mutant("only a new connection asks whether the log has moved", PG,
           "await self._check_server(connection)\n        async with self._connection() as connection, in_tr",
           "pass\n        async with self._connection() as connection, in_tr", (PUT_BACK,)),
    Mutant("a log that is being restored is carried over", PG, 'if not facts["complete"]:', "if False:", (POSTGRESQL,)),
    Mutant("a copy of the file with the same lane passes the fence (SQLite)", SQLITE_QUERIES,
           "and ?7 = (select schema_version from pragma_schema_version)",
           "and ?7 <> -1 - (select schema_version from pragma_schema_version)", (PUT_BACK,), times=2),
    # Trouble
    Mutant("a refused message is passed without a row", LANE,
           "self._deferred += decided", "pass", (REFUSALS,)),
    Mutant("again, for the property test", LANE, "self._deferred += decided", "pass", (ORDER,)),
    Mutant("followers go although their head is in trouble", TROUBLE, "    if not heads:\n", "    if True:\n",
           (REFUSALS,)),
    Mutant("again, for the property test", TROUBLE, "    if not heads:\n", "    if True:\n", (ORDER,)),
    Mutant("what was refused and not decided is passed", SENDING,
           "or message.position in self.deferred or", "or message.position in self.refused or", (REFUSALS,)),
    Mutant("followers of a dead message go before its death is recorded", TROUBLE,
           "if deferral.key is not None:\n            heads",
           "if deferral.key is not None and deferral.blocks:\n            heads", (ORDER,)),
    Mutant("an outage counts an attempt", SENDING, "if failures == enough:", "if True:", (REFUSALS,)),
    Mutant("a route that is out counts attempts", TROUBLE, "if refusal.route is not None and not refusal.permanent:",
           "if False:", (REFUSALS,)),
    Mutant("the relay goes on from memory after an error", LANE, "                await self._load()\n",
           "                if not self.pages:\n                    await self._load()\n", (RESTARTS,)),
    Mutant("an exception ends the lane", SENDING,
           'return await self._take_apart(messages, f"the publisher failed: {error!r}", outcome)', "raise",
           (REFUSALS,)),
    # Retention
    Mutant("retention goes by age alone", PG_QUERIES, "and not {schema}.passed(batch.position, batch.xid, l))",
           "and false)", (STORES,)),
    Mutant("retention goes by age and position", PG_RIGHTS,
           "($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot)", "($3).position", (POSTGRESQL,)),
    Mutant("again, for the property test", PG_RIGHTS,
           "($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot)", "($3).position", (LOG_MACHINE,)),
    Mutant("retention before there is a sink", PG_QUERIES, "and exists (select from {schema}.lanes)", "", (STORES,)),
    Mutant("retention goes by age alone (SQLite)", SQLITE_QUERIES, "and {schema}_outbox.position > l.position)",
           "and false)", (STORES,)),
    Mutant("positions are used again (SQLite)", SQLITE_SCHEMA, "integer primary key autoincrement",
           "integer primary key", (STORES,)),
    # Later, and canceling
    Mutant("scheduled messages of a key enter the log in any order", PG_QUERIES,
           "order by due_at, number\n    on conflict", "order by payload desc\n    on conflict", (SCHEDULED,)),
    Mutant("canceling believes what is scheduled, and forgets the log", PG_OWNERS,
           "if not found or (was_scheduled and not message.ours) then", "if not found or was_scheduled then",
           (SCHEDULED,)),
    Mutant("canceling looks before it locks", PG_OWNERS,
           "    delete from {schema}.scheduled where id = $1 and (added_by is null or {schema}.acts_as(added_by));\n"
           "    was_scheduled := found;\n",
           "    was_scheduled := exists (select from {schema}.scheduled where id = $1);\n"
           "    perform from {schema}.outbox where id = $1;\n    was_scheduled := was_scheduled and not found;\n"
           "    delete from {schema}.scheduled where id = $1;\n"
           "    if was_scheduled then return 'canceled'; end if;\n", (RACE,)),
    Mutant("canceling tells no lane", PG_OWNERS, "route = null, noticed = false", "route = null", (SCHEDULED_PG,)),
    Mutant("canceling what is too late keeps its locks", PG_OWNERS, "            raise sqlstate 'PR001';\n",
           "            return 'too late';\n", (SCHEDULED_PG,)),
    Mutant("a claim waits for an application", PG_QUERIES, "order by due_at, position limit $4::integer + 1\n"
           "       for update skip locked),", "order by due_at, position limit $4::integer + 1\n       for update),",
           (SCHEDULED_PG,)),
    Mutant("a claim takes what follows a message that is being canceled", PG_QUERIES,
           "where ends.position is null or waiting.position < ends.position",
           "where waiting.position in (select position from free)", (SCHEDULED_PG,)),
    Mutant("a claim forgets what is being canceled", PG_QUERIES, ") as locked\n", ") and false as locked\n",
           (SCHEDULED_PG,)),
    Mutant("retention deletes what a lane has not noticed", PG_QUERIES, " or not d.noticed))\n    returning",
           "))\n    returning", (SCHEDULED_PG,)),
    Mutant("canceling believes in what may have been sent", PG_OWNERS, " and not unsure;", ";", (SCHEDULED,)),
    Mutant("canceling believes in what may have been sent (SQLite)", SQLITE_QUERIES, " and not d.unsure", "",
           (SCHEDULED,)),
    Mutant("what was held after a load is sure", PG_QUERIES, "position <= $5::bigint", "position <= 0 * $5::bigint",
           (CANCELING,)),
    Mutant("what was held after a load is sure (SQLite, memory)", STORE_CONTRACT,
           "unsure=position <= unsure_through", "unsure=False", (CANCELING,)),
    Mutant("what was refused after a load is sure", SENDING,
           "return message.position <= self._unsure_through or message.position in self.unanswered",
           "return message.position in self.unanswered", (CANCELING,)),
    Mutant("again, for the property test", LANE, "self._unsure_through = loaded.log_end", "pass", (CANCELING_MACHINE,)),
    Mutant("what a broker did not answer is sure", SENDING,
           "return message.position <= self._unsure_through or message.position in self.unanswered",
           "return message.position <= self._unsure_through", (CANCELING,)),
    Mutant("what is poisoned ahead of its lane is sure", PG_OPERATING, "$3, $5, $4::text, true,",
           "$3, $5, $4::text, false,", (CANCELING,)),
    Mutant("what is poisoned ahead of its lane is sure (SQLite)", SQLITE_OPERATING, "?2, ?4, ?3, 1,", "?2, ?4, ?3, 0,",
           (CANCELING,)),
    Mutant("canceling asks no other sink (SQLite)", SQLITE_QUERIES, "and not (o.position <= l.position\n",
           "and false and not (o.position <= l.position\n", (SCHEDULED,)),
    Mutant("canceling is for everybody", PG_OWNERS,
           "revoke all on function {schema}.cancel(uuid) from public;", "", (SCHEDULED_PG,)),
    # Adding
    Mutant("add commits by itself (asyncpg)", "postroad/stores/connections/asyncpg.py",
           "if not connection.is_in_transaction():", "if False:", (OUTBOX,)),
    Mutant("add commits by itself (sqlite3)", "postroad/stores/connections/sqlite.py",
           "if autocommit is True or (autocommit is not False and connection.isolation_level is None):", "if False:",
           (OUTBOX,)),
    Mutant("an add that is awaited too late commits by itself", "postroad/stores/connections/__init__.py",
           "target = hand.ready(connection)  #", "target = connection  #", (OUTBOX,)),
    Mutant("a forgotten await is silent", "postroad/stores/connections/pending.py",
           "if not self._started:\n            text", "if False:\n            text", (OUTBOX,)),
    Mutant("SQL and Python disagree on slots", PG_RIGHTS, "1024)::pg_catalog.int2", "1023)::pg_catalog.int2",
           (POSTGRESQL,)),
    Mutant("an application may choose its row's position", "postroad/stores/sql/postgresql/grants/application.sql",
           "headers) on {schema}.outbox", "headers, xid, position) on {schema}.outbox", (POSTGRESQL,)),
    # Other roles
    Mutant("rights: a relay trusts a search_path", PG, "    {PIN_SESSION};\n    set plan", "    set plan",
           (SEARCH_PATH,)),
    Mutant("rights: behind a pooler it trusts one", PG_QUERIES,
           "select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),", "select", (SEARCH_PATH,)),
    Mutant("rights: a migration trusts a search_path", PG, "        await connection.execute(PIN_TRANSACTION)\n", "",
           (SEARCH_PATH,)),
    Mutant("rights: adding trusts a search_path", PG_QUERIES, "at operator(pg_catalog.*) interval", "at * interval",
           (SEARCH_PATH,)),
    # Being woken
    Mutant("waking: nobody is asked who may have missed the nap", WAKEUP,
           "self._unaware = self._writers = await self._wakeup.naps.writers()", "self._unaware = self._writers = ()",
           (NAPS,)),
    Mutant("waking: a prepared transaction's new name is not known", WAKEUP, "if left != set(unaware):", "if False:",
           (WAKEUP_SEARCH,)),
    Mutant("waking: what was heard is forgotten before sleeping", WAKEUP, "        self.asleep = True\n",
           "        self.asleep = True\n        self._bell._signal.clear()\n", (WAKEUP_SEARCH,)),
    Mutant("waking: what is heard while too many were in vain is dropped", "postroad/relay/bell.py",
           "            if self._heard:\n                self._signal.set()\n", "", ("tests/security/test_waking.py",)),
    Mutant("waking: a nap that was not renewed is slept on", WAKEUP,
           "if rest.nap in naps and rest.nap not in found.kept:", "if False:", (WAKING,)),
    Mutant("waking: who never heard itself sleeps", WAKEUP, "        self.hears = False\n        \"\"\"Our",
           "        self.hears = True\n        \"\"\"Our", (WAKING,)),
    Mutant("waking: a nap that is nearly over is renewed", PG_LEASES,
           "and until > clock_timestamp() + $10::float8 / 3 * interval '1 second'", "", (NAPS,)),
    Mutant("waking: a tick's old answer counts", "postroad/relay/ownership.py", "if beat is self._carried:", "if True:",
           (CARRIED,)),
    Mutant("waking: a lane that is given up keeps its nap", "postroad/relay/wakeup.py",
           "rest.get_up()\n        self._rests.remove(rest)", "self._rests.remove(rest)", (WAKING,)),
    Mutant("waking: only READ COMMITTED notifies", PG_NAPS, "<> 'read committed'", "= 'nonsense'", (NAPS,)),
    Mutant("waking: the trigger trusts a search_path", PG_NAPS,
           "security definer\nset search_path = pg_catalog, pg_temp as\n$$\ndeclare",
           "security definer as\n$$\ndeclare", (NAPS,)),
    Mutant("waking: the trigger runs as the application", PG_NAPS, "volatile security definer", "volatile",
           (NAPS,), times=2),
    Mutant("waking: every nap is notified, whatever its slots", PG_NAPS, "and n.marks & mark <> 0", "", (NAPS,)),
    Mutant("waking: a full queue of notifications fails commits", PG_NAPS,
           "if pg_notification_queue_usage() <= 0.5 then", "if true then", (NAPS,), times=2),
    Mutant("waking: who listened is remembered for a transaction", PG_NAPS,
           "loop\n            perform pg_stat_clear_snapshot();", "loop\n", (NAPS,)),
    Mutant("waking: marks are wiped without the lock", PG_RIGHTS, "where name = 'naps' for update skip locked;",
           "where name = 'naps';", (NAPS,)),
    Mutant("waking: marks are wiped though others nap", PG_RIGHTS, "coalesce((select bit_or(n.marks)",
           "coalesce((select 0", (NAPS,)),
    Mutant("waking: marks are wiped by an old snapshot", PG_RIGHTS,
           "if current_setting('transaction_isolation') <> 'read committed' then", "if false then", (NAPS,)),
    Mutant("waking: who has wiped keeps others from napping", PG_RIGHTS, "raise sqlstate 'PR000';", "null;", (NAPS,)),
    Mutant("waking: a nap is renewed without its marks", PG_LEASES,
           "and marks & ~ coalesce(pg_sequence_last_value('{schema}.napping'::regclass), 0) = 0", "", (NAPS,)),
    Mutant("waking: what was told is remembered for a session", PG_NAPS, "(told | mark)::text, true)",
           "(told | mark)::text, false)",
           (NAPS,)),
    Mutant("waking: the last slots have no mark", "postroad/stores/postgresql_naps.py", "1 << 63 - last",
           "1 << 64 - last", (NAPS,)),
    Mutant("waking: a nap is not marked", PG_QUERIES, "| $3::bigint)", "| (0 * $3::bigint))", (NAPS,)),
    Mutant("waking: a pooler's sessions keep our settings", PG, "if not self._pooled:\n            await connection.",
           "if True:\n            await connection.", (POOLER,)),
    Mutant("waking: behind a pooler cursors are saved at leisure", PG_QUERIES, "case when $10::boolean then",
           "case when $10::boolean and false then", (POOLER,), times=2),
    # Receiving
    Mutant("a batch asks the inbox in any order", PG_OWNERS, "order by new.id collate \"C\"", "", (INBOX,)),
    Mutant("the inbox's lock timeout stays with the transaction", PG_OWNERS,
           "    perform set_config('lock_timeout', before, true);\n", "", (INBOX,), times=2),
    Mutant("the inbox knows a message by its id alone", "postroad/received.py",
           "return f\"{source.replace(' ', '%20')} {id}\"", "return id", (INBOX,)),
    Mutant("what was processed before sources counted is forgotten", PG_OWNERS,
           "if first and $5 is not null then", "if false then", (INBOX,)),
    Mutant("a consumer's name is for everybody", PG_OWNERS,
           "if owner <> session_user and not {schema}.acts_as(owner) then", "if false then", (RIGHTS_CONSUMERS,)),
    Mutant("a message is for everybody to cancel", PG_OWNERS, "select $1 = session_user\n", "select true\n",
           (RIGHTS_MESSAGES,)),
    Mutant("a message whose id is taken is lost in silence", PG_OWNERS, "limit 1;\n    if found then",
           "limit 1;\n    if false then", (RIGHTS_MESSAGES,)),
    Mutant("a handler is called whether or not it is the first time", HANDLER_TRANSACTION,
           "if not recorded.new[0]:\n", "if False:\n", (CONSUMER,)),
    Mutant("of a batch all are handled, known or not", HANDLER_TRANSACTION,
           "found = [message for message, first in zip(messages, recorded.new, strict=True) if first]",
           "found = [message for message, first in zip(messages, recorded.new, strict=True) if True]", (CONSUMER,)),
    Mutant("a handler that hides that it was cancelled has handled its message", HANDLER_TRANSACTION,
           "if limit.expired():", "if False:", ("tests/contracts/test_handler_timeout.py",)),
    Mutant("a body that is too large is lost on the way to the dead letters", "postroad/brokers/amqp_reading.py",
           "self._spool.write(frame)", "self._spool.size += len(frame)", ("tests/unit/test_amqp_reading.py",)),
    Mutant("nothing says which message led to which", HANDLER_TRANSACTION, "causation_id=message.id,", "", (CONSUMER,)),
    Mutant("a key's messages overtake each other", "postroad/consumer/keys.py",
           "self._behind[key].append(item)\n            return", "self._ready.append((None, item))\n            return",
           (CONSUMER,)),
    Mutant("a batch that failed is handled again out of order", "postroad/consumer/keys.py",
           "self._behind[key].extendleft(reversed(items[1:]))", "self._behind[key].extend(items[1:])", (KEYS,)),
    Mutant("a handler that kills its process counts nothing", PG_OWNERS, "running = true, changed_at",
           "running = false, changed_at", (CONSUMER,)),
    Mutant("an outage is an attempt", DELIVERY,
           "        except (InboxUnavailable, MessageBusy):\n            raise\n", "", (CONSUMER,)),
    Mutant("a dead letter is acked before it is kept", DELIVERY,
           "await self._subscriber.dead_letter(item.delivery, headers)", "", (CONSUMER,)),
    Mutant("a transaction that an error has aborted counts as committed", "postroad/consumer/transaction_check.py",
           "raise TransactionAborted(ABORTED)\n        case", "return\n        case",
           (CONSUMER_FAILURES,)),
    Mutant("whatever the server reports, the transaction is the same", "postroad/stores/connections/__init__.py",
           "before is False and hand.reported(connection)", "before is False", (CONSUMER_FAILURES, HANDLERS_THAT_END)),
    Mutant("SQLite's transactions are always the same", "postroad/stores/statements.py",
           "return Question([named(dialect, placeholders, schema, \"same_transaction\")], lambda _: True)",
           "return Question([], lambda _: True)", (HANDLERS_THAT_END,)),
    Mutant("a handler that commits and goes on has processed its message", DELIVERY,
           "await self._transaction.undo([message])\n        attempts", "attempts", (HANDLERS_THAT_END,)),
    Mutant("a commit that can't be seen yet counts as undone", PG_OWNERS,
           "and not pg_visible_in_snapshot($1::xid8, pg_current_snapshot())", "and false",
           (HANDLERS_THAT_END,)),
    Mutant("what a failed handler committed is remembered for nobody", HANDLER_TRANSACTION,
           "self._failed |= dict.fromkeys(new, recorded.transaction)", "pass", (HANDLERS_THAT_END,)),
    Mutant("another's row goes with a handler's roll-back", PG_OWNERS, "if status = 'committed' then",
           "if status <> 'in progress' then", (HANDLERS_THAT_END,)),
    Mutant("again, on SQLite", SQLITE_QUERIES, "where processed_at = ? and consumer = ? and id in",
           "where ? > 0 and consumer = ? and id in", (HANDLERS_THAT_END,)),
    Mutant("a begin that does not commit is taken", PROBE,
           "if not await transactions.run(probe.was_committed):", "if False:", (BEGIN,)),
    Mutant("a begin that commits after an error is taken", PROBE, "    if await transactions.run(probe.was_committed):",
           "    if False:", (BEGIN,)),
    Mutant("a transaction that is still open looks committed", PROBE,
           "return False  # it is still the same one", "return True", (BEGIN,)),
    Mutant("a lost connection that a handler hides is an attempt", HANDLER_TRANSACTION,
           "if state is State.LOST:", "if False:", (OUTAGES,)),
    Mutant("what met an outage is marked again and counts as a death", DELIVERY,
           "self._marked.get(message.identity) or", "", (CONSUMER_FAILURES,)),
    Mutant("a stop counts as a death", "postroad/consumer/run.py",
           "asyncio.create_task(self._processor.unmark_all())", "asyncio.create_task(asyncio.sleep(0))",
           (CONSUMER_STOPS,)),
    Mutant("a lost connection is an attempt", TRANSACTIONS, "if is_passing(first) or is_passing(error):", "if False:",
           (CONSUMER_FAILURES,)),
    Mutant("a message is dead-lettered again while the database is unavailable", DELIVERY,
           "if item.dead_letter_id is None:", "if True:", (CONSUMER_STOPS,)),
    Mutant("a handler is called again while its failure can't be counted", DELIVERY,
           "if item.failure is not None:", "if False:", (CONSUMER_FAILURES,)),
    Mutant("one who stands by begins with what comes later", "postroad/consumer/run.py",
           "if not self._options.keep_order:", "if True:", (CONSUMERS,)),
    Mutant("a consumer forgets what another has processed", SQLITE_QUERIES,
           "where consumer = ? and processed_at <", "where ? <> '' and processed_at <", (CONSUMER,)),
    Mutant("what was told is acked again", "postroad/brokers/amqp_acks.py",
           "self._told = {tag for tag in self._told if tag > end}.union(beyond)", "self._told = set()", (ACKS,)),
    Mutant("NaN is written as null", PAYLOAD,
           'b"null" in payload or ', "", (PAYLOADS,)),
    Mutant("a task of another framework is written as an event", PAYLOAD,
           " or _task_framework(cls)", "", (PAYLOADS,)),
    Mutant("any kind of dict is written as an event", PAYLOAD,
           "if cls is dict or", "if issubclass(cls, dict) or", (PAYLOADS,)),
    # Where a sink delivers to
    Mutant("a relay starts for a sink that delivers elsewhere", "postroad/stores/postgresql_leases.py",
           "if kept != destination:", "if False:", (SINKS,)),
    Mutant("lanes are taken for any destination", PG_LEASES, "where exists (select from served)",
           "where $7::text is not null", (SINKS,)),
    Mutant("null:// adopts a sink whose destination is not known", "postroad/stores/sqlite_leases.py",
           "(sink, destination, destination != NOWHERE)", "(sink, destination, True)", (SINKS,)),
    Mutant("a sink is moved although a relay serves it", "postroad/stores/changing.py",
           "if relays or lanes:", "if False:", (SINKS,)),
    Mutant("what was moved or removed is served on", HOLDINGS,
           "if standing.destination != self._runner.destination:", "if False:", (SINKS,)),
    Mutant("a message whose queue is full is dropped", TROUBLE,
           "if refusal.unroutable and self._drops_unroutable:",
           "if refusal.route is not None and self._drops_unroutable:", (UNROUTABLE,)),
    Mutant("a message in trouble waits for another source's", TROUBLE,
           "key = self.line(message) if self._ordered else None", "key = message.key if self._ordered else None",
           (UNROUTABLE,), times=2),
    Mutant("what a person holds goes out by source", PG_QUERIES, "h.key in (d.key, split_part(d.key, chr(31), 1))",
           "h.key = d.key", (UNROUTABLE,), times=4),
    Mutant("a message dies of its route before its time", TROUBLE,
           "and waited >= self._route_timeout", "", (UNROUTABLE,)),
]  # fmt: skip


def run_tests(source: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def plant(mutant: Mutant, folder: Path) -> Path:
    source = folder / "src"
    shutil.copytree(SOURCE, source)
    file = source / mutant.file
    text = file.read_text()
    if text.count(mutant.right) != mutant.times:
        raise SystemExit(f"{mutant.name}: the right text stands {text.count(mutant.right)} times in {mutant.file}")
    file.write_text(text.replace(mutant.right, mutant.wrong))
    return source


def caught(mutant: Mutant) -> tuple[Mutant, bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        result = run_tests(plant(mutant, Path(folder)), mutant.tests)
    lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    # Only a failed test counts: an error of collection or of a fixture would be a mistake of this file.
    return mutant, result.returncode == 1 and any(line.startswith("FAILED") for line in lines), "\n".join(lines)


def main() -> int:
    wanted = [mutant for mutant in MUTANTS if all(word in mutant.name for word in sys.argv[1:])]
    tests = tuple(sorted({test for mutant in wanted for test in mutant.tests}))
    print(f"{len(wanted)} mutants; first the tests as they are: {' '.join(tests)}", flush=True)  # noqa: T201
    sane = run_tests(SOURCE, tests)
    if sane.returncode != 0:
        print(sane.stdout[-3000:])  # noqa: T201
        return 1
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, was_caught, how in pool.map(caught, wanted):
            survived += not was_caught
            print(f"{'caught  ' if was_caught else 'SURVIVED'}  {mutant.name}  [{how.partition(' - ')[0]}]", flush=True)  # noqa: T201
    print(f"{len(wanted) - survived} passed, {survived} failed")  # noqa: T201
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
