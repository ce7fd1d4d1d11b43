"""The contract of `Admin`, on SQLite and two versions of PostgreSQL: what people see, what they change, and what a
relay that runs makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad import InvalidSetting, Message, NotFound, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.relay import Relay, Summary
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import (
    MINUTES,
    By,
    Count,
    Done,
    Filter,
    KeyCount,
    KeyPreview,
    MessageRow,
    Rewind,
    totals,
)
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from tests.contracts.test_progress import query
from tests.logs import Arrivals, Log, PostgreSQLLog, SQLiteLog, log_fixture, numbered

ME = By("anna", "because")
LATER = Backoff(first=timedelta(hours=1), max_backoff=timedelta(hours=1))
AT_ONCE = Backoff(first=timedelta(0))
EVERYTHING = Filter(all=True)


log = log_fixture("sqlite", "postgresql15", "postgresql18")


@pytest.fixture
async def ops(log: Log) -> AsyncIterator[Admin]:
    async with admin_of(log) as admin:
        yield admin


def admin_of(log: Log, *, connections: int = 1) -> Admin:
    if isinstance(log, SQLiteLog):
        return Admin(SQLiteAdminDatabase(log.path, connections=connections))
    assert isinstance(log, PostgreSQLLog)
    return Admin(PostgreSQLAdminDatabase(log.url, connections=connections))


def relay(log: Log, broker: MemoryBroker, *, retry: Backoff = AT_ONCE, sink: str = "default", **more: Any) -> Relay:
    settings: dict[str, Any] = {"lanes": 2, "batch_size": 10, "poll_interval": "1ms", "max_idle_backoff": "5ms"}
    return Relay(log.another_store(), broker, sink=sink, settings=RelaySettings(**(settings | more)), retry=retry)


async def run_relay(log: Log, broker: MemoryBroker, **more: Any) -> Summary:
    return await relay(log, broker, **more).run_until_empty()


@asynccontextmanager
async def running(log: Log, broker: MemoryBroker, **more: Any) -> AsyncIterator[Relay]:
    it = relay(log, broker, **more)
    task = asyncio.create_task(it.run())
    try:
        yield it
    finally:
        it.stop()
        await asyncio.wait_for(task, 60)


def refusing(*numbers: int) -> Arrivals:
    broker = Arrivals()
    broker.refuse(lambda message: f"no {int(message.payload)}" if int(message.payload) in numbers else None)
    return broker


def mend(broker: MemoryBroker) -> None:
    broker.refuse(lambda _: None)


async def states(ops: Admin, **which: Any) -> dict[int, str]:
    """What state each message is in, by position."""
    return {row.position: row.state.value for row in (await ops.messages(Filter(**which), 1000)).messages}


async def at(ops: Admin, position: int) -> MessageRow:
    (row,) = [row for row in (await ops.messages(EVERYTHING, 1000)).messages if row.position == position]
    return row


async def until(ops: Admin, position: int, state: State) -> MessageRow:
    async with asyncio.timeout(60):
        while (await states(ops, all=True)).get(position) != state:  # noqa: ASYNC110 - a database has no event
            await asyncio.sleep(0.01)
    return await at(ops, position)


async def until_passed(ops: Admin) -> None:
    async with asyncio.timeout(60):
        while any(lane.pending.number for sink in (await ops.status()).sinks for lane in sink.lanes):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def id_of(ops: Admin, position: int) -> UUID:
    return (await at(ops, position)).id


# -- many calls at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", [1, 4])
async def test_twenty_calls_at_once_of_all_kinds(log: Log, connections: int) -> None:
    await log.add(*numbered(*range(1, 9), key="k1"), *numbered(9))
    await run_relay(log, refusing(9), retry=Backoff(max_attempts=1))
    async with admin_of(log, connections=connections) as admin:
        (dead,) = (await admin.messages(Filter(state=State.DEAD))).messages
        found: list[Any] = await asyncio.wait_for(
            asyncio.gather(
                *(admin.hold("default", f"key-{number}", ME) for number in range(5)),
                admin.retry(Filter(ids=[dead.id]), ME),
                admin.pause("default", ME),
                admin.cleanup(timedelta(days=1), ME),
                *(admin.status() for _ in range(3)),
                *(admin.messages(EVERYTHING) for _ in range(3)),
                *(admin.count(Filter(key="k1")) for _ in range(2)),
                admin.message(dead.id),
                admin.relays(),
                admin.audit(),
                admin.preview_rewind(Rewind(sink="default", to=1)),
            ),
            60,
        )
        assert len(found) == 20
        assert found[:7] == [Done(1)] * 6 + [Done(2)], "each change was made, though they ran at once"
        assert [len(page.messages) for page in found[11:14]] == [9, 9, 9]
        assert {each.key for each in await admin.held_keys()} == {f"key-{number}" for number in range(5)}
        assert sorted(entry.command for entry in await admin.audit()) == ["hold"] * 5 + ["pause", "retry"]


async def test_a_change_that_is_canceled_leaves_nothing_and_its_connection_to_others(log: Log) -> None:
    await run_relay(log, MemoryBroker())
    async with admin_of(log) as admin:
        for turns in range(12):  # cancel it at every one of its first steps
            change = asyncio.create_task(admin.hold("default", f"k{turns}", ME))
            for _ in range(turns):
                await asyncio.sleep(0)
            change.cancel()
            await asyncio.wait([change])
            held = [each.key for each in await admin.held_keys()]
            audited = [entry.arguments["key"] for entry in await admin.audit() if entry.command == "hold"]
            assert (held == [f"k{turns}"]) == (f"k{turns}" in audited), "all of it, or nothing"
            await admin.release("default", f"k{turns}", ME)
            assert await admin.hold("default", "other", ME) == Done(1)
            assert await admin.release("default", "other", ME) == Done(1)


# -- previews --------------------------------------------------------------------------------------------------------


async def test_previews_tell_what_a_change_would_do_and_change_nothing(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="customer-1"), *numbered(3, key="customer-2"), *numbered(4))
    await run_relay(log, refusing(1, 3), retry=Backoff(max_attempts=1))
    await log.add(*numbered(5, key="customer-1"))
    dead = await id_of(ops, 1)
    published, waiting = await id_of(ops, 4), await id_of(ops, 5)
    assert await ops.preview_dead(Filter(ids=[dead])) == Count(1)
    assert await ops.preview_dead(Filter(all=True)) == Count(2)
    assert await ops.preview_dead(Filter(key="none")) == Count(0)
    with pytest.raises(NotFound, match="is published at sink 'default'; only a message that is dead can be"):
        await ops.preview_dead(Filter(ids=[published]))
    assert [row.state for row in await ops.preview_skip(waiting)] == [State.WAITING]
    assert [row.state for row in await ops.preview_skip(dead, "default")] == [State.DEAD]
    assert [row.id for row in await ops.preview_poison(waiting)] == [waiting]
    with pytest.raises(NotFound, match="can be poisoned"):
        await ops.preview_poison(published)
    with pytest.raises(NotFound, match="there is no message"):
        await ops.preview_skip(new_id())
    assert await ops.preview_hold("default", "customer-1") == KeyPreview(1, known=True, similar=None)
    assert await ops.preview_hold("default", "customer-3") == KeyPreview(0, known=False, similar="customer-2")
    assert await ops.preview_hold("default", "something else") == KeyPreview(0, known=False, similar=None)
    assert [await ops.preview_skip_key("default", key) for key in ("customer-1", "customer-2", "customer-3")] == [
        1,
        1,
        0,
    ]
    assert (await ops.preview_remove_sink("default")).relays == 0
    assert (await ops.preview_retarget("default", "elsewhere")).destination == "memory"
    with pytest.raises(NotFound, match="delivers to memory already"):
        await ops.preview_retarget("default", "memory")
    report = await ops.sink("default")
    assert (report.paused, totals([report]).undelivered) == (False, Count(3))
    assert await ops.find_id(dead.hex[-9:]) == await ops.find_id(dead.hex) == dead
    for call in (ops.sink("defalt"), ops.preview_hold("defalt", "k"), ops.preview_skip(dead, "defalt")):
        with pytest.raises(InvalidSetting, match="there is no sink 'defalt'; did you mean 'default'"):
            await call
    assert list(await ops.audit()) == []


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_what_there_is_before_there_is_anything(ops: Admin) -> None:
    assert list(await ops.sinks()) == []
    report = await ops.status()
    assert (list(report.sinks), report.scheduled.number, report.next_scheduled_at) == ([], 0, None)
    assert list((await ops.messages(EVERYTHING)).messages) == []
    assert (await ops.count(EVERYTHING)).number == 0
    with pytest.raises(NotFound, match="there is no message"):
        await ops.message(new_id())
    assert list(await ops.audit()) == []


async def test_status_reports_what_waits_and_what_is_deferred(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, key="a"), *numbered(4, 5, 6))
    await run_relay(log, refusing(1, 5), retry=LATER, lanes=1, max_attempts=2)
    await log.make_older(timedelta(minutes=10))
    await log.add(*numbered(7, 8))
    (sink,) = (await ops.status()).sinks
    (lane,) = sink.lanes
    assert (sink.sink, lane.lane, lane.position, lane.paused) == ("default", 0, 6, False)
    assert (lane.pending.number, lane.pending.exact) == (2, True)
    assert (lane.failing, lane.held, lane.dead) == (2, 2, 0)
    assert 0 <= lane.lag_seconds < 300
    assert lane.oldest_unsent_seconds >= 600
    assert lane.owner is None, "it was given up"
    assert (lane.published_last_hour, lane.refused_last_hour) == (2, 2)
    assert len(sink.published_per_minute) == MINUTES
    assert sum(sink.published_per_minute) == sum(sink.published_per_minute[-2:]) == 2


async def test_status_reports_what_is_scheduled(log: Log, ops: Admin) -> None:
    await log.add(*(Message("1", type="t", deliver_in=timedelta(hours=hours)) for hours in (1, 2)))
    report = await ops.status()
    assert (report.scheduled.number, report.scheduled.exact) == (2, True)
    assert report.next_scheduled_at is not None
    assert timedelta(minutes=59) < report.next_scheduled_at - report.at < timedelta(minutes=61)


async def test_a_message_is_waiting_then_published_and_that_has_a_time(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    assert await states(ops, all=True) == {1: "waiting"}, "also before there is a sink"
    await run_relay(log, MemoryBroker())
    await log.add(*numbered(2))
    newest, oldest = (await ops.messages(EVERYTHING)).messages
    assert (newest.position, newest.state, newest.published_at) == (2, State.WAITING, None)
    assert (oldest.position, oldest.state) == (1, State.PUBLISHED)
    assert oldest.published_at is not None
    assert oldest.created_at <= oldest.published_at < oldest.created_at + timedelta(minutes=5)


async def test_who_was_deferred_was_published_when_that_was_over(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1), *numbered(2))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    (before,) = (await ops.messages(Filter(state=State.PUBLISHED))).messages
    mend(broker)
    await log.pass_time(timedelta(hours=2))
    await run_relay(log, broker)
    row = await at(ops, 1)
    assert (row.state, row.attempts, row.error, row.next_attempt_at) == (State.PUBLISHED, 0, None, None)
    assert row.published_at is not None
    assert before.published_at is not None
    assert row.published_at > before.published_at


async def test_what_is_behind_a_sink_that_began_at_now_has_no_time(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    await run_relay(log, MemoryBroker(), start="now")
    await log.add(*numbered(2))
    await run_relay(log, broker := Arrivals(), start="now")
    assert broker.numbers == [2]
    assert (await at(ops, 1)).published_at is None
    assert (await at(ops, 2)).published_at is not None


async def test_a_filter_narrows(log: Log, ops: Admin) -> None:
    await log.add(
        Message("1", type="order.created", topic="orders", key="a"),
        Message("2", type="order.paid", topic="orders", key="a"),
        Message("3", type="order.paid", topic="money", key="b"),
    )
    await run_relay(log, refusing(2, 3), retry=Backoff(max_attempts=1))
    await run_relay(log, MemoryBroker(), sink="other")

    async def found(**which: Any) -> list[int]:
        rows = (await ops.messages(Filter(sink=which.pop("sink", "default"), **which))).messages
        assert (await ops.count(Filter(sink="default", **which))).number == len(rows)
        return [row.position for row in rows]

    assert await found(all=True) == [3, 2, 1]
    assert await found(state=State.DEAD) == [3, 2]
    assert await found(state=State.PUBLISHED) == [1]
    assert await found(state=State.WAITING) == []
    assert await found(key="a") == [2, 1]
    assert await found(key="a", state=State.DEAD) == [2]
    assert await found(type="order.paid") == [3, 2]
    assert await found(type="order.paid", topic="money") == [3]
    assert await found(type="order.paid", topic="money", state=State.DEAD) == [3]
    assert await found(error="NO 2") == [2]
    now = datetime.now(UTC)
    assert await found(since=now - timedelta(hours=1), state=State.DEAD) == [3, 2]
    assert await found(before=now - timedelta(hours=1), state=State.DEAD) == []
    assert await found(before=now - timedelta(hours=1)) == []
    (three,) = [await id_of_at(ops, 3, "default")]
    assert await found(ids=[three]) == [3]
    assert await found(ids=[three], key="a") == []
    assert (await ops.count(EVERYTHING)).number == 6, "once for each sink"
    rows = (await ops.messages(Filter(sink="default", all=True), 1, below=3)).messages
    assert [row.position for row in rows] == [2]


async def id_of_at(ops: Admin, position: int, sink: str) -> UUID:
    rows = (await ops.messages(Filter(sink=sink, all=True))).messages
    return next(row.id for row in rows if row.position == position)


async def test_a_messages_whole_history(log: Log, ops: Admin) -> None:
    cause, other = new_id(), new_id()
    await log.add(Message(b"\x00payload", type="a.b", topic="t", key="k", id=cause, headers={"x": "y"}))
    await log.add(Message("c", type="c.d", id=other, causation_id=str(cause)), *numbered(9))
    broker = Arrivals()
    broker.refuse(lambda message: "no" if message.id == cause else None)
    await run_relay(log, broker, retry=Backoff(first=timedelta(0), max_attempts=2))
    history = await ops.message(cause, payload_bytes=4)
    assert history is not None
    assert (history.type, history.topic, history.key, history.position) == ("a.b", "t", "k", 1)
    assert (history.payload, history.payload_size) == (b"\x00pay", 8)
    assert history.headers == {"source": "/tests", "x": "y"}
    (here,) = history.sinks
    assert (here.row.state, here.row.attempts, here.row.error) == (State.DEAD, 2, "no")
    assert [(each.attempt, each.error) for each in here.failures] == [(1, "no"), (2, "no")]
    assert list(history.caused) == [(other, "c.d")]


async def test_the_history_of_what_is_to_be_sent_later(log: Log, ops: Admin) -> None:
    id = new_id()
    await log.add(Message("1", type="t", id=id, deliver_in=timedelta(hours=1)))
    history = await ops.message(id)
    assert history is not None
    assert (history.position, list(history.sinks), list(history.caused)) == (None, [], [])
    assert history.deliver_at is not None


# -- deferred messages -----------------------------------------------------------------------------------------------


async def test_retry_lets_the_dead_go_again_with_all_their_attempts(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3))
    broker = refusing(1, 2)
    await run_relay(log, broker)
    mend(broker)
    seen: list[int] = []
    assert await ops.retry(Filter(state=State.DEAD), ME, on_progress=seen.append) == Done(2)
    assert seen == [2]
    row = await at(ops, 1)
    assert (row.state, row.attempts, row.error) == (State.RETRYING, 0, "no 1")
    await run_relay(log, broker)
    assert sorted(broker.numbers) == [1, 2, 3]
    history = await ops.message(row.id)
    assert history is not None
    assert [each.attempt for each in history.sinks[0].failures] == [1, 2, 3, 4, 5], "the history stays"


async def test_retry_stays_behind_what_blocks_its_key(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, key="a"))
    broker = refusing(2)
    await run_relay(log, broker, lanes=1, on_dead="hold")
    assert await states(ops, all=True) == {1: "published", 2: "dead", 3: "held"}
    await ops.poison(Filter(ids=[await id_of(ops, 3)]), ME)
    assert (await ops.retry(Filter(ids=[await id_of(ops, 3)]), ME)).changed == 1
    assert (await at(ops, 3)).state is State.HELD
    mend(broker)
    assert (await ops.retry(Filter(ids=[await id_of(ops, 2)]), ME)).changed == 1
    await run_relay(log, broker)
    assert broker.numbers == [1, 2, 3]


async def test_a_running_relay_sends_what_is_retried(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2))
    async with running(log, broker := refusing(1)):
        await until(ops, 1, State.DEAD)
        mend(broker)
        await ops.retry(Filter(all=True), ME)
        await broker.until(1, 2)


async def test_drop_gives_the_dead_up_and_frees_their_keys(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"))
    async with running(log, broker := refusing(1), on_dead="hold"):
        await until(ops, 2, State.HELD)
        await until(ops, 1, State.DEAD)
        assert await ops.drop(Filter(error="no 1"), ME) == Done(1)
        await broker.until(2)
    assert await states(ops, all=True) == {1: "dropped", 2: "published"}


async def test_what_may_not_move_is_not_moved_and_is_reported(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3), *numbered(4, key="k1"))
    await run_relay(log, refusing(1, 3), retry=LATER)
    await log.add(*numbered(5))
    ids = [row.id for row in (await ops.messages(EVERYTHING)).messages]
    done = await ops.retry(Filter(ids=ids), ME)
    assert done.changed == 0
    assert done.unchanged == {State.RETRYING: 2, State.PUBLISHED: 1, State.HELD: 1, State.WAITING: 1}
    assert list(await ops.audit()) == [], "nothing was changed"
    assert (await ops.retry(Filter(ids=[new_id()]), ME)) == Done(0)


async def test_poison_makes_deferred_messages_dead_and_names_the_operator(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    assert await ops.poison(Filter(ids=[await id_of(ops, 1)]), By("anna", "bad data")) == Done(1)
    row = await at(ops, 1)
    assert (row.state, row.attempts, row.error) == (State.DEAD, 1, "poisoned by anna: bad data")
    history = await ops.message(row.id)
    assert history is not None
    assert [each.error for each in history.sinks[0].failures] == ["no 1", "poisoned by anna: bad data"]
    await run_relay(log, broker)
    assert broker.numbers == [2], "what waited for it goes on"


async def test_poison_that_holds_the_key(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"))
    await run_relay(log, broker := refusing(1), retry=LATER)
    await ops.poison(Filter(ids=[await id_of(ops, 1)]), ME, holds_key=True)
    await run_relay(log, broker)
    assert broker.numbers == []


async def test_a_message_that_still_waits_is_skipped_or_poisoned(log: Log, ops: Admin) -> None:
    await run_relay(log, broker := Arrivals())
    await log.add(*numbered(1, 2, 3, 4, 5))
    assert await ops.skip(Filter(ids=[await id_of(ops, 2)]), ME) == Done(1)
    assert await ops.poison(Filter(ids=[await id_of(ops, 4)]), ME) == Done(1)
    assert await states(ops, all=True) == {1: "waiting", 2: "skipped", 3: "waiting", 4: "dead", 5: "waiting"}
    summary = await run_relay(log, broker, batch_size=2)
    assert sorted(broker.numbers) == [1, 3, 5]
    assert (summary.published, summary.skipped) == (3, 2)
    assert ", 2 skipped in " in str(summary)
    await log.add(*numbered(6))
    assert (await run_relay(log, broker)).skipped == 0, "that is forgotten"
    await ops.retry(Filter(ids=[await id_of(ops, 4)]), ME)
    await run_relay(log, broker)
    assert sorted(broker.numbers) == [1, 3, 4, 5, 6]
    assert await ops.skip(Filter(ids=[await id_of(ops, 1)]), ME) == Done(0, {State.PUBLISHED: 1})


async def test_a_running_relay_passes_over_what_is_skipped(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    async with running(log, broker := Arrivals()):
        await until(ops, 1, State.PUBLISHED)  # what is confirmed and not saved would go again
        await ops.pause("default", ME)
        await log.add(*numbered(2, 3))
        await ops.skip(Filter(ids=[await id_of(ops, 2)]), ME)
        await ops.resume("default", ME)
        await broker.until(3)
    assert broker.numbers == [1, 3]


async def test_skip_what_is_deferred(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3))
    broker = refusing(1, 3)
    await run_relay(log, broker, retry=LATER)
    assert await ops.skip(Filter(key="a", state=State.RETRYING), ME) == Done(1)
    await run_relay(log, broker)
    assert broker.numbers == [2]
    assert await states(ops, all=True) == {1: "skipped", 2: "published", 3: "retrying"}


async def test_a_filter_that_means_everything_must_say_so(ops: Admin) -> None:
    for command in (ops.retry, ops.drop, ops.skip, ops.poison):
        with pytest.raises(InvalidSetting, match="the filter selects no messages"):
            await command(Filter(), ME)


async def test_an_unknown_sink_is_named(log: Log, ops: Admin) -> None:
    await run_relay(log, MemoryBroker())
    with pytest.raises(InvalidSetting, match="there is no sink 'nope'; there is 'default'"):
        await ops.hold("nope", "a", ME)
    with pytest.raises(InvalidSetting, match="'nope'"):
        await ops.retry(Filter(sink="nope", all=True), ME)
    with pytest.raises(InvalidSetting, match="'nope'"):
        await ops.pause("nope", ME)
    with pytest.raises(InvalidSetting, match="'nope'"):
        await ops.rewind(Rewind(sink="nope", to=1), ME)


async def test_one_sinks_messages_are_not_anothers(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    await run_relay(log, refusing(1), sink="one")
    await run_relay(log, refusing(1), sink="two")
    assert await ops.drop(Filter(sink="one", state=State.DEAD), ME) == Done(1)
    assert await states(ops, sink="one", all=True) == {1: "dropped"}
    assert await states(ops, sink="two", all=True) == {1: "dead"}


async def test_large_changes_go_in_batches_and_are_one_line_of_the_audit(
    log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.stores.admin.change.BATCH", 3)
    await log.add(*numbered(*range(1, 9)))
    broker = Arrivals()
    broker.refuse(lambda _: "no")
    await run_relay(log, broker, retry=Backoff(max_attempts=1))
    await run_relay(log, broker, retry=Backoff(max_attempts=1), sink="other")
    seen: list[int] = []
    assert await ops.drop(Filter(all=True), ME, on_progress=seen.append) == Done(16)
    assert seen == [3, 6, 9, 12, 15, 16]
    (entry,) = await ops.audit()
    assert (entry.who, entry.command, entry.reason, entry.changed) == ("anna", "drop", "because", 16)
    assert entry.arguments == {"all": True}
    assert datetime.now(UTC) - entry.at < timedelta(minutes=5)


# -- keys and sinks --------------------------------------------------------------------------------------------------


async def test_a_held_key_waits_and_others_go_on(log: Log, ops: Admin) -> None:
    async with running(log, broker := Arrivals()):
        await log.add(*numbered(1, key="b"))
        await until(ops, 1, State.PUBLISHED)
        assert await ops.hold("default", "a", ME) == Done(1)
        assert await ops.hold("default", "a", ME) == Done(0)
        await log.add(*numbered(2, 3, key="a"), *numbered(4, key="b"))
        await until(ops, 3, State.HELD)
        await until(ops, 4, State.PUBLISHED)
        assert broker.numbers == [1, 4]
        (held,) = await ops.held_keys()
        assert (held.sink, held.key, held.who, held.reason) == ("default", "a", "anna", "because")
        (sink,) = (await ops.status()).sinks
        assert [each.key for each in sink.held_keys] == ["a"]
        assert await ops.release("default", "a", ME) == Done(1)
        await broker.until(2, 3)
        assert await ops.release("default", "a", ME) == Done(0)
    assert broker.numbers == [1, 4, 2, 3]
    assert [entry.command for entry in await ops.audit()] == ["release", "hold"]


async def test_a_hold_survives_restarts_and_holds_what_is_deferred(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3, key="b"))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    await ops.hold("default", "a", ME)
    assert await states(ops, all=True) == {1: "held", 2: "held", 3: "published"}
    mend(broker)
    await log.add(*numbered(4, key="a"))
    assert (await run_relay(log, broker)).published == 0
    await ops.release("default", "a", ME)
    await run_relay(log, broker)
    assert broker.numbers == [3, 1, 2, 4]


async def test_what_is_being_sent_when_its_key_is_held_is_not_sent_again(log: Log, ops: Admin) -> None:
    """The claim is out, the hold comes, and the lane that finds out puts the message back without making it due."""
    await log.add(*numbered(1, key="a"))
    broker = refusing(1)
    await run_relay(log, broker, retry=AT_ONCE, max_attempts=1)
    await ops.retry(Filter(all=True), ME)
    broker.hold()
    broker.asked.clear()
    async with running(log, broker, lanes=1, grace="1ms"):
        await asyncio.wait_for(broker.asked.wait(), 60)
        assert (await at(ops, 1)).state is State.SENDING
        await ops.hold("default", "a", ME)
    mend(broker)
    broker.release()
    assert (await run_relay(log, broker)).published == 0
    assert (await at(ops, 1)).state is State.HELD


async def test_a_held_key_is_no_probe_for_its_route(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, key="a", topic="t"), *numbered(2, key="b", topic="t"))
    broker = Arrivals()
    broker.unbind("t")
    await run_relay(log, broker, lanes=1)
    await ops.hold("default", "a", ME)
    broker.bind("t")
    await run_relay(log, broker)
    assert broker.numbers == [2]


async def test_skip_key_skips_what_is_deferred_of_it(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3, key="b"))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    assert await ops.skip_key("default", "a", ME) == Done(2)
    await log.add(*numbered(4, key="a"))
    await run_relay(log, broker)
    assert broker.numbers == [3, 4]
    assert (await ops.audit())[0].arguments == {"sink": "default", "key": "a"}


async def test_a_paused_sink_stands_still_until_it_is_resumed(
    log: Log, ops: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="postroad")
    async with running(log, broker := Arrivals()):
        await log.add(*numbered(1))
        await until(ops, 1, State.PUBLISHED)
        assert await ops.pause("default", ME) == Done(2)
        assert await ops.pause("default", ME) == Done(0)
        async with asyncio.timeout(60):
            while caplog.text.count("paused") < 2:  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.01)
        await log.add(*numbered(2))
        (sink,) = (await ops.status()).sinks
        assert all(lane.paused for lane in sink.lanes)
        assert (await run_relay(log, other := Arrivals(), sink="other")).published == 2, "another sink goes on"
        assert other.numbers
        assert broker.numbers == [1]
        assert await ops.resume("default", ME) == Done(2)
        await broker.until(2)
    assert await ops.resume("default", ME) == Done(0)


async def test_a_relay_that_finds_its_sink_paused(log: Log, ops: Admin) -> None:
    await run_relay(log, broker := Arrivals())
    await ops.pause("default", ME)
    await log.add(*numbered(1))
    assert (await run_relay(log, broker)).published == 0
    async with running(log, broker):
        pass  # it can be stopped
    await ops.resume("default", ME)
    assert (await run_relay(log, broker)).published == 1


# -- the log ---------------------------------------------------------------------------------------------------------


async def test_cleanup_deletes_what_retention_would_and_says_how_many(log: Log, ops: Admin) -> None:
    await log.add(*numbered(*range(1, 8)))
    await run_relay(log, refusing(3))
    await log.make_older(timedelta(days=4))
    await log.add(*numbered(8))
    await run_relay(log, MemoryBroker())
    await log.add(*numbered(9))
    assert (await ops.preview_cleanup(timedelta(days=5))).number == 0
    wanted = await ops.preview_cleanup(timedelta(days=3))
    assert (wanted.number, wanted.exact) == (6, True)
    assert await ops.cleanup(timedelta(days=3), ME) == Done(6)
    assert await states(ops, all=True) == {3: "dead", 8: "published", 9: "waiting"}
    assert (await ops.preview_cleanup(timedelta(0))).number == 1
    assert [(entry.command, entry.changed) for entry in await ops.audit()] == [("cleanup", 6)]
    await ops.drop(Filter(all=True), ME)
    assert (await ops.cleanup(timedelta(days=3), ME)).changed == 1, "what was given up goes too"


async def test_rewind_publishes_again_and_says_so(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3, 4, key="b"))
    await run_relay(log, broker := Arrivals())
    ids = {int(message.payload): message.id for message in broker.messages}
    rewind = Rewind(sink="default", to=2)
    count = await ops.preview_rewind(rewind)
    assert (count.number, count.exact) == (3, True)
    assert await ops.rewind(rewind, ME) == Done(3)
    broker.messages.clear()
    await run_relay(log, broker)
    assert broker.numbers.index(3) < broker.numbers.index(4)
    assert {int(each.payload): each.id for each in broker.messages} == {n: ids[n] for n in (2, 3, 4)}
    assert all("postroad-rewind" in each.headers for each in broker.messages)
    assert all(each.source == "/tests" for each in broker.messages)
    assert set((await states(ops, all=True)).values()) == {"published"}
    (entry,) = await ops.audit()
    assert (entry.command, entry.changed, entry.arguments) == ("rewind", 3, {"sink": "default", "to": 2})


async def test_a_rewind_without_ordering_leaves_nothing_behind(log: Log, ops: Admin) -> None:
    await log.add(*numbered(*range(1, 6), key="a"))
    await run_relay(log, broker := Arrivals(), ordering="none")
    await ops.rewind(Rewind(sink="default", to=1), ME)
    await log.add(*numbered(6, key="a"))
    await run_relay(log, broker, ordering="none", batch_size=2)
    assert sorted(broker.numbers) == sorted([*range(1, 6), *range(1, 7)])
    assert await states(ops, all=True) == dict.fromkeys(range(1, 7), "published")


async def test_what_a_lane_has_not_come_to_can_not_overtake(log: Log, ops: Admin) -> None:
    await run_relay(log, broker := Arrivals())
    await log.add(*numbered(1, 2, key="a"))
    which = Filter(ids=[await id_of(ops, 2)])
    assert await ops.poison(which, ME) == Done(1)
    assert (await ops.retry(which, ME)).changed == 0
    await run_relay(log, broker)
    assert (await ops.retry(which, ME)).changed == 1
    await run_relay(log, broker)
    assert broker.numbers == [1, 2]


async def test_rewind_of_a_key_or_a_type_with_new_ids(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="a"), *numbered(3, key="b"), Message("4", type="other", key="a"))
    await run_relay(log, broker := Arrivals())
    known = {message.id for message in broker.messages}
    broker.messages.clear()
    rewind = Rewind(sink="default", to=1, key="a", type="test.number", new_ids=True)
    assert (await ops.preview_rewind(rewind)).number == 2
    assert (await ops.rewind(rewind, ME)).changed == 2
    await run_relay(log, broker)
    assert broker.numbers == [1, 2]
    assert known.isdisjoint(message.id for message in broker.messages)


async def test_rewind_to_a_time(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3))
    await log.make_older(timedelta(hours=2))
    await log.add(*numbered(4, 5))
    await run_relay(log, broker := Arrivals())
    broker.messages.clear()
    rewind = Rewind(sink="default", to=datetime.now(UTC) - timedelta(hours=1))
    assert (await ops.preview_rewind(rewind)).number == 2
    assert (await ops.rewind(rewind, ME)).changed == 2
    await run_relay(log, broker)
    assert sorted(broker.numbers) == [4, 5]


async def test_rewind_leaves_alone_what_was_not_published(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, 4))
    broker = refusing(1, 2)
    await run_relay(log, broker)
    await ops.drop(Filter(ids=[await id_of(ops, 2)]), ME)
    await log.add(*numbered(5))
    assert (await ops.rewind(Rewind(sink="default", to=0), ME)).changed == 2
    broker.messages.clear()
    await run_relay(log, broker)
    assert sorted(broker.numbers) == [3, 4, 5]
    assert await states(ops, all=True) == {1: "dead", 2: "dropped", 3: "published", 4: "published", 5: "published"}


async def test_what_is_published_again_is_refused_retried_and_keeps_its_header(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    await run_relay(log, broker := Arrivals())
    await ops.rewind(Rewind(sink="default", to=0, new_ids=True), ME)
    tried: list[StoredMessage] = []

    def third_time(message: StoredMessage) -> str | None:
        tried.append(message)
        return "no" if len(tried) < 3 else None

    broker.refuse(third_time)
    await run_relay(log, broker)
    assert len({message.id for message in tried}) == 1
    assert all("postroad-rewind" in message.headers for message in tried)
    assert len(broker.messages) == 2


async def test_a_large_rewind_goes_in_batches_under_a_running_relay(
    log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.stores.admin.rewind.BATCH", 7)
    for first in range(0, 60, 6):
        await log.add(*(message for n in range(first, first + 6) for message in numbered(n, key=f"k{n % 3}")))
    async with running(log, broker := Arrivals()):
        await broker.until(*range(60))
        await until_passed(ops)
        before = len(broker.messages)
        assert (await ops.rewind(Rewind(sink="default", to=0), ME)).changed == 60
        async with asyncio.timeout(60):
            while len({int(m.payload) for m in broker.messages if "postroad-rewind" in m.headers}) < 60:
                broker.asked.clear()
                await broker.asked.wait()
                await asyncio.sleep(0)
    again = [int(message.payload) for message in broker.messages[before:] if "postroad-rewind" in message.headers]
    for key in range(3):
        firsts = list(dict.fromkeys(n for n in again if n % 3 == key))
        assert firsts == sorted(firsts), "a key's messages are published again in order"
    assert (await ops.audit())[0].changed == 60


# -- forgetting ------------------------------------------------------------------------------------------------------


async def test_forget_erases_what_was_delivered_of_a_key_and_nothing_else(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="ann"), *numbered(3, key="bob"))
    broker = refusing(2)
    await run_relay(log, broker, max_attempts=1)
    await log.add(*numbered(4, key="ann"), Message("5", key="ann", type="test.number", deliver_in="1h"))
    assert await ops.preview_forget("ann") == KeyCount(delivered=1, undelivered=2, scheduled=1)
    assert (await ops.forget("ann", By("me", "she asked for it"))).changed == 1
    assert await states(ops, all=True) == {2: "dead", 3: "published", 4: "waiting"}
    assert await ops.preview_forget("ann") == KeyCount(delivered=0, undelivered=2, scheduled=1)


async def test_forget_leaves_the_errors_of_nothing_that_it_erased(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, key="ann"))
    broker = refusing(1)
    await run_relay(log, broker, max_attempts=1)
    await ops.drop(Filter(key="ann"), ME)
    assert (await ops.forget("ann", ME)).changed == 1
    assert list((await ops.messages(EVERYTHING)).messages) == []
    for table in ("outbox", "deferred", "attempts"):
        assert await query(log, f"select count(*) from {{{table}}}") == [(0,)], table


async def test_the_audit_keeps_what_was_done_to_a_forgotten_key_without_the_key(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, key="ann"), *numbered(2, key="bob"))
    await run_relay(log, Arrivals())
    await ops.hold("default", "ann", By("me", "ann moves to Rome"))
    await ops.hold("default", "bob", By("me", "bob waits"))
    await ops.forget("ann", By("me", "request 7"))
    forgot, bob, ann = await ops.audit()
    assert (forgot.command, forgot.changed, forgot.reason) == ("forget", 1, "request 7")
    assert "ann" not in f"{forgot.arguments} {ann.arguments} {ann.reason}"
    assert (ann.command, ann.who) == ("hold", "me")
    assert (bob.arguments["key"], bob.reason) == ("bob", "bob waits")


async def test_forget_walks_through_the_whole_log(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.stores.admin.cleanup.BATCH", 3)
    monkeypatch.setattr("postroad.stores.admin.cleanup.SCAN_BATCH", 4)
    await log.add(*(message for n in range(20) for message in numbered(n, key="ann" if n % 9 == 1 else "bob")))
    await run_relay(log, Arrivals())
    assert (await ops.preview_forget("ann")).delivered == 3
    assert (await ops.forget("ann", ME)).changed == 3
    assert (await ops.preview_forget("bob")).delivered == 17
