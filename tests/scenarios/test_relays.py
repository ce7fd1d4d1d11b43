"""Several relays, each a process, on real servers, and all that can happen to them: short versions of the soak test."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos import Chaos
from tests.lanes import until_nothing_waits
from tests.logs import OUTBOX, PostgreSQLLog, log_fixture, numbered
from tests.queues import arrivals, with_queue
from tests.relays import frozen_in_a_page, relay
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import stop
from tests.traffic import Traffic

SEED = int(os.environ.get("TURMOIL_SEED", "8"))
NEVER = ("--lease", "1h")  # so that nothing but the advisory lock can tell that a relay died
PATIENT = (*NEVER, "--grace", "2m")  # a busy machine costs no lane, and no confirm


log = log_fixture("postgresql15")


async def owners(log: PostgreSQLLog) -> list[int]:
    """How many lanes each relay has that has any."""
    rows = await log.execute("select count(*) from postroad.lanes where owner is not null group by owner order by 1")
    return [row["count"] for row in rows]


async def until_owners(log: PostgreSQLLog, *expected: int) -> None:
    async with asyncio.timeout(120):
        while await owners(log) != list(expected):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.02)


async def test_three_relays_over_one_backlog_and_nothing_comes_twice(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    traffic = Traffic(50_000, keys=400)
    await with_queue(vhost)
    await traffic.add_to(log)
    async with AsyncExitStack() as stack:
        running = [stack.enter_context(relay(log, vhost, tmp_path / f"{number}", *PATIENT)) for number in range(3)]
        await until_owners(log, 1, 1, 2)
        async with traffic.growing(log):
            await until_nothing_waits(log.url)
        await until_nothing_waits(log.url)
        assert [await each.ended_by(signal.SIGTERM) for each in running] == [0, 0, 0]
    assert all(sum(page["published"] for page in each.logged("page_published")) for each in running), "all had a share"
    assert not traffic.check(await arrivals(vhost))
    assert await log.execute("select from postroad.relays") == []


async def test_relays_come_and_go_and_nothing_comes_twice(log: PostgreSQLLog, vhost: str, tmp_path: Path) -> None:
    """They end in the middle of their work. No lease expires and all are waited for, however busy the machine is."""
    traffic = Traffic(2_000, keys=400)
    await with_queue(vhost)
    await traffic.add_to(log)
    async with AsyncExitStack() as stack:
        running = [stack.enter_context(relay(log, vhost, tmp_path / f"{number}", *PATIENT)) for number in range(2)]
        async with traffic.growing(log):
            for number in range(2, 6):
                await until_owners(log, 2, 2)
                await running[0].until(1)
                assert await running.pop(0).ended_by(signal.SIGTERM) == 0
                running.append(stack.enter_context(relay(log, vhost, tmp_path / f"{number}", *PATIENT)))
            await until_owners(log, 2, 2)
        await until_nothing_waits(log.url)
        assert [await each.ended_by(signal.SIGTERM) for each in running] == [0, 0]
    assert not traffic.check(await arrivals(vhost))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_who_dies_is_not_missed(log: PostgreSQLLog, vhost: str, tmp_path: Path, number: signal.Signals) -> None:
    """The leases are an hour long: only the lock tells that the process is gone, or the one who leaves."""
    await with_queue(vhost)
    with relay(log, vhost, tmp_path / "a", *NEVER) as first, relay(log, vhost, tmp_path / "b", *NEVER) as second:
        await until_owners(log, 2, 2)
        await first.ended_by(number)
        await until_owners(log, 4)
        await log.add(*numbered(*range(100)))
        await until_nothing_waits(log.url)
        assert len(second.logged("relay_evicted")) == (number == signal.SIGKILL)
    assert sorted(await arrivals(vhost)) == list(range(100))


async def test_a_standby_takes_over_when_the_one_that_works_is_killed(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    await with_queue(vhost)
    options = (*NEVER, "--lock-id", "4711")
    with relay(log, vhost, tmp_path / "a", *options) as first:
        await first.until_logged("lock_taken")
        with relay(log, vhost, tmp_path / "b", *options) as second:
            await second.until_logged("relay_standby")
            await log.add(*numbered(*range(50)))
            await until_nothing_waits(log.url)
            await first.ended_by(signal.SIGKILL)
            await second.until_logged("lock_taken")
            await log.add(*numbered(*range(50, 100)))
            await until_nothing_waits(log.url)
    assert sorted(await arrivals(vhost)) == list(range(100))


async def test_a_relay_that_was_frozen_beyond_its_lease_changes_nothing(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    """While it wakes the one that has its lanes is frozen too: so whatever changes, it has changed."""
    await with_queue(vhost)
    await log.add(*numbered(*range(8_000)))
    with relay(log, vhost, tmp_path / "a", "--lease", "1s") as first:
        await first.until(1)
        await frozen_in_a_page(first)
        with relay(log, vhost, tmp_path / "b", *NEVER) as second:
            await until_nothing_waits(log.url)
            await until_owners(log, 4)
            stop(second.process)
            await until_no_statement_runs(log)
            before = await lanes(log)
            published = len(first.logged("page_published"))
            under_way = len(first.logged("page_taken")) - published
            first.process.send_signal(signal.SIGCONT)
            await first.until_logged("lane_lost", times=4)
            await first.until_logged("relay_standby")
            assert await lanes(log) == before
            since = first.logged("page_published")[published:]
            assert sum(page["published"] > 0 for page in since) <= under_way, "it sent what it had only read"
            # Once it owns lanes again, a busy machine may make it lose one: its lease lasts a second.
            assert len(first.logged("lane_lost")) == 4
            # PostgreSQL has ended its sessions if it was frozen in a transaction for 10 s.
            assert first.logged("store_unavailable") or not first.logged("lane_reloaded")
            second.process.send_signal(signal.SIGCONT)
            await until_owners(log, 2, 2)
            await log.add(*numbered(*range(8_000, 8_100)))
            await until_nothing_waits(log.url)
    assert set(await arrivals(vhost)) == set(range(8_100))


async def until_no_statement_runs(log: PostgreSQLLog) -> None:
    """The server ends a statement also when the process that has sent it is stopped; only rows can't be sent to it."""
    query = """
        select from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()
           and state = 'active' and wait_event_type is distinct from 'Client'
    """
    async with asyncio.timeout(60):
        while await log.execute(query):  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.02)


async def lanes(log: PostgreSQLLog) -> list[tuple[object, ...]]:
    """All that a relay could change of them."""
    rows = await log.execute("select lane, owner, epoch, version, position, late_position from postroad.lanes")
    return sorted(map(tuple, rows))


async def test_a_long_transaction_delays_no_other_message(log: PostgreSQLLog, vhost: str, tmp_path: Path) -> None:
    await with_queue(vhost)
    writer = await log.connect()
    transaction = writer.transaction()
    with relay(log, vhost, tmp_path / "a", "--lease", "1s") as running:
        await until_owners(log, 4)
        await transaction.start()
        await OUTBOX.add_many(writer, numbered(0))
        await log.add(*numbered(*range(1, 101)))
        await running.until(100)
        await until_heartbeats(log, 6)  # two leases later
        await log.add(*numbered(*range(101, 201)))
        await running.until(200)
        await transaction.commit()
        await writer.close()
        await running.until(201)
    assert sorted(await arrivals(vhost)) == list(range(201))


async def until_heartbeats(log: PostgreSQLLog, times: int) -> None:
    """Wait until the relay has sent so many more heartbeats."""
    query = "select sum(heartbeats) from postroad.relays"
    ((before,),) = await log.execute(query)
    async with asyncio.timeout(60):
        while (await log.execute(query))[0][0] < before + times:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)


ACTS = [
    "kill", "freeze", "end_in_peace", "drop_connections", "delay", "delay_beyond_lease", "half_close",
    "restart_database", "forget_connections", "crash_database", "restart_broker", "kill", "end_in_peace",
]  # fmt: skip


async def test_whatever_happens_every_promise_is_kept(
    postgresql15: PostgreSQL, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    async with Chaos(postgresql15, rabbitmq, tmp_path, seed=SEED) as chaos:
        chaos.write()
        for act in ACTS:
            await asyncio.sleep(0.3)
            await chaos.happen(act)
        await chaos.until_committed(500)
        verdict = await chaos.come_to_rest()
        # Of duplicates only their absence without a fault is promised, and a busy machine is a fault that is not in the
        # list: it may stop a relay for longer than its lease of two seconds. The tests above have longer leases and no
        # faults, and no duplicates; `make soak`, on a machine of its own, asks for the reason of each.
        assert not [*verdict.lost, *verdict.phantoms, *verdict.overtaken], chaos.report(verdict)
        print(chaos.report(verdict))  # noqa: T201 - `pytest -rP` shows it
