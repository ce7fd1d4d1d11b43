"""operations: what every question of an operator takes with a million messages in the log, half of them waiting, and a
tenth as many deferred; and what deleting a million of them costs writers and relays.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.backlog import TOPIC, create_log, create_sinks, fill
from benchmarks.process import Broken, Process
from benchmarks.sections import Plan, Section, median
from postroad.brokers import publisher_for
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.stores import open_admin, store_for
from postroad.stores.admin.contract import Filter, Rewind
from postroad.stores.leases import RelayIdentity
from postroad.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from benchmarks.process import Outcome
    from postroad.stores.admin.admin import Admin
    from tests.services.postgresql import PostgreSQL

SINK = "default"

# Half of the log is behind the lanes; every fifth of those is deferred; the lanes moved all the time.
AFTERMATH = """
update postroad.lanes set position = {behind}, snapshot = pg_current_snapshot();
insert into postroad.deferred (sink, lane, position, attempts, blocks, state, due_at, key, error)
select '{sink}', l.lane, o.position, 5, state <> 'dead', state, case when state = 'retrying' then now() + '1h' end,
       o.key, 'the broker said no to message ' || o.position
  from postroad.outbox o
  join postroad.lanes l on l.sink = '{sink}' and o.slot between l.first_slot and l.last_slot,
       lateral (select (array['dead', 'retrying', 'held'])[1 + o.position / 5 % 3] as state) s
 where o.position <= {behind} and o.position % 5 = 0;
insert into postroad.progress (sink, lane, position, at, snapshot, published, refused)
select '{sink}', lane, {behind} / 3600 * n, now() - make_interval(secs => 3600 - n), pg_current_snapshot(), 100, 1
  from generate_series(1, 3600) n, generate_series(0, 3) lane;
"""
_HELD_KEYS = """
insert into postroad.deferred (sink, lane, position, attempts, blocks, state, due_at, key, error)
select '{sink}', 0, n, 1, true, 'retrying', now() + '1h', 'customer-' || n, 'the broker said no to message ' || n
  from generate_series(1, {keys}) n;
"""
_ALL_DELIVERED = """
update postroad.lanes set position = (select max(position) from postroad.outbox), snapshot = pg_current_snapshot();
"""


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(1_000_000, quick=50_000)
    title = f"Operating: {messages:,} messages in the log, {messages // 10:,} deferred"
    section = Section("operations", title, ["", "median", "slowest"])
    url = create_log(server)
    create_sinks(url, [SINK])
    fill(server, url, messages, keys=messages // 100)
    server.psql(url, AFTERMATH.format(behind=messages // 2, sink=SINK))
    server.psql(url, "vacuum (analyze)")
    slowest = asyncio.run(_ask(url, section, plan))
    section.at_most("ms for the slowest question", 100, slowest, "{:.0f}")
    server.psql(url, "truncate postroad.deferred")
    server.psql(url, _ALL_DELIVERED)
    asyncio.run(_load(server, url, section, plan))
    server.psql(url, "checkpoint")
    _delete(server, url, section, plan, messages)
    return section


# -- looking ---------------------------------------------------------------------------------------------------------


async def _ask(url: str, section: Section, plan: Plan) -> float:
    async with open_admin(url) as ops:
        (one,) = (await ops.messages(Filter(state=State.DEAD), 1)).messages
        slowest = 0.0
        for name, question in _questions(ops, one.id).items():
            times = [await _timed(question) for _ in range(1 + 4 * plan.rounds())][1:]
            slowest = max(slowest, median(times))
            section.rows.append([name, f"{median(times):.1f} ms", f"{max(times):.1f} ms"])
            section.raw[name] = times
    return slowest


def _questions(ops: Admin, id: UUID) -> dict[str, Callable[[], Awaitable[Any]]]:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    filters = {
        "the newest": Filter(all=True),
        "waiting": Filter(state=State.WAITING),
        "published": Filter(state=State.PUBLISHED),
        "dead": Filter(state=State.DEAD),
        "dead, of a type that is there": Filter(state=State.DEAD, type=TOPIC),
        "dead, of a type that is not there": Filter(state=State.DEAD, type="none"),
        "dead, by error": Filter(state=State.DEAD, error="message 12345"),
        "dead, by age": Filter(state=State.DEAD, before=hour_ago),
        "by a key": Filter(key="customer-1"),
        "by a key that is not there": Filter(key="nobody"),
        "by id": Filter(ids=[id]),
    }
    questions: dict[str, Callable[[], Awaitable[Any]]] = {"status": ops.status}
    for name, which in filters.items():
        questions[f"messages: {name}"] = lambda which=which: ops.messages(which)  # type: ignore[misc]
        questions[f"count: {name}"] = lambda which=which: ops.count(which)  # type: ignore[misc]
    questions["message"] = lambda: ops.message(id)
    questions["would clean up"] = lambda: ops.preview_cleanup(timedelta(0))
    questions["would rewind to a position"] = lambda: ops.preview_rewind(Rewind(sink=SINK, to=1))
    questions["would rewind to a time"] = lambda: ops.preview_rewind(Rewind(sink=SINK, to=hour_ago, type=TOPIC))
    questions["audit"] = ops.audit
    return questions


async def _timed(question: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await question()
    return (time.perf_counter() - began) * 1000


# -- loading ---------------------------------------------------------------------------------------------------------


async def _load(server: PostgreSQL, url: str, section: Section, plan: Plan) -> None:
    """How long a lane takes to begin when very many keys wait for their first message."""
    keys = plan.size(100_000, quick=10_000)
    server.psql(url, _HELD_KEYS.format(sink=SINK, keys=keys))
    server.psql(url, "vacuum (analyze) postroad.deferred")
    store = store_for(url)
    await store.open()
    try:
        identity = RelayIdentity(new_id(), SINK, "benchmark", 1, __version__, publisher_for("null://").destination)
        (lease,) = await store.leases.take(identity, 1, 60.0, exclude=[1, 2, 3])
        loaded = await store.load(lease)  # the first one prepares the statements
        times = []
        for _ in range(4 * plan.rounds()):
            began = time.perf_counter()
            loaded = await store.load(loaded.lease)
            times.append((time.perf_counter() - began) * 1000)
        await store.leases.release(loaded.lease)
    finally:
        await store.close()
    if len(loaded.blocked_keys) != keys:
        raise Broken(f"{len(loaded.blocked_keys):,} of {keys:,} keys were loaded")
    name = f"loading a lane with {keys:,} keys that wait"
    section.rows.append([name, f"{median(times):.1f} ms", f"{max(times):.1f} ms"])
    section.raw[name] = times
    section.at_most(f"ms for {name}", 200, median(times), "{:.0f}")
    server.psql(url, "truncate postroad.deferred")


# -- deleting --------------------------------------------------------------------------------------------------------


def _delete(server: PostgreSQL, url: str, section: Section, plan: Plan, messages: int) -> None:
    seconds = 3 if plan.quick else 30
    before = _traffic(url, seconds, deleting=False)
    during = _traffic(url, seconds, deleting=True)
    deleted = during["retention"].messages
    section.rows.append(["messages deleted meanwhile", f"{deleted:,}", f"{during['retention'].rate:,.0f}/s"])
    for role in ("writer", "relay"):
        rates = before[role].rate, during[role].rate
        section.rows.append([f"{role}, before and during", *(f"{rate:,.0f}/s" for rate in rates)])
        section.at_least(f"of the {role}'s rate while messages are deleted", 0.8, rates[1] / rates[0], "{:.0%}")
    left = int(server.psql(url, f"select count(*) from postroad.outbox where position <= {messages}"))
    section.notes.append(f"{left:,} of the {messages:,} old messages were left after {seconds} s.")


def _traffic(url: str, seconds: float, *, deleting: bool) -> dict[str, Outcome]:
    """Let them work side by side for so long; what each of them did."""
    with (
        Process("traffic_process", url, "relay") as relay,
        Process("traffic_process", url, "writer") as writer,
        Process("retention_process", url) as retention,
    ):
        working = {"relay": relay, "writer": writer} | ({"retention": retention} if deleting else {})
        for process in working.values():
            process.say()
        time.sleep(seconds)
        for process in reversed(working.values()):
            process.say()
        return {role: process.outcome() for role, process in working.items()}
