"""`make mutants`: plant each known mistake in a copy of the source, and fail unless the tests catch every one.

`python -m tests.mutants WORD…` plants those whose names contain all these words.

Each mutant is a mistake that would cost messages; it names the tests that are there to catch it.
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
CONVOY = "postroad/relay/convoy.py"
GROUPING = "postroad/relay/grouping.py"
MESSAGE = "postroad/message.py"
HANDLER_TRANSACTION = "postroad/consumer/handler_transaction.py"
TIME_LIMIT = "postroad/consumer/time_limit.py"
DELIVERY = "postroad/consumer/delivery.py"
DISPATCH = "postroad/consumer/dispatch.py"
TRANSACTIONS = "postroad/consumer/transactions.py"
PROBE = "postroad/consumer/probe.py"
LOCAL = "postroad/consumer/local.py"
SHARING = "postroad/brokers/rabbitmq/sharing.py"
PARTITIONS = "postroad/brokers/rabbitmq/partitions.py"
TOPOLOGY = "postroad/brokers/rabbitmq/topology.py"
DELIVERY_CHANNEL = "postroad/brokers/rabbitmq/delivery_channel.py"
RABBITMQ_PUBLISHER = "postroad/brokers/rabbitmq/publisher.py"
PUBLISHING = "postroad/relay/publishing.py"
BREAKER = "postroad/relay/breaker.py"
OUTCOME = "postroad/relay/outcome.py"
PROGRESS = "postroad/relay/progress.py"
DEFERRED = "postroad/relay/deferred.py"
WAKEUP = "postroad/relay/wakeup.py"
IDLE = "postroad/relay/idle.py"
PG = "postroad/stores/postgresql.py"
PG_DIALECT = "postroad/stores/dialects/postgresql.py"
PG_STORE_LEASES = "postroad/stores/postgresql_leases.py"
PG_LEASES = "postroad/stores/sql/postgresql/leases.sql"
PG_DEFERRED = "postroad/stores/postgresql_deferred.py"
PG_MANY = "postroad/stores/postgresql_many.py"
PG_POOL = "postroad/stores/postgresql_pool.py"
COPIES = "postroad/relay/copies.py"
LIVENESS = "postroad/relay/liveness.py"
OWNED_LANE = "postroad/relay/owned_lane.py"
OWNERSHIP = "postroad/relay/ownership.py"
PLAN = "postroad/relay/plan.py"
PG_SCHEMA = "postroad/stores/sql/postgresql/0001_initial.sql"
PG_QUERIES = "postroad/stores/sql/postgresql/queries.sql"
SQLITE_SCHEMA = "postroad/stores/sql/sqlite/0001_initial.sql"
VERIFY = "postroad/verify.py"
PAYLOAD = "postroad/payload.py"
SQLITE_QUERIES = "postroad/stores/sql/sqlite/queries.sql"
PG_ADMIN = "postroad/stores/sql/postgresql/admin.sql"
SQLITE_ADMIN = "postroad/stores/sql/sqlite/admin.sql"
STORE_CONTRACT = "postroad/stores/base.py"
SAVEPOINT = "postroad/stores/connections/savepoint.py"
SWEEP = "postroad/stores/admin/payloads.py"
CODEC_CHAIN = "postroad/codecs/chain.py"
CLAIM_CHECK = "postroad/codecs/claim_check.py"
KAFKA_WINDOW = "postroad/brokers/kafka/window.py"
KAFKA_ANSWERS = "postroad/brokers/kafka/answers.py"
NATS_WINDOW = "postroad/brokers/nats/window.py"
NATS_SESSION = "postroad/brokers/nats/session.py"

STORES = "tests/contracts/test_stores.py"
ADMIN_RESTORE = "tests/contracts/test_admin_restore.py"
ADMIN_EXPECTED = "tests/contracts/test_admin_expected.py"
CODECS = "tests/contracts/test_codecs.py"
CODECS_CONSUMER = "tests/contracts/test_codecs_consumer.py"
PAYLOAD_SWEEP = "tests/contracts/test_payload_sweep.py"
PAYLOAD_RACES = "tests/scenarios/test_payload_races.py"
HTTP = "tests/contracts/test_http.py"
POSTGRESQL = "tests/contracts/test_postgresql.py"
MANY = "tests/contracts/test_many_lanes.py"
CONVOYS = "tests/contracts/test_convoy.py"
CONVOY_TEST = "tests/unit/relay/test_convoy.py"
GROUPING_TEST = "tests/unit/relay/test_grouping.py"
CURSOR_TEST = "tests/unit/stores/test_cursor.py"
LIMITS = "tests/security/test_limits.py"
RELAY = "tests/contracts/test_relay.py"
REFUSALS = "tests/contracts/test_refusals.py"
ORDER = "tests/properties/test_order.py"
IN_ORDER = "tests/contracts/test_in_order.py"
PUBLISHERS = "tests/contracts/test_publishers.py"
LEASES = "tests/contracts/test_leases.py"
RELAYS = "tests/contracts/test_relays.py"
OWNED_LANE_TEST = "tests/unit/relay/test_owned_lane.py"
OWNERSHIP_TEST = "tests/unit/relay/test_ownership.py"
BREAKER_TEST = "tests/unit/relay/test_breaker.py"
PLAN_TEST = "tests/unit/relay/test_plan.py"
LEASES_MACHINE = "tests/properties/test_leases.py"
VERIFYING = "tests/unit/test_verify.py"
OUTBOX = "tests/contracts/test_outbox.py"
CANCELING = "tests/contracts/test_canceling.py"
CANCELING_MACHINE = "tests/properties/test_canceling.py"
SCHEDULED = "tests/contracts/test_scheduled.py"
DEAD_LETTER_SINKS = "tests/contracts/test_dead_letter_sinks.py"
SCHEDULED_PG = "tests/contracts/test_scheduled_postgresql.py"
RACE = "tests/scenarios/test_scheduled.py"
LOG_MACHINE = "tests/properties/test_log.py"
FILTERS = "tests/contracts/test_filters.py"
PATTERNS_TEST = "tests/unit/test_topic_patterns.py"
PAGE_SIZES = "tests/properties/test_page_sizes.py"
RETENTION = "tests/properties/test_retention.py"
WAKING = "tests/contracts/test_wakeup.py"
NAPS = "tests/contracts/test_naps_postgresql.py"
WAKEUP_SEARCH = "tests/properties/test_wakeup.py"
OWNERSHIP_HEARTBEATS = "tests/unit/relay/test_ownership_heartbeats.py"
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
SHARED = "tests/contracts/test_shared_transactions.py"
KEYS = "tests/unit/consumer/test_keys.py"
REVOKED = "tests/contracts/test_revoked.py"
RABBITMQ = "tests/contracts/test_rabbitmq.py"
LANE_EPOCHS = "tests/contracts/test_lane_epochs.py"
EPOCHS_TEST = "tests/unit/relay/test_epochs.py"
TOMBSTONES = "tests/contracts/test_tombstones.py"
ACKS = "tests/unit/brokers/rabbitmq/test_acks.py"
WINDOW = "tests/unit/brokers/kafka/test_window.py"
KAFKA = "tests/contracts/test_kafka.py"
ANSWERS = "tests/unit/brokers/kafka/test_answers.py"
KAFKA_SUBSCRIBER = "tests/contracts/test_kafka_subscriber.py"
NATS_WINDOW_TEST = "tests/unit/brokers/nats/test_window.py"
NATS_ANSWERS = "tests/unit/brokers/nats/test_answers.py"
NATS_SUBSCRIBER = "tests/contracts/test_nats_subscriber.py"
SEARCH_PATH = "tests/security/test_search_path.py"
SINKS = "tests/contracts/test_sinks.py"
UNROUTABLE = "tests/contracts/test_unroutable.py"
DIVIDED = "tests/contracts/test_partitions.py"
DIVIDED_TEST = "tests/unit/brokers/rabbitmq/test_partitions.py"
PAYLOADS = "tests/unit/test_payload.py"
OTEL = "tests/unit/test_otel.py"
FOLLOWING = "tests/contracts/test_following.py"
NOTES_TEST = "tests/unit/relay/test_notes.py"
NOTES = "postroad/relay/notes.py"
FOLLOWING_LANE = "postroad/relay/following.py"


class Mutant(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    times: int = 1
    """How often the right text stands in the file; all of them become wrong."""


MUTANTS = [
    # Payloads that are stored elsewhere
    Mutant("payload: put before INSERT", SAVEPOINT, "    adapter.execute(target, SAVEPOINT)\n    try:\n",
           "    put_all(puts)\n    adapter.execute(target, SAVEPOINT)\n    try:\n", (CODECS,)),
    Mutant("payload: put before INSERT, raced", SAVEPOINT, "    await adapter.execute(target, SAVEPOINT)\n    try:\n",
           "    await put_all_async(puts)\n    puts = ()\n    await adapter.execute(target, SAVEPOINT)\n    try:\n",
           (PAYLOAD_RACES,)),
    Mutant("payload: the row stays when the put fails", SAVEPOINT, "        adapter.execute(target, ROLLBACK)\n", "",
           (CODECS,)),
    Mutant("payload: the row stays when the async put fails", SAVEPOINT,
           "        await adapter.execute(target, ROLLBACK)\n", "", (CODECS,)),
    Mutant("payload: SQLite commits at the RELEASE", "postroad/stores/connections/sqlite.py",
           "    if not connection.in_transaction:\n        connection.execute(f\"begin",
           "    if False:\n        connection.execute(f\"begin", (CODECS,)),
    Mutant("payload: a path is the same for every attempt", CLAIM_CHECK, "{secrets.token_hex(8)}", "{'0' * 16}",
           (PAYLOAD_SWEEP,)),
    Mutant("payload: the sweep does not wait", SWEEP, "        await _until_decided(database)\n", "", (PAYLOAD_SWEEP,)),
    Mutant("payload: the sweep does not wait, raced", SWEEP, "        await _until_decided(database)\n", "",
           (PAYLOAD_RACES,)),
    Mutant("payload: the sweep waits up to the snapshot's xmax", PG_ADMIN, "select pg_current_xact_id()::text",
           "select pg_snapshot_xmax(pg_current_snapshot())::text", (PAYLOAD_SWEEP,)),
    Mutant("payload: the sweep looks for no rows after it has waited", SWEEP,
           "        unused = await _unused(database, page)\n",
           "        unused = [path for path, _ in page if id_in(path)]\n", (PAYLOAD_SWEEP,)),
    Mutant("payload: scheduled messages are forgotten by the sweep", PG_ADMIN,
           "select headers ->> 'dataref' from {schema}.scheduled where id = any($1::uuid[])",
           "select null from {schema}.scheduled where id = any($1::uuid[])", (PAYLOAD_SWEEP,)),
    Mutant("payload: a duplicate is a dead letter when its payload is gone", HANDLER_TRANSACTION,
           "_check_payloads(new, undone.failures)", "_check_payloads(messages, undone.failures)", (CODECS_CONSUMER,)),
    Mutant("payload: an outage of its store is a failed attempt", HANDLER_TRANSACTION,
           "        if isinstance(failure, PayloadsUnavailable):", "        if False:", (CODECS_CONSUMER,)),
    # Reading the log
    Mutant("in progress is taken from xip only", PG_QUERIES, "(xid >= $4 and xid < $12 or xid = any($5))",
           "(xid >= $4 and xid < $12 and false or xid = any($5))", (POSTGRESQL,), times=2),
    Mutant("again, for the property test", PG_QUERIES, "(xid >= $4 and xid < $12 or xid = any($5))",
           "(xid >= $4 and xid < $12 and false or xid = any($5))", (LOG_MACHINE,), times=2),
    Mutant("in progress is taken from xmax only", PG_QUERIES, "(xid >= $4 and xid < $12 or xid = any($5))",
           "(xid >= $4 and xid < $12 or xid = any($5) and false)", (POSTGRESQL,), times=2),
    Mutant("the horizon is the snapshot's xmax", PG_DIALECT, "& 4294967295", "& 0", (POSTGRESQL,)),
    Mutant("again, for the property test", PG_DIALECT, "& 4294967295", "& 0", (LOG_MACHINE,)),
    Mutant("the horizon is that of the position before", CURSOR, "Cursor(position, snapshot, horizon=horizon)",
           "Cursor(position, snapshot, horizon=before.horizon)", (POSTGRESQL,)),
    Mutant("again, for the property test", CURSOR, "Cursor(position, snapshot, horizon=horizon)",
           "Cursor(position, snapshot, horizon=before.horizon)", (LOG_MACHINE,)),
    Mutant("the horizon is not asked for", PG_QUERIES, "and xid < $12 or", "and $12 > xid8 '0' or", (POSTGRESQL,),
           times=2),
    Mutant("the horizon is not saved", PG_QUERIES, "horizon = $10, version",
           "horizon = nullif($10::xid8, $10), version", (POSTGRESQL,), times=3),
    Mutant("a new sink begins where the log ends when its lanes are made", PG_STORE_LEASES,
           'self._sql["create_lanes"], sink, lanes, position)',
           'self._sql["create_lanes"], sink, lanes, await connection.fetchval(self._sql["log_end"]))', (POSTGRESQL,)),
    Mutant("a restore keeps the horizon", PG_QUERIES, "horizon = null, owner", "owner", (POSTGRESQL,)),
    Mutant("again, for the property test", PG_QUERIES, "horizon = null, owner", "owner", (LOG_MACHINE,)),
    Mutant("the horizon is believed whatever the log shows", PG_QUERIES, "> position, true)", "> -position, true)",
           (POSTGRESQL,)),
    Mutant("a row has its position before its transaction has an id", PG_SCHEMA,
           "    xid          xid8        not null default pg_current_xact_id(),\n"
           "    position     bigint      not null generated always as identity primary key,\n",
           "    position     bigint      not null generated always as identity primary key,\n"
           "    xid          xid8        not null default pg_current_xact_id(),\n", (POSTGRESQL,)),
    Mutant("positions may be cached", PG, 'if facts["sequence_cache"] > 1:', "if False:", (POSTGRESQL,)),
    Mutant("only what lies ahead of the position is read", PG_QUERIES, "and position + 0 <= $3",
           "and position + 0 <= $3 and false", (POSTGRESQL,), times=2),
    Mutant("a row without its contents is taken for a message", PG, "if not has_too_large(rows):", "if rows:",
           (PAGE_SIZES,)),
    Mutant("every row may be as large as the page", PG_MANY, "limit.payload_bytes // limit.rows", "limit.payload_bytes",
           (PAGE_SIZES,)),
    Mutant("headers that are too long are read, if a page has room for them", PG_MANY,
           "min(limit.payload_bytes // limit.rows, LONGEST_HEADERS)", "limit.payload_bytes // limit.rows", (LIMITS,)),
    Mutant("one large message makes a lane slow for good", PG, "self._large.remove(lane)", "pass", (PAGE_SIZES,)),
    Mutant("again, for the property test", PG_QUERIES, "and position + 0 <= $3",
           "and position + 0 <= $3 and false", (LOG_MACHINE,), times=2),
    Mutant("the sub-cursor is dropped", CURSOR,
           "after = replace(before, late_position=rows[late - 1].position, late_snapshot=snapshot)",
           "after = Cursor(before.position, snapshot)", (POSTGRESQL,)),
    Mutant("again, for the property test", CURSOR,
           "after = replace(before, late_position=rows[late - 1].position, late_snapshot=snapshot)",
           "after = Cursor(before.position, snapshot)", (LOG_MACHINE,)),
    Mutant("next rows go out although late rows filled the page", CURSOR, "if late and limit.reached(rows[:late]):",
           "if late == len(rows) and limit.reached(rows[:late]):", (POSTGRESQL,)),
    Mutant("catching up sees more than the first look saw", PG_QUERIES,
           "and pg_visible_in_snapshot(xid, $13::text::pg_snapshot)", "and $13::text is not null", (POSTGRESQL,)),
    Mutant("a page left half-way forgets its late rows", CURSOR,
           "return replace(before, late_position=position, late_snapshot=self.snapshot)",
           "return Cursor(before.position, self.snapshot)", (POSTGRESQL,)),
    Mutant("the position falls to the last row read", CURSOR, "position = max(before.position, _end(log_end, reach))",
           "position = rows[-1].position if rows else log_end", (POSTGRESQL, STORES)),
    Mutant("a quiet lane never advances", CURSOR, "position = max(before.position, _end(log_end, reach))",
           "position = max(before.position, rows[-1].position if rows else 0)", (STORES,)),
    Mutant("headers do not count in a page that they cut short", MESSAGE,
           "return len(self.payload) + len(self.headers_json)", "return len(self.payload)", (STORES,)),
    Mutant("a row that is too large goes out empty", OUTCOME,
           "if message.is_unread}", "if message.is_unread and False}", (LIMITS,)),
    Mutant("the mover waits for an open transaction", "postroad/stores/postgresql_mover.py",
           "WAIT_MS: Final = 2_000", "WAIT_MS: Final = 0", ("tests/security/test_blocked_relays.py",)),
    Mutant("a slot is not checked", PG_SCHEMA, "or new.slot <>", "or 1 = 0 and new.slot <>", (LIMITS,), times=2),
    Mutant("the late query is written naively", PG_QUERIES,
           "and position + 0 <= $3\n         order by position + 0",
           "and position <= $3\n         order by position", (POSTGRESQL,)),
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
    Mutant("a lane is loaded without its owner being checked", PG_QUERIES, "and owner = $3 and epoch = $4\nreturning",
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
    Mutant("a relay of a server before this one is evicted", PG_LEASES,
           "and r.lock_key is not null and r.server_started = {schema}.server_started()", "and r.lock_key is not null",
           (LEASES,)),
    Mutant("a relay with a new heartbeat is evicted", PG_LEASES,
           "and r.heartbeat_at < clock_timestamp() - interval '1 second'", "", (LEASES,)),
    Mutant("a suspect that has sent a heartbeat since is evicted", PG_LEASES,
           "and r.heartbeats = suspect.heartbeats", "", (LEASES,)),
    Mutant("a dead relay is not evicted", PG_LEASES, "and r.heartbeats = suspect.heartbeats",
           "and r.heartbeats < suspect.heartbeats", (LEASES_MACHINE,)),
    Mutant("a wave begins although the lease is over", OWNED_LANE, "if not self._is_valid():", "if self.lost:",
           (OWNED_LANE_TEST, RELAYS)),
    Mutant("a lane that was reclaimed sends by its old state", OWNED_LANE,
           "raise LeaseInDoubt(f\"lane {lane}", "str(f\"lane {lane}", (OWNED_LANE_TEST,)),
    Mutant("a lane that was reclaimed writes in its new epoch before it is loaded", OWNED_LANE,
           "self._reclaimed, self.valid_until = lease,", "self.lease, self.valid_until = lease,",
           (OWNED_LANE_TEST,)),
    Mutant("a lease counts from its answer", OWNERSHIP, "owned.valid_until = self._heartbeats.lease_end(sent_at)",
           "owned.valid_until = self._heartbeats.lease_end(self._clock.now())", (OWNERSHIP_TEST,)),
    Mutant("a relay with too many lanes keeps them", PLAN, "sorted(state.kept)[share:]", "[]", (PLAN_TEST, RELAYS)),
    Mutant("a plan to release lanes is ignored", OWNERSHIP, "for number in todo.release:", "for number in []:",
           (OWNERSHIP_TEST, RELAYS)),
    Mutant("a suspect is evicted after one probe", PLAN, "if now - since >= EVICT_SECONDS", "if now >= since",
           (PLAN_TEST, OWNERSHIP_TEST)),
    Mutant("leases: a session that can't be opened is waited for", LIVENESS,
           "asyncio.timeout(self._timeout)", "asyncio.timeout(None)", (OWNERSHIP_TEST,)),
    Mutant("leases: a frozen relay that holds the lock keeps all from working", PLAN,
           "and acts_without_lock(snapshot.peers, state.owner, state.lock_id)", "and False", (OWNERSHIP_TEST,)),
    Mutant("leases: two work although one has the lock", PLAN, "peer.lock == lock_id and peer.owner != owner", "False",
           (PLAN_TEST,)),
    Mutant("leases: a lock that changes hands is not left to the relay that gets it", PLAN,
           "and (_lane_is_left(observed.free, now) or bool(state.owned))", "", (OWNERSHIP_TEST, PLAN_TEST)),
    Mutant("leases: a session that has ended unnoticed is believed", PG_LEASES,
           "select $8::integer is null or $8 in", "select true or $8 in", (LEASES,)),
    Mutant("leases: that the server knows of no session is ignored", OWNERSHIP,
           "if not snapshot.lock_held:", "if False:", (OWNERSHIP_TEST,)),
    Mutant("leases: a crash of the server makes suspects", PG_SCHEMA,
           "coalesce(' ' || (select stats_reset::text from pg_stat_bgwriter), '')", "''", (LEASES,)),
    Mutant("leases: a silent server is waited for", PG_POOL,
           "await pool.release(connection, timeout=CANCEL_SECONDS)", "await pool.release(connection)", (LEASES,)),
    Mutant("leases: a silent server is waited for in a transaction", PG_POOL,
           "asyncio.timeout(CANCEL_SECONDS)", "asyncio.timeout(None)", (LEASES,)),
    Mutant("leases: lanes wait out an outage", BREAKER, "for event in (self._closed, stopping)",
           "for event in (self._closed,)", (RELAYS,)),
    Mutant("leases: a lane that was just released is taken back", PLAN,
           "if lane not in state.running or", "if lane not in state.owned or", (OWNERSHIP_TEST, PLAN_TEST)),
    Mutant("leases: a lost lane is taken back while it runs", OWNERSHIP, ", exclude=todo.exclude", "",
           (OWNERSHIP_TEST,)),
    Mutant("leases: a lane that is to be released waits for its confirms for ever", "postroad/relay/relay.py",
           "return partial(self._stop_lane, lane)", "return lane.stop", (RELAYS,)),
    Mutant("leases: a lane is left to a relay that does not take it", PLAN,
           "return fair_share(snapshot.lanes, peers, state.owner)",
           "return fair_share(snapshot.lanes, snapshot.peers, state.owner)", (OWNERSHIP_TEST, PLAN_TEST)),
    Mutant("leases: a relay with a locked lane is marked dead", PG_LEASES,
           "where r.owner = any($1::uuid[]) and not exists (select from {schema}.lanes l where l.owner = r.owner)",
           "where r.owner = any($1::uuid[])", (LEASES,)),
    Mutant("leases: a relay that leaves a locked lane is forgotten", PG_LEASES,
           "and (r.lock_key is null or not exists (select from {schema}.lanes l where l.owner = $1))", "", (LEASES,)),
    Mutant("leases: dead relays are never forgotten", PG_LEASES,
           "and alive_until < clock_timestamp() - interval '1 day'", "and false", (LEASES,)),
    Mutant("a server that was started anew goes unnoticed", PG,
           "if any(self._loaded.get((lease.sink, lease.lane)) != self._servers for lease in leases):", "if False:",
           (LOST,)),
    # Reading and settling several lanes at once
    Mutant("a sweep begins at the highest position", CURSOR, "position, snapshots = min(", "position, snapshots = max(",
           (LOG_MACHINE,)),
    Mutant("a sweep begins at the highest xmax", CURSOR, "xmax = min([its_xmax", "xmax = max([its_xmax",
           (LOG_MACHINE,)),
    Mutant("a sweep forgets what was in progress", CURSOR, "for xid in its_xip if xid < xmax}",
           "for xid in its_xip if xid < xmax and False}", (MANY,)),
    Mutant("a sweep gives a lane what it has dealt with", CURSOR,
           "if not dealt_with[number].has(message.position, xid):", "if xid:", (LOG_MACHINE,)),
    Mutant("of a sweep, late rows count as dealt with", CURSOR,
           "return position <= self._position and xid < self._xmax and xid not in self._xip",
           "return position <= self._position", (LOG_MACHINE,)),
    Mutant("of a sweep, rows in progress count as dealt with", CURSOR,
           "return position <= self._position and xid < self._xmax and xid not in self._xip",
           "return position <= self._position and xid < self._xmax", (LOG_MACHINE,)),
    Mutant("a sweep has no room for late rows and passes them", CURSOR, "if first and limit.reached(rows[:first]):",
           "if False:", (LOG_MACHINE,)),
    Mutant("a sweep gives a lane more late rows than a page holds", CURSOR,
           "if bisect_right(rows, before.position, key=_position) >= page_rows:", "if False:", (CURSOR_TEST,)),
    Mutant("a sweep moves a lane that it has not come to", CURSOR, "if more and end.position < before.position:",
           "if False:", (LOG_MACHINE,)),
    Mutant("a sweep looks at all that was added while its lanes were away", PG_QUERIES, "and xid < $11 or",
           "and $11 > xid8 '0' or", (MANY,), times=2),
    Mutant("a sweep has the highest horizon", CURSOR, "horizon = min([each.horizon", "horizon = max([each.horizon",
           (CURSOR_TEST,)),
    Mutant("a full sweep moves lanes to the end of the log", CURSOR,
           "position = rows[-1].position if full else _end(sweep.log_end, sweep.reach)", "position = sweep.log_end",
           (LOG_MACHINE,)),
    # Filters
    Mutant("a read with a filter passes what it has not reached", CURSOR,
           "return log_end if reach is None else min(log_end, reach)", "return log_end", (LOG_MACHINE, FILTERS)),
    Mutant("an empty page with a filter is the end of the log", CURSOR,
           "more = reach is not None and position < log_end", "more = False", (FILTERS,)),
    Mutant("an empty sweep with a filter is the end of the log", CURSOR, "more = full or position < sweep.log_end",
           "more = full", (LOG_MACHINE,)),
    Mutant("late rows are not filtered", PG_QUERIES,
           "and slot between $1 and $2 {?{taken}?}\n           and position + 0 <= $3",
           "and slot between $1 and $2\n           and position + 0 <= $3",
           (LOG_MACHINE,)),
    Mutant("next rows are not filtered", PG_QUERIES,
           "and slot between $1 and $2 {?{taken}?}\n         order by position\n",
           "and slot between $1 and $2\n         order by position\n", (FILTERS,)),
    Mutant("LIKE is taken for exact where it is not", "postroad/topic_patterns.py", "            exact = False\n", "",
           (PATTERNS_TEST,)),
    Mutant("a relay with another filter is served", PG_LEASES, " and filter is not distinct from $8",
           " and ($8::text is null or true)", (FILTERS,)),
    Mutant("a relay with another filter is not refused", PG_STORE_LEASES,
           "if kept_filter != filter.text:", "if False:", (FILTERS,)),
    Mutant("an empty part of a sweep is the end of the log", LANE, "if not (page.more or page.before.catching_up)",
           "if not page.before.catching_up", (CONVOYS,)),
    Mutant("a sweep does not say that there is more", CURSOR, "more or not last))", "False))", (CURSOR_TEST,)),
    Mutant("what a sweep found stays when a lane goes elsewhere", CONVOY,
           "if member is None or not member.continues_from(cursor):", "if member is None:", (LOG_MACHINE,)),
    Mutant("a sweep that failed drops nothing", CONVOY, "except Exception as error:\n            self.clear()\n",
           "except Exception as error:\n", (CONVOY_TEST,)),
    Mutant("what a sweep finds is kept though all was dropped", CONVOY, "if cleared != self._cleared:", "if False:",
           (CONVOY_TEST,)),
    Mutant("a sweep serves a lane that another relay took", CONVOY, "if changed := _changed(sweep, lanes):",
           "if changed := ():", (CONVOY_TEST,)),
    Mutant("a sweep from before it was asked for says that the log has ended", CONVOY,
           "if page.messages or page.more or asked]", "if page or asked]", (CONVOY_TEST,)),
    Mutant("sweeps wait for a slow lane", GROUPING, "if each.asks or each.queued < QUEUED]", "]", (GROUPING_TEST,)),
    Mutant("sweeps go back for a lane that is far behind", GROUPING, "if first <= each.position <= last]",
           "if each.position <= last]", (GROUPING_TEST,)),
    Mutant("a sweep skips what lies behind the position", PG_QUERIES, "and position + 0 <= $4",
           "and position + 0 <= $4 and false", (MANY,), times=2),
    Mutant("a sweep shows the version of a lane that was taken", PG_QUERIES,
           "and l.owner = $3 and l.epoch = asked.epoch),", "and l.owner = $3),", (MANY,), times=2),
    Mutant("a sweep takes the last lane's position for the end of the log", PG_MANY, "max([cursor.position for",
           "min([cursor.position for", (MANY,)),
    Mutant("a sweep reads lanes from before a restart", PG, "!= self._servers for lease in leases):",
           "!= self._servers for lease in leases[:1]):", (MANY,)),
    Mutant("lanes settled jointly share their fence", PG_QUERIES, "and l.version = asked.version",
           "and l.version = any($6)", (MANY,)),
    Mutant("a lane settled jointly is not fenced by its epoch", PG_QUERIES, "and l.epoch = asked.epoch and l.version",
           "and l.version", (MANY,)),
    Mutant("lanes settled jointly wait for each other's locks", PG_QUERIES,
           "and lane = any($4) for update skip locked),", "and lane = any($4) for update),", (MANY,)),
    Mutant("a lane that was not settled jointly takes itself for settled", CONVOY,
           "        if settled is None:\n            settled = await self._store.settle(lease, cursor, tally)",
           "        if settled is None:\n            settled = lease.settled(cursor)", (CONVOY_TEST,)),
    # Publishing
    Mutant("a key's messages go at once", "postroad/relay/waves.py", "if len(set(keys)) == len(keys):",
           "if True:", (RELAY,)),
    Mutant("the cursor passes what was not confirmed", PROGRESS,
           "messages, cursor = page.messages[:beginning], page.cursor_after(beginning)",
           "messages, cursor = page.messages[:beginning], page.after", (RELAY,)),
    Mutant("what an outage had confirmed goes again", OUTCOME, "self.confirmed |= outage.confirmed", "pass",
           (RELAY,)),
    Mutant("a suspected message is published beside others", BREAKER, "while self._calls:", "while False:",
           (BREAKER_TEST,)),
    Mutant("others are published beside a suspected message", BREAKER,
           "if alone or self.is_open or self._alone.locked():", "if alone or self.is_open:", (BREAKER_TEST,)),
    Mutant("what waited for its turn is published in an outage", BREAKER,
           "            if not self.is_open:\n                return\n", "            return\n", (BREAKER_TEST,)),
    # Publishers that keep the order of a key by themselves
    Mutant("what is behind a refused message is taken for confirmed", OUTCOME,
           "elif message.key is None or message.key not in stopped:", "else:", (IN_ORDER,)),
    Mutant("again, for the property test", OUTCOME, "elif message.key is None or message.key not in stopped:", "else:",
           (ORDER,)),
    Mutant("what needs no order is taken for confirmed when a publisher leaves it", PUBLISHING,
           "if breaker.in_order:  #", "if False:  #", (IN_ORDER,)),
    Mutant("what follows goes out before its head's refusal is decided", PUBLISHING,
           "        await self._decide(answered, outcome, blocked_keys, claimed)\n", "", (IN_ORDER,)),
    Mutant("what is left is confirmed when a dead letter is interrupted", PUBLISHING,
           "self._decide(answered, outcome,", "self._decide(messages, outcome,", (IN_ORDER,)),
    Mutant("a message that is too large to be read is overtaken", PUBLISHING,
           "if self._breaker.in_order and not any_unread(messages):", "if self._breaker.in_order:", (IN_ORDER,)),
    Mutant("any publisher is said to be in order", BREAKER, 'getattr(publisher, "in_order", False) is True', "True",
           (IN_ORDER,)),
    Mutant("handlers get a key's messages at once", LOCAL, "key = message.key if self.in_order else None", "key = None",
           (PUBLISHERS,)),
    Mutant("what a handler did not get is confirmed in an outage", LOCAL, "or message.key not in stopped:", "or True:",
           (PUBLISHERS,)),
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
    Mutant("a log that is being restored is read", PG, 'if not facts["complete"]:', "if False:", (POSTGRESQL,)),
    Mutant("a copy of the file with the same lane passes the fence (SQLite)", SQLITE_QUERIES,
           "and ?7 = (select schema_version from pragma_schema_version)",
           "and ?7 <> -1 - (select schema_version from pragma_schema_version)", (PUT_BACK,), times=2),
    # Deferred messages
    Mutant("a refused message is passed without a row", PROGRESS,
           "self._deferred += decided", "pass", (REFUSALS,)),
    Mutant("again, for the property test", PROGRESS, "self._deferred += decided", "pass", (ORDER,)),
    Mutant("followers go although their head is deferred", DEFERRED, "    if not blocked_keys:\n", "    if True:\n",
           (REFUSALS,)),
    Mutant("again, for the property test", DEFERRED, "    if not blocked_keys:\n", "    if True:\n", (ORDER,)),
    Mutant("what was refused and not decided is passed", OUTCOME,
           "or message.position in self.deferred or", "or message.position in self.refused or", (REFUSALS,)),
    Mutant("followers of a dead message go before its death is recorded", DEFERRED,
           "if deferred.key is not None:\n            blocked_keys",
           "if deferred.key is not None and deferred.blocks:\n            blocked_keys", (ORDER,)),
    Mutant("an outage counts an attempt", PUBLISHING, "if failures == enough:", "if True:", (REFUSALS,)),
    Mutant("a blocked route counts attempts", DEFERRED, "if refusal.route is not None and not refusal.permanent:",
           "if False:", (REFUSALS,)),
    Mutant("the relay goes on from memory after an error", LANE, "                loaded = await self._load()\n",
           "                if not self.counts.pages:\n                    loaded = await self._load()\n", (RESTARTS,)),
    Mutant("an exception ends the lane", PUBLISHING,
           'return self._suspect(messages, _Fault(f"the publisher failed: {failure!r}", error=failure))',
           "raise failure", (REFUSALS,)),
    Mutant("loading makes due what an operator holds", PG_DEFERRED, "        if held:\n            ready",
           "        if False:\n            ready", (POSTGRESQL,)),
    Mutant("loading makes due what follows another", PG_QUERIES, "select distinct on (key) key, position,",
           "select key, position,", (POSTGRESQL,)),
    Mutant("loading believes in heads of before it changed keys", PG_DEFERRED,
           "if {scoped, put_back} != {_NONE_CHANGED}:", "if False:", (UNROUTABLE,)),
    Mutant("loading compares what is to be made due with all that is", PG_QUERIES,
           "select (select count(*) from held) <\n       (select count(*) from {schema}.deferred, these\n"
           "         where sink = $1 and position = place and state || '' = 'held' and ($3 or route is null)\n"
           "           and (due_at is null or due_at > due))\n",
           "select exists (select from {schema}.deferred, these\n"
           "                where sink = $1 and position = place and state || '' = 'held' and ($3 or route is null)\n"
           "                  and (due_at is null or due_at > due) and position not in (select position from held))\n",
           (POSTGRESQL,)),
    # Retention
    Mutant("retention goes by age alone", PG_QUERIES, "and not {schema}.passed(batch.position, batch.xid, lane)",
           "and false", (STORES,)),
    Mutant("retention deletes what a sink takes and has not had", PG_QUERIES,
           "and {schema}.takes(sink, batch.topic, batch.type, o.headers))", "and false)", (FILTERS,)),
    Mutant("retention keeps what no sink takes", PG_QUERIES,
           "and {schema}.takes(sink, batch.topic, batch.type, o.headers))", ")", (FILTERS,)),
    Mutant("retention takes a lane for past by its snapshot", PG_QUERIES, "l.position >= highest.position and ", "",
           (RETENTION,)),
    Mutant("retention takes a lane for past with rows in progress", PG_QUERIES,
           "pg_snapshot_xmin(l.snapshot) > highest.xid", "pg_snapshot_xmax(l.snapshot) > highest.xid", (RETENTION,)),
    Mutant("retention takes a lane for past that has seen the oldest row", PG_QUERIES, "order by xid desc limit 1",
           "order by xid limit 1", (RETENTION,)),
    Mutant("retention compares each row with each lane", PG_QUERIES, "where not (l.position >= highest.position",
           "where not (l.position < 0 and l.position >= highest.position", (POSTGRESQL,)),
    Mutant("retention goes by age and position", PG_SCHEMA,
           "($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot)", "($3).position", (POSTGRESQL,)),
    Mutant("again, for the property test", PG_SCHEMA,
           "($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot)", "($3).position", (LOG_MACHINE,)),
    Mutant("retention before there is a sink", PG_QUERIES, "and exists (select from {schema}.lanes)", "", (STORES,)),
    Mutant("retention goes by age alone (SQLite)", SQLITE_QUERIES, "and {schema}_outbox.position > l.position\n",
           "and false\n", (STORES,)),
    Mutant("positions are used again (SQLite)", SQLITE_SCHEMA,
           "position     integer primary key autoincrement", "position     integer primary key", (STORES,)),
    # Later, and canceling
    Mutant("scheduled messages of a key enter the log in any order", PG_QUERIES,
           "order by due_at, number\n    on conflict", "order by payload desc\n    on conflict", (SCHEDULED,)),
    Mutant("canceling believes what is scheduled, and forgets the log", PG_SCHEMA,
           "if not found or (was_scheduled and not message.ours) then", "if not found or was_scheduled then",
           (SCHEDULED,)),
    Mutant("canceling looks before it locks", PG_SCHEMA,
           "    delete from {schema}.scheduled where id = $1 and (added_by is null or {schema}.acts_as(added_by));\n"
           "    was_scheduled := found;\n",
           "    was_scheduled := exists (select from {schema}.scheduled where id = $1);\n"
           "    perform from {schema}.outbox where id = $1;\n    was_scheduled := was_scheduled and not found;\n"
           "    delete from {schema}.scheduled where id = $1;\n"
           "    if was_scheduled then return 'canceled'; end if;\n", (RACE,)),
    Mutant("canceling notifies no lane", PG_SCHEMA, "route = null, noticed = false", "route = null", (SCHEDULED_PG,)),
    Mutant("canceling what is too late keeps its locks", PG_SCHEMA, "            raise sqlstate 'PR001';\n",
           "            return 'too late';\n", (SCHEDULED_PG,)),
    Mutant("a claim waits for an application", PG_QUERIES, "order by due_at, position limit $4::integer + 1\n"
           "       for update skip locked),", "order by due_at, position limit $4::integer + 1\n       for update),",
           (SCHEDULED_PG,)),
    Mutant("a claim takes what follows a message that is being canceled", PG_QUERIES,
           "where ends.position is null or waiting.position < ends.position",
           "where waiting.position in (select position from free)", (SCHEDULED_PG,)),
    Mutant("a claim forgets what is being canceled", PG_QUERIES, ") as locked\n", ") and false as locked\n",
           (SCHEDULED_PG,)),
    Mutant("retention deletes what a lane has not noticed", PG_QUERIES, " or not d.noticed))\n       and",
           "))\n       and", (SCHEDULED_PG,)),
    Mutant("retention deletes a message whose copy waits", PG_QUERIES,
           "\n       and not exists (select from {schema}.copies c where c.position = batch.position)", "",
           (DEAD_LETTER_SINKS,)),
    Mutant("a death is recorded without its copy", DEFERRED, "copy_to=self._dead_letter_sink,", "",
           (DEAD_LETTER_SINKS,)),
    Mutant("a copy is forgotten before it is confirmed", COPIES, "if letter.position in outcome.confirmed:", "if True:",
           (DEAD_LETTER_SINKS,)),
    Mutant("canceling believes in what may have been sent", PG_SCHEMA, " and not unsure;", ";", (SCHEDULED,)),
    Mutant("canceling believes in what may have been sent (SQLite)", SQLITE_QUERIES, " and not d.unsure", "",
           (SCHEDULED,)),
    Mutant("what was held after a load is sure", PG_QUERIES, "position <= $5::bigint", "position <= 0 * $5::bigint",
           (CANCELING,)),
    Mutant("what was held after a load is sure (SQLite, memory)", STORE_CONTRACT,
           "unsure=position <= unsure_through", "unsure=False", (CANCELING,)),
    Mutant("what was refused after a load is sure", OUTCOME,
           "return message.position <= self.unsure_through or message.position in self.unanswered",
           "return message.position in self.unanswered", (CANCELING,)),
    Mutant("again, for the property test", PROGRESS, "self.unsure_through = loaded.log_end", "pass",
           (CANCELING_MACHINE,)),
    Mutant("what a broker did not answer is sure", OUTCOME,
           "return message.position <= self.unsure_through or message.position in self.unanswered",
           "return message.position <= self.unsure_through", (CANCELING,)),
    Mutant("what is poisoned ahead of its lane is sure", PG_ADMIN, "$3, $5, $4::text, true,",
           "$3, $5, $4::text, false,", (CANCELING,)),
    Mutant("what is poisoned ahead of its lane is sure (SQLite)", SQLITE_ADMIN, "?2, ?4, ?3, 1,", "?2, ?4, ?3, 0,",
           (CANCELING,)),
    # Operators
    Mutant("a change counts before it has the lanes", "postroad/stores/admin/change.py",
           "            await query(\"lock_for_change\", which.sink)\n"
           "            await change.confirm(partial(_count, query, which, states, published))\n",
           "            await change.confirm(partial(_count, query, which, states, published))\n"
           "            await query(\"lock_for_change\", which.sink)\n", (ADMIN_EXPECTED,)),
    Mutant("a change goes on beyond what was expected", "postroad/stores/admin/audit.py",
           "batch if self._expected is None else batch[: self._expected - self.changed]", "batch", (ADMIN_EXPECTED,)),
    Mutant("restoring does not keep retention away", "postroad/stores/admin/change.py",
           "                await query(\"lock_retention\")\n", "                pass\n", (ADMIN_RESTORE,)),
    Mutant("what was skipped can be restored", PG_ADMIN, "and d.state = 'dropped'",
           "and d.state in ('dropped', 'skipped')", (ADMIN_RESTORE,)),
    Mutant("canceling checks no other sink (SQLite)", SQLITE_QUERIES, "and not (o.position <= l.position\n",
           "and false and not (o.position <= l.position\n", (SCHEDULED,)),
    Mutant("any role can cancel", PG_SCHEMA,
           "revoke all on function {schema}.cancel(uuid) from public;", "", (SCHEDULED_PG,)),
    # Adding
    Mutant("add commits by itself (asyncpg)", "postroad/stores/connections/asyncpg.py",
           "if not connection.is_in_transaction():", "if False:", (OUTBOX,)),
    Mutant("add commits by itself (sqlite3)", "postroad/stores/connections/sqlite.py",
           "if autocommit is True or (autocommit is not False and connection.isolation_level is None):", "if False:",
           (OUTBOX,)),
    Mutant("an add that is awaited too late commits by itself", "postroad/stores/connections/__init__.py",
           "target = adapter.ready(connection)  #", "target = connection  #", (OUTBOX,)),
    Mutant("a forgotten await is silent", "postroad/stores/connections/pending.py",
           "if not self._started:\n            text", "if False:\n            text", (OUTBOX,)),
    Mutant("SQL and Python disagree on slots", PG_SCHEMA, "1024)::pg_catalog.int2", "1023)::pg_catalog.int2",
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
    Mutant("waking: writers that may have missed the nap are not asked for", IDLE,
           "self._unaware = self._writers = await self._state.naps.writers()", "self._unaware = self._writers = ()",
           (NAPS,)),
    Mutant("waking: a prepared transaction's new name is not known", IDLE, "if left != set(unaware):", "if False:",
           (WAKEUP_SEARCH,)),
    Mutant("waking: a notification is forgotten before sleeping", IDLE, "        self.asleep = True\n",
           "        self.asleep = True\n        self._signal._notified = self._signal._signal.clear()\n",
           (WAKEUP_SEARCH,)),
    Mutant("waking: a notification that comes while the limit is reached is dropped", "postroad/relay/wake_signal.py",
           "            if self._notified:\n                self._signal.set()\n", "",
           ("tests/security/test_waking.py",)),
    Mutant("waking: a nap that was not renewed is slept on", WAKEUP,
           "if wait.nap in naps and wait.nap not in tick.renewed_naps:", "if False:", (WAKING,)),
    Mutant("waking: a relay whose LISTEN never worked sleeps", WAKEUP,
           "self.listen_works = False\n        \"\"\"Our", "self.listen_works = True\n        \"\"\"Our", (WAKING,)),
    Mutant("waking: a nap that is nearly over is renewed", PG_LEASES,
           "and until > clock_timestamp() + $10::float8 / 3 * interval '1 second'", "", (NAPS,)),
    Mutant("waking: a tick's old answer counts", OWNERSHIP, "if heartbeat is self._tick_heartbeat:", "if True:",
           (OWNERSHIP_HEARTBEATS,)),
    Mutant("waking: a lane that is released keeps its nap", WAKEUP,
           "wait.end_nap()\n        self._waits.remove(wait)", "self._waits.remove(wait)", (WAKING,)),
    Mutant("waking: only READ COMMITTED notifies", PG_SCHEMA,
           "elsif current_setting('transaction_isolation') <> 'read committed'",
           "elsif current_setting('transaction_isolation') = 'nonsense'", (NAPS,)),
    Mutant("waking: the trigger trusts a search_path", PG_SCHEMA,
           "security definer\nset search_path = pg_catalog, pg_temp as\n$$\ndeclare",
           "security definer as\n$$\ndeclare", (NAPS,)),
    Mutant("waking: the trigger runs as the application", PG_SCHEMA, "volatile security definer\nset",
           "volatile\nset", (NAPS,), times=2),
    Mutant("waking: every nap is notified, whatever its slots", PG_SCHEMA, "and n.marks & mark <> 0", "", (NAPS,)),
    Mutant("waking: a full queue of notifications fails commits", PG_SCHEMA,
           "if pg_notification_queue_usage() <= 0.5 then", "if true then", (NAPS,), times=2),
    Mutant("waking: listeners are remembered for a transaction", PG_SCHEMA,
           "loop\n            perform pg_stat_clear_snapshot();", "loop\n", (NAPS,)),
    Mutant("waking: marks are wiped without the lock", PG_SCHEMA, "where name = 'naps' for update skip locked;",
           "where name = 'naps';", (NAPS,)),
    Mutant("waking: marks are wiped though others nap", PG_SCHEMA, "coalesce((select bit_or(n.marks)",
           "coalesce((select 0", (NAPS,)),
    Mutant("waking: marks are wiped by an old snapshot", PG_SCHEMA,
           "    if current_setting('transaction_isolation') <> 'read committed' then", "    if false then", (NAPS,)),
    Mutant("waking: wiping marks keeps lanes from napping", PG_SCHEMA, "raise sqlstate 'PR000';", "null;", (NAPS,)),
    Mutant("waking: a nap is renewed without its marks", PG_LEASES,
           "and marks & ~ coalesce(pg_sequence_last_value('{schema}.napping'::regclass), 0) = 0", "", (NAPS,)),
    Mutant("waking: notified marks are remembered for a session", PG_SCHEMA, "(notified | mark)::text, true)",
           "(notified | mark)::text, false)", (NAPS,)),
    Mutant("waking: the last slots have no mark", "postroad/stores/postgresql_naps.py", "1 << 63 - last",
           "1 << 64 - last", (NAPS,)),
    Mutant("waking: a nap is not marked", PG_QUERIES, "| $3::bigint)", "| (0 * $3::bigint))", (NAPS,)),
    Mutant("waking: a pooler's sessions keep our settings", PG, "if not self._pooled:\n            await connection.",
           "if True:\n            await connection.", (POOLER,)),
    Mutant("waking: behind a pooler cursors are saved at leisure", PG_QUERIES, "case when $11::boolean then",
           "case when $11::boolean and false then", (POOLER,), times=2),
    # Receiving
    Mutant("a batch asks the inbox in any order", PG_SCHEMA, "order by new.id collate \"C\"", "", (INBOX,)),
    Mutant("the inbox's lock timeout stays with the transaction", PG_SCHEMA,
           "    setting := set_config('lock_timeout', before, true);\n", "", (INBOX,), times=2),
    Mutant("the inbox knows a message by its id alone", "postroad/received.py",
           "return f\"{source.replace(' ', '%20')} {id}\"", "return id", (INBOX,)),
    Mutant("any role can use a consumer's name", PG_SCHEMA,
           "if owner <> session_user and not {schema}.acts_as(owner) then", "if false then", (RIGHTS_CONSUMERS,)),
    Mutant("any role can cancel any message", PG_SCHEMA, "select $1 = session_user\n", "select true\n",
           (RIGHTS_MESSAGES,)),
    Mutant("a message whose id is taken is lost in silence", PG_SCHEMA,
           "new.ordinality limit 1;\n    if found then", "new.ordinality limit 1;\n    if false then",
           (RIGHTS_MESSAGES,)),
    Mutant("a handler is called whether or not it is the first time", HANDLER_TRANSACTION,
           "zip(messages, recorded.new, strict=True) if first]", "zip(messages, recorded.new, strict=True)]",
           (CONSUMER,)),
    Mutant("a handler that hides that it was cancelled has handled its message", TIME_LIMIT,
           "            self._late.add(task)\n", "",
           ("tests/contracts/test_handler_timeout.py",)),
    Mutant("one handler that ends takes the others' time limit with it", TIME_LIMIT,
           "            loop.call_at(ends_at, self._cancel_late, loop)\n            break\n", "            break\n",
           ("tests/unit/consumer/test_time_limit.py",)),
    Mutant("a record of Kafka has the id of an earlier message", "postroad/brokers/kafka/records.py",
           '        headers["ce_id"] = str(message.id)\n', "", ("tests/unit/brokers/kafka/test_records.py",)),
    Mutant("a body that is too large is lost on the way to the dead letters", "postroad/brokers/rabbitmq/reading.py",
           "self._spool.write(frame)", "self._spool.size += len(frame)",
           ("tests/unit/brokers/rabbitmq/test_reading.py",)),
    Mutant("causation ids are not set", HANDLER_TRANSACTION, "trace, message.id)", "trace, None)",
           (CONSUMER,)),
    Mutant("a key's messages overtake each other", "postroad/consumer/keys.py",
           "self._behind[key].append(item)\n            return", "self.ready.append((None, item))\n            return",
           (CONSUMER,)),
    Mutant("a batch that failed is handled again out of order", "postroad/consumer/keys.py",
           "self._behind[key].extendleft(reversed(items[1:]))", "self._behind[key].extend(items[1:])", (KEYS,)),
    # Shared transactions
    Mutant("only the last handler of a shared transaction is checked", HANDLER_TRANSACTION,
           "yield from check_transaction(self",
           "if called is calls[-1]: yield from check_transaction(self", (SHARED,)),
    Mutant("a shared transaction that fails is an attempt of each message", DISPATCH, "item.alone = True\n",
           "item.alone, item.failure = True, 'together'\n", (SHARED,)),
    Mutant("messages are acked before their shared transaction is committed", DISPATCH,
           "await self._processor.attempt_group(items)",
           "self._subscriber.ack([item.delivery for item in items]); await self._processor.attempt_group(items)",
           (SHARED,)),
    Mutant("two shared transactions at once", DISPATCH, "if not alone and self._group in self.tasks:", "if False:",
           (SHARED,)),
    Mutant("two shared transactions at once in a relay", "postroad/consumer/local.py",
           "async with self._one_shared if self._handlers.batch is None else nullcontext():",
           "async with nullcontext():", (SHARED,)),
    Mutant("what a handler's own commit has committed of others is handled again", HANDLER_TRANSACTION,
           "recorded.transaction, new[number:])", "recorded.transaction, new)", (SHARED,)),
    Mutant("a handler in a shared transaction leaves its context to the next", HANDLER_TRANSACTION,
           "call = partial(_in_own_context, call)", "pass", (SHARED,)),
    Mutant("a message that may have crashed a process is handled together with others", DISPATCH,
           "return not item.alone", "return True", (SHARED,)),
    Mutant("a handler that kills its process counts nothing", PG_SCHEMA, "running = true, changed_at",
           "running = false, changed_at", (CONSUMER,)),
    Mutant("an outage is an attempt", DELIVERY,
           "        except (InboxUnavailable, MessageBusy):\n            if item.span is not None:\n"
           '                item.span.end_as("waiting")\n            raise\n', "", (CONSUMER,)),
    Mutant("what a traced publisher refuses is taken for confirmed", "postroad/otel.py",
           "            return refusals\n", "            return ()\n", (OTEL,)),
    Mutant("a dead letter is acked before it is kept", DELIVERY,
           "await self._subscriber.dead_letter(item.delivery, headers)", "", (CONSUMER,)),
    Mutant("a transaction that an error has aborted counts as committed", "postroad/consumer/transaction_check.py",
           "raise TransactionAborted(ABORTED)\n        case", "return\n        case",
           (CONSUMER_FAILURES,)),
    Mutant("whatever the server reports, the transaction is the same", "postroad/stores/connections/__init__.py",
           "before is False and adapter.reported(connection)", "before is False",
           (CONSUMER_FAILURES, HANDLERS_THAT_END)),
    Mutant("SQLite's transactions are always the same", "postroad/stores/dialects/sqlite_statements.py",
           "return Query([self.named(\"same_transaction\"), *self.mark_transaction()], lambda _: True)",
           "return Query([], lambda _: True)", (HANDLERS_THAT_END,)),
    Mutant("a handler that commits and goes on has processed its message", DELIVERY,
           "await self._transaction.undo([message])\n        attempts", "attempts", (HANDLERS_THAT_END,)),
    Mutant("a commit that can't be seen yet counts as undone", PG_SCHEMA,
           "and not pg_visible_in_snapshot($1::xid8, pg_current_snapshot())", "and false",
           (HANDLERS_THAT_END,)),
    Mutant("what a failed handler committed is not undone", HANDLER_TRANSACTION,
           "self._failed |= dict.fromkeys((message.identity for message in messages), transaction)", "pass",
           (HANDLERS_THAT_END,)),
    Mutant("another's row goes with a handler's roll-back", PG_SCHEMA, "if status = 'committed' then",
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
    Mutant("a lost connection is an attempt", TRANSACTIONS, "if is_retryable(first) or is_retryable(error):",
           "if False:", (CONSUMER_FAILURES,)),
    Mutant("a message is dead-lettered again while the database is unavailable", DELIVERY,
           "if item.dead_letter_id is None:", "if True:", (CONSUMER_STOPS,)),
    Mutant("a handler is called again while its failure can't be counted", DELIVERY,
           "if item.failure is not None:", "if False:", (CONSUMER_FAILURES,)),
    Mutant("a standby begins with what comes later", "postroad/consumer/run.py",
           "if not self._options.keep_order:", "if True:", (CONSUMERS,)),
    Mutant("a consumer forgets what another has processed", SQLITE_QUERIES,
           "where consumer = ? and processed_at <", "where ? <> '' and processed_at <", (CONSUMER,)),
    Mutant("what was acked is acked again", "postroad/brokers/rabbitmq/acks.py",
           "self._sent = {tag for tag in self._sent if tag > end}.union(beyond)", "self._sent = set()", (ACKS,)),
    Mutant("NaN is written as null", PAYLOAD,
           'b"null" in payload or ', "", (PAYLOADS,)),
    Mutant("a task of another framework is written as an event", PAYLOAD,
           " or _task_framework(cls)", "", (PAYLOADS,)),
    Mutant("any kind of dict is written as an event", PAYLOAD,
           "if cls is dict or", "if issubclass(cls, dict) or", (PAYLOADS,)),
    # Where a sink delivers to
    Mutant("a relay starts for a sink that delivers elsewhere", "postroad/stores/postgresql_leases.py",
           "if kept != destination:", "if False:", (SINKS,)),
    Mutant("a relay frozen in a statement keeps its lane", PG,
           'await connection.execute(self._sql["end_frozen_sessions"])', "pass", (POSTGRESQL,)),
    Mutant("lanes are taken for any destination", PG_LEASES, "where exists (select from served)",
           "where $7::text is not null", (SINKS,)),
    Mutant("null:// adopts a sink whose destination is not known", "postroad/stores/sqlite_leases.py",
           "(sink, destination, destination != NOWHERE, filter.text)",
           "(sink, destination, True, filter.text)", (SINKS,)),
    Mutant("a sink is moved although a relay serves it", "postroad/stores/admin/change.py",
           "if relays or lanes:", "if False:", (SINKS,)),
    Mutant("what was moved or removed is served on", OWNERSHIP,
           "        self._check_destination(snapshot)\n", "", (SINKS,)),
    Mutant("a message whose queue is full is dropped", DEFERRED,
           "if refusal.unroutable and self._drops_unroutable:",
           "if refusal.route is not None and self._drops_unroutable:", (UNROUTABLE,)),
    Mutant("a deferred message waits for another source's", DEFERRED,
           "key = self.ordering_key(message) if self.ordered else None", "key = message.key if self.ordered else None",
           (UNROUTABLE,), times=2),
    Mutant("what a person holds goes out by source", PG_QUERIES, "h.key in (d.key, split_part(d.key, chr(31), 1))",
           "h.key = d.key", (UNROUTABLE,), times=4),
    Mutant("a message dies of its route before its time", DEFERRED,
           "and waited >= self._route_timeout", "", (UNROUTABLE,)),
    Mutant("handlers are begun while the database is unavailable", LOCAL,
           "if failures.outage is not None:", "if False:", ("tests/contracts/test_local_sink.py",)),
    Mutant("a group is handled behind one that failed", "postroad/consumer/local.py",
           "if self.in_order and each.position in failures", "if False", ("tests/contracts/test_local_sink.py",)),
    Mutant("a call that was cancelled is sent later", "postroad/brokers/rabbitmq/publisher.py",
           "if not closed and not confirms.answered and connection.has_unsent:", "if False:", (PUBLISHERS,)),
    Mutant("a call that has failed is sent later", "postroad/brokers/rabbitmq/publisher.py",
           "        connection.discard_unsent()\n", "", (RABBITMQ,)),
    Mutant("a broker that has an alarm gets the same messages again", "postroad/brokers/rabbitmq/publisher.py",
           "self._alarm_is_likely = connection.blocked is not None or connection.alarm_is_likely",
           "self._alarm_is_likely = False", (RABBITMQ,)),
    Mutant("an old epoch's publisher is kept", "postroad/relay/epochs.py",
           "epoch == self._epoch:", "self._epoch is not None:", (EPOCHS_TEST,)),
    Mutant("a lane that was fenced refuses its messages", PUBLISHING,
           "except (LeaseInDoubt, LeaseLost, Interrupted):", "except (LeaseInDoubt, Interrupted):", (LANE_EPOCHS,)),
    Mutant("a relay that is being stopped waits for the broker without end", PUBLISHING,
           "self._publishing = task = asyncio.current_task()", "task = asyncio.current_task()", (RELAY,)),
    Mutant("a cancellation that a publisher has caught ends a later page", PUBLISHING,
           "while task is not None and task.cancelling():", "while False:", (REFUSALS,)),
    Mutant("a destination that asks for time is asked at once", DEFERRED,
           "return min(asked, LONGEST_WAIT) if asked is not None and asked > 0 else 0.0", "return 0.0", (REFUSALS,)),
    Mutant("the guilty one's neighbours are refused with it", "postroad/brokers/guilty.py",
           "if len(suspects) <= 1:", "if len(suspects) <= 2:", ("tests/unit/brokers/test_guilty.py",)),
    Mutant("messages of a revoked session are begun", DISPATCH,
           "dropped = self._keys.discard(ends)", "dropped: list[OpenDelivery] = []", (REVOKED,)),
    Mutant("messages of a revoked session are tried again", DISPATCH,
           "            item.revoked = True\n", "            pass\n", (REVOKED,)),
    Mutant("what waits for its retry outlives its session", DISPATCH,
           "for item in [each for each in self.parked if ends(each)]:", "for item in []:", (REVOKED,)),
    Mutant("a session is released while it is being handled", "postroad/consumer/revocations.py",
           "timeout=self._options.grace)", "timeout=0)", (REVOKED,)),
    Mutant("what is behind a discarded message overtakes", "postroad/consumer/keys.py",
           "self.ready.append((key, waiting.popleft()))", "self.ready.append((key, waiting.pop()))", (KEYS,)),
    Mutant("where redelivery is not known, a handler may kill its process for ever", DISPATCH,
           "delivery.redelivered is not False or", "delivery.redelivered or", (CONSUMER,)),
    Mutant("a destination that drops duplicates drops a rewind", "postroad/brokers/dedupe.py",
           'return f"{message.id}:{rewind}" if rewind else str(message.id)', "return str(message.id)",
           ("tests/unit/brokers/test_dedupe.py",)),
    Mutant("a tombstone becomes an empty event", "postroad/tombstone.py",
           "return not content_type and not payload", "return False", (TOMBSTONES,)),

    # NATS
    Mutant("NATS: new messages are handed out before those of a dead process", NATS_WINDOW,
           "return pending <= held_before", "return True", (NATS_WINDOW_TEST,)),
    Mutant("NATS: what arrived after the question counts as collected", NATS_SESSION,
           "self._window.is_complete(info.num_ack_pending, before)",
           "self._window.is_complete(info.num_ack_pending, len(self._window) + info.num_ack_pending)",
           (NATS_SUBSCRIBER,)),
    Mutant("NATS: a message from behind is handed out", NATS_WINDOW,
           "if self._in_order and not self.collecting and number <= self._last:", "if False:", (NATS_WINDOW_TEST,)),
    Mutant("NATS: what is held is not reported as being in progress", NATS_SESSION,
           'b"+WPI") for held in self._window.held()', 'b"+WPI") for held in []', (NATS_SUBSCRIBER,)),
    Mutant("NATS: a process that is active again does not collect what another has left", NATS_SESSION,
           "if not self._window.collecting:", "if False:", (NATS_SUBSCRIBER,)),
    Mutant("Redis: a call that is connecting when the publisher is closed goes on",
           "postroad/brokers/redis/publisher.py", "if self._closings != closings:", "if False:",
           ("tests/contracts/test_redis.py",)),
    Mutant("webhooks: a recorded document comes again as another message", "postroad/brokers/http/receiving.py",
           "if _is_document(body):", "if False:", ("tests/integrations/test_webhook.py",)),
    Mutant("NATS: no responders counts as confirmed", "postroad/brokers/nats/answers.py",
           "self.without_responder[number] = self._subject_of(message)", "self.confirmed.add(message.position)",
           (NATS_ANSWERS,)),
    Mutant("NATS: any answer counts as a confirm", "postroad/brokers/nats/answers.py",
           "elif answer.stream and answer.seq > 0:", "elif True:", (NATS_ANSWERS,)),
    Mutant("NATS: what was written is sent after its call has ended", "postroad/brokers/nats/publisher.py",
           "if answers.pending and link.connection.has_unsent:", "if False:",
           ("tests/contracts/test_publishers.py::test_nothing_is_sent_any_more_when_a_call_was_cancelled[nats]",)),
    Mutant("NATS: a message has no id by which a stream drops duplicates", "postroad/brokers/nats/frames.py",
           '{headers}{MESSAGE_ID}: {id}', '{headers}X-Id: {id}', ("tests/unit/brokers/nats/test_frames.py",)),
    Mutant("NATS: a binary message has no id by which a stream drops duplicates", "postroad/brokers/nats/frames.py",
           '{lines}{MESSAGE_ID}: %b', '{lines}X-Id: %b', ("tests/unit/brokers/nats/test_frames.py",)),
    Mutant("NATS: a rewound message has the id of the first time", "postroad/brokers/nats/frames.py",
           "ending = percent_encoded(dedupe_id(message)[36:])", 'ending = ""',
           ("tests/unit/brokers/nats/test_frames.py",)),

    # Partitions of a RabbitMQ queue
    Mutant("a partition is handed over before what is under way has ended", SHARING,
           "        self._connection.inflow.wake()\n",
           "        self._connection.inflow.wake()\n        self._released(channel, queue)\n", (DIVIDED,)),
    Mutant("a partition that is given up is received from", SHARING, "        channel.discard()\n", "", (DIVIDED,)),
    Mutant("a partition's consumer is cancelled first", SHARING, "        channel.discard()\n",
           "        self._tasks.add(asyncio.create_task(channel.cancel_consumer()))\n", (DIVIDED,)),
    Mutant("a partition's channel is written to when it is handed over", DELIVERY_CHANNEL, "not (self.finished or",
           "not (False or", (DIVIDED,)),
    Mutant("the share of partitions is rounded down", PARTITIONS, "active[-(-queues // max(members, 1)) :]",
           "active[queues // max(members, 1) :]", (DIVIDED_TEST,)),
    Mutant("two numbers of partitions get along", PARTITIONS, "partitions-{self.partitions}", "partitions-n",
           (DIVIDED,)),
    Mutant("the partition is not the key's", RABBITMQ_PUBLISHER, "message.slot // SLOTS_PER_PORTION",
           "message.position % len(BCC_HEADERS)", (DIVIDED,)),
    Mutant("what has no partition is lost", TOPOLOGY, "await channel.queue_bind(names.unpartitioned, names.alternate",
           "await channel.queue_unbind(names.unpartitioned, names.alternate", (DIVIDED,)),
    Mutant("a queue from before it had partitions is left alone", TOPOLOGY,
           "if self.names is None:\n            return\n",
           "if self.names is None or self.queue:\n            return\n", (DIVIDED,)),
    Mutant("Kafka: a commit passes records that are not finished", KAFKA_WINDOW,
           "min(open[0], position) if open else position", "position", (WINDOW,)),
    Mutant("Kafka: records are delivered before a commit says how far they may have been begun", KAFKA_WINDOW,
           "if offset >= self._until:", "if False:", (WINDOW,)),
    Mutant("Kafka: what a killed process had begun counts as new", KAFKA_WINDOW,
           "None if offset < self._before.until else False", "False", (WINDOW,)),
    Mutant("Kafka: a record that was open counts as finished", KAFKA_WINDOW,
           "if offset < self._before.delivered and offset not in self._open_before:",
           "if offset < self._before.delivered:",
           (WINDOW,)),
    Mutant("Kafka: what the owner before the last had begun is forgotten", KAFKA_WINDOW,
           "max(until, before.until)", "until", (WINDOW,)),
    Mutant("Kafka: a partition goes to another consumer while its messages are processed",
           "postroad/brokers/kafka/rebalances.py",
           'released.wait(self._settings.seconds("drain_timeout"))', "pass", (KAFKA_SUBSCRIBER,)),
    Mutant("Kafka: a partition that was paused is never read again after it came back",
           "postroad/brokers/kafka/rebalances.py",
           "client.resume(partitions)", "pass", (KAFKA_SUBSCRIBER,)),
    Mutant("Kafka: a dead letter that the broker refused counts as stored", "postroad/brokers/kafka/dead_letters.py",
           "return outcome[0]", "return None", (KAFKA_SUBSCRIBER,)),
    Mutant("Kafka: records that are not received count as finished", "postroad/brokers/kafka/sessions.py",
           "session.window.last_progress())", "session.window.last_progress()._replace(open=()))",
           (KAFKA_SUBSCRIBER,)),
    Mutant("Kafka: records are dropped while it is asked whether there are brokers", "postroad/brokers/kafka/topics.py",
           "self._serve(SERVE_SECONDS)", "self._client.poll(SERVE_SECONDS)",
           (f"{KAFKA_SUBSCRIBER}::test_records_that_wait_in_the_client_outlast_a_short_outage",)),
    Mutant("Kafka: what arrives while sessions are revoked is dropped", "postroad/brokers/kafka/mailbox.py",
           "with self._adding:\n            self._items.append", "if True:\n            self._items.append",
           ("tests/unit/brokers/kafka/test_mailbox.py",)),
    Mutant("Kafka: what the last owner has finished is held for ever", "postroad/brokers/kafka/sessions.py",
           "if session.window.arrive(offset, record):", "if session.window.arrive(offset, record) or True:",
           ("tests/unit/brokers/kafka/test_sessions.py",)),
    Mutant("Kafka: a leader that is being elected counts as an attempt", "postroad/brokers/kafka/silence.py",
           "if error is not None and verdict_on(error) in _OF_TOPIC:", "if error is not None:",
           ("tests/unit/brokers/kafka/test_silence.py",)),
    Mutant("Kafka: a transaction that has failed counts as an attempt of each message", KAFKA_ANSWERS,
           "KafkaError._STATE: Verdict.AGAIN,", "", (ANSWERS,)),
    Mutant("Kafka: what is behind a refused batch is taken", "postroad/brokers/kafka/producers.py",
           'self._new({"enable.gapless.guarantee": True})', "self._new({})",
           (f"{KAFKA}::test_nothing_of_a_key_is_taken_behind_one_that_is_too_large",)),
    Mutant("Kafka: a key goes on behind a message that could not be sent", "postroad/brokers/kafka/feeding.py",
           'ended.add(message.key or "")', "pass",
           (f"{KAFKA}::test_nothing_of_a_key_is_taken_behind_one_that_is_too_large",)),
    Mutant("Kafka: a key goes on behind a refused message", KAFKA_ANSWERS,
           "message.position not in self.confirmed and message.key not in ended",
           "message.position not in self.confirmed", (ANSWERS,)),
    Mutant("Kafka: a message is refused before what is in front of it was taken", KAFKA_ANSWERS,
           "if message.position in self.confirmed or message.key in ended:", "if message.position in self.confirmed:",
           (ANSWERS,)),
    Mutant("Kafka: a key's messages for several topics overtake each other", "postroad/brokers/kafka/records.py",
           "topic_by_key[message.key] = None", "pass", ("tests/unit/brokers/kafka/test_records.py",)),
    Mutant("Kafka: a cancelled call is sent later", "postroad/brokers/kafka/publisher.py",
           "if not sending.is_complete:\n                await link.end()", "pass",
           (f"{KAFKA}::test_when_publish_is_cancelled_nothing_is_sent_later",)),
    Mutant("Kafka: keys go to other partitions than those of Java's clients", "postroad/brokers/kafka/producers.py",
           '"partitioner": "murmur2_random",', "",
           (f"{KAFKA}::test_keys_go_to_the_partition_that_java_would_choose",)),
    Mutant("webhooks: an endpoint that is down counts attempts", "postroad/brokers/http/endpoint.py",
           "            return Fault.ENDPOINT", "            pass",
           (f"{HTTP}::test_in_an_outage_of_the_endpoint_no_attempt_is_ever_counted",)),
    Mutant("webhooks: a message that fails alone stops all others for ever", "postroad/brokers/http/endpoint.py",
           "return times >= SET_ASIDE_AFTER", "return False",
           (f"{HTTP}::test_a_message_that_fails_alone_is_refused_once_others_were_taken",)),
    Mutant("webhooks: a part of an endpoint that is down kills messages", "postroad/brokers/http/endpoint.py",
           "is_guilty = not unavailable or", "is_guilty = True or",
           (f"{HTTP}::test_while_a_part_of_the_endpoint_is_down_no_attempt_is_counted",)),
    Mutant("webhooks: an endpoint that hangs takes all slots", "postroad/brokers/http/publisher.py",
           "max(1, settings.concurrency // 2) if address.is_template else settings.concurrency", "settings.concurrency",
           (f"{HTTP}::test_an_endpoint_that_hangs_leaves_slots_to_the_others",)),
    Mutant("webhooks: an endpoint that hung is tried with each page", "postroad/brokers/http/delivery.py",
           "        if self._failed and self._sender.holds_routes:", "        if False:",
           (f"{HTTP}::test_an_endpoint_that_hung_is_left_alone_for_longer_than_it_hung",)),
    Mutant("webhooks: every lane waits for the try of an endpoint that hung", "postroad/brokers/http/delivery.py",
           "return self._sender.holds_routes and self._endpoint.is_being_probed", "return False",
           (f"{HTTP}::test_while_one_lane_tries_an_endpoint_that_hung_the_others_do_not_wait",)),
    Mutant("webhooks: the target of a redirect is quoted with its query", "postroad/brokers/http/answers.py",
           "_shown(self.location)", "self.location",
           (f"{HTTP}::test_no_error_shows_the_query",)),
    Mutant("webhooks: what a cancelled call has not written yet is sent later", "postroad/brokers/http/client.py",
           "        self.abort()", "        super().close()",
           (f"{HTTP}::test_nothing_of_a_cancelled_request_is_sent_any_more",)),
    Mutant("webhooks: an interim answer is taken for the answer", "postroad/brokers/http/client.py",
           "while 100 <= message.code < 200 and message.code != 101:", "while False:",
           (f"{HTTP}::test_an_interim_answer_is_not_the_answer",)),
    Mutant("webhooks: a connection with a part of a request on it is used again", "postroad/brokers/http/client.py",
           "        if is_written:", "        if True:",
           (f"{HTTP}::test_an_answer_before_the_body_was_read",)),
    Mutant("webhooks: a redirect is a confirm", "postroad/brokers/http/answers.py",
           "if 200 <= status < 300:", "if 200 <= status < 400:",
           (f"{HTTP}::test_a_redirect_is_not_followed",)),
    Mutant("webhooks: the address of a socket is not checked", "postroad/brokers/http/client.py",
           "if why := why_refused(address, self._allowed):", "if why := None:",
           (f"{HTTP}::test_no_form_of_a_private_address_is_connected_to",)),
    Mutant("webhooks: a recorded request has a second effect", "postroad/brokers/http/receiving.py",
           'for name in ("ce-source",) if name in attributes', "for name in ()",
           ("tests/integrations/test_webhook.py::test_in_binary_mode_a_recorded_request_has_no_second_effect",)),
    Mutant("webhooks: a sender can send under the source of another", "postroad/brokers/http/receiving.py",
           "if each.source not in sources:", "if False:",
           ("tests/integrations/test_webhook.py::test_the_secret_of_one_source_signs_no_other",)),
    Mutant("webhooks: the ids of two senders collide", "postroad/brokers/http/receiving.py",
           "source, headers = sources[0],", "source, headers = None,",
           ("tests/integrations/test_webhook.py::test_where_the_source_is_not_signed_it_is_that_of_the_secret",)),
    Mutant("webhooks: what was confirmed of a page is forgotten when the relay is stopped",
           "postroad/brokers/http/publisher.py",
           "raise asyncio.CancelledError(Confirmed(frozenset(call.confirmed))) from cancelled", "raise cancelled",
           (f"{HTTP}::test_a_relay_that_is_stopped_saves_what_was_confirmed_of_a_page",)),
    Mutant("copies of dead messages: an idle relay leaves some", COPIES,
           "self.more = len(found) == MOST", "self.more = False",
           ("tests/contracts/test_dead_letter_sinks.py::test_many_copies_do_not_stop_the_sinks_own_messages",)),
    Mutant("copies of dead messages: they stop the sink's own messages", COPIES,
           "self.more = len", "if len(found) == MOST:\n            await self.run()\n        self.more = len",
           ("tests/contracts/test_dead_letter_sinks.py::test_many_copies_do_not_stop_the_sinks_own_messages",)),
    Mutant("webhooks: a request of long ago is taken", "postroad/brokers/http/signatures.py",
           "if abs(now - int(timestamp)) > tolerance:", "if False:",
           ("tests/integrations/test_webhook.py::test_old_requests_are_not",)),
    Mutant("Kafka: a fenced relay begins again, and fences the next owner", "postroad/brokers/kafka/transactions.py",
           "if self._fenced is not None:", "if False:", (f"{KAFKA}::test_a_relay_that_lost_its_lane_is_fenced",)),
    Mutant("Kafka: a page counts as confirmed before its transaction is committed",
           "postroad/brokers/kafka/transactions.py",
           "elif sending.failed:", "elif sending.failed and answers.confirmed.update(sending.confirmed):",
           (f"{KAFKA}::test_a_page_is_a_transaction",)),
    # Following a replication slot: the five rules
    Mutant("slot, rule 1: the flushed end of the write-ahead log is noted", PG_QUERIES,
           "(pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as lsn",
           "(pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint as lsn",
           (f"{FOLLOWING}::test_a_commit_that_is_not_on_disk_yet_is_not_taken_for_carried",)),
    Mutant("slot, rule 1: the end of the write-ahead log is read before the snapshot", NOTES,
           "        self.after = look.cursor\n        if look.added:",
           "        self.after = look.cursor\n        before = vars(self).setdefault('lsn', look.lsn)\n"
           "        vars(self)['lsn'] = look.lsn\n"
           "        look = __import__('msgspec').structs.replace(look, lsn=before)\n        if look.added:",
           (f"{NOTES_TEST}::test_a_note_has_the_lsn_of_its_own_look",)),
    Mutant("slot, rule 2: notes are kept when the lane is loaded again", FOLLOWING_LANE,
           "notes = Notes(self._progress.cursor)",
           "notes = self.__dict__.setdefault('notes', Notes(self._progress.cursor))",
           (f"{FOLLOWING}::test_what_was_noted_before_a_crash_means_nothing_after_it",)),
    Mutant("slot, rule 3: a slot that was made anew is followed", NOTES,
           "now.transactions < kept.transactions", "now.transactions < 0",
           (f"{FOLLOWING}::test_a_slot_that_was_made_anew_pauses_the_sink_until_it_is_adopted",)),
    Mutant("slot, rule 3: a slot that is gone is waited for", NOTES,
           'return None if kept is None else f"{named} does not exist any more"', "return None",
           (f"{FOLLOWING}::test_a_slot_that_is_gone_pauses_the_sink",)),
    Mutant("slot, rule 3: a slot without its write-ahead log is followed", NOTES,
           '(slot.wal_status == "lost", "is lost', '(False, "is lost',
           (f"{FOLLOWING}::test_a_slot_without_its_write_ahead_log_pauses_the_sink",)),
    Mutant("slot, rule 3: a slot that confirms nothing is followed", NOTES,
           "slot.confirmed is None and kept is not None", "False",
           (f"{NOTES_TEST}::test_a_slot_that_is_not_the_one_that_was_followed_is_lost",)),
    Mutant("slot, rule 3: the pause of a lost slot is not kept", PG_QUERIES,
           "on conflict (sink) do update set lost = excluded.lost", "on conflict (sink) do nothing",
           (f"{FOLLOWING}::test_a_slot_that_was_made_anew_pauses_the_sink_until_it_is_adopted",)),
    Mutant("slot, rule 3: a lost slot can be resumed", "postroad/stores/admin/slots.py",
           "if slot is not None and slot.lost is not None:\n        raise", "if False:\n        raise",
           (f"{FOLLOWING}::test_a_slot_that_is_gone_pauses_the_sink",)),
    Mutant("slot, rule 4: a slot that no program reads moves the cursor", NOTES,
           "if not slot.active or slot.confirmed is None:", "if slot.confirmed is None:",
           (f"{FOLLOWING}::test_a_slot_that_no_program_reads_confirms_nothing",)),
    Mutant("slot, rule 5: a slot that confirms nothing is not reported", FOLLOWING_LANE,
           "if look.slot is None or (waiting and still >= STILL_SECONDS):", "if look.slot is None:",
           (f"{FOLLOWING}::test_a_slot_that_confirms_nothing_is_reported",)),
    Mutant("slot: an operator can decide about messages that another program carries", "postroad/stores/admin/slots.py",
           "if named and all(named.values()):", "if False:",
           (f"{FOLLOWING}::test_operators_can_not_decide_about_messages_that_another_program_carries",)),
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
    if not wanted:
        raise SystemExit(f"no mutant's name contains all of these words: {' '.join(sys.argv[1:])}")
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
