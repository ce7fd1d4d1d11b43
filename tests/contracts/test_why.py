"""The explainer on real databases: each answer in the situation that it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad import Cancellation, InvalidSetting, Message
from postroad.admin import Answer, Explanation, Filter, Reason, Rewind
from postroad.commands import command_of
from postroad.message import new_id
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from tests.contracts.test_admin import AT_ONCE, LATER, ME, admin_of, mend, refusing, run_relay
from tests.contracts.test_progress import query
from tests.lanes import identity
from tests.logs import OUTBOX, Arrivals, Log, PostgreSQLLog, log_fixture

log = log_fixture("sqlite", "postgresql15", "postgresql18")

ONCE = Backoff(max_attempts=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def ops(log: Log) -> AsyncIterator[Admin]:
    async with admin_of(log) as admin:
        yield admin


async def add(log: Log, *numbers: int, **fields: Any) -> list[UUID]:
    """Messages with these numbers as payloads; their ids."""
    ids, values = [new_id() for _ in numbers], {"type": "t", "key": "k"} | fields
    messages = [Message(str(number), id=id, **values) for number, id in zip(numbers, ids, strict=True)]
    await log.add(*messages)
    return ids


async def serve(log: Log, sink: str = "default", *, seconds: float = 60.0) -> None:
    """A relay owns all lanes of the sink; it does nothing else."""
    store = log.another_store()
    await store.open()
    who = identity(sink)
    await store.leases.create(sink, who.destination, lanes=2, start="oldest")
    await store.leases.heartbeat(who, seconds)
    await store.leases.take(who, 2, seconds)
    await store.close()


async def nothing_moves(log: Log) -> None:
    """As if the last minute had passed without progress."""
    await log.make_older(MINUTE)
    minute = "60000000" if "sqlite" in type(log).__name__.lower() else "interval '1 minute'"
    await query(log, f"update {{progress}} set at = at - {minute}")


def command(answer: Answer) -> str | None:
    return None if answer.remedy is None else command_of(answer.remedy)


async def why(ops: Admin, id: UUID) -> Answer:
    found = await ops.why(id)
    assert found.id == id
    (answer,) = found.answers
    return answer


# -- before any sink, and what stops a sink --------------------------------------------------------------------------


async def test_scheduled_and_overdue(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1, deliver_in="90m")
    answer = await why(ops, id)
    assert (answer.reason, answer.sink) == (Reason.SCHEDULED, None)
    assert "(in 1h" in answer.text
    await log.pass_time(timedelta(hours=2))
    answer = await why(ops, id)
    assert answer.reason is Reason.OVERDUE
    assert "m ago)" in answer.text


async def test_no_sink(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    found = await ops.why(id)
    assert (found.position, found.type, found.key) == (1, "t", "k")
    assert [answer.reason for answer in found.answers] == [Reason.NO_SINK]
    assert await ops.why_key("k") is None


async def test_paused(log: Log, ops: Admin) -> None:
    await serve(log)
    await ops.pause("default", ME)
    (id,) = await add(log, 1)
    answer = await why(ops, id)
    assert answer.reason is Reason.PAUSED
    assert "is paused, by anna since " in answer.text
    assert answer.text.endswith(": because")
    assert command(answer) == "postroad resume default"


async def test_no_owner(log: Log, ops: Admin) -> None:
    await run_relay(log, Arrivals())
    (id,) = await add(log, 1)
    answer = await why(ops, id)
    assert answer.reason is Reason.NO_OWNER
    assert answer.evidence["relays"] == 0
    assert command(answer) == "postroad relay --sink default"


async def test_lease_expired(log: Log, ops: Admin) -> None:
    await serve(log, seconds=-5.0)
    (id,) = await add(log, 1)
    answer = await why(ops, id)
    assert answer.reason is Reason.LEASE_EXPIRED
    assert "the relay on a.host, process 4711, stopped renewing" in answer.text
    assert answer.evidence["relays"] == 0


# -- not read --------------------------------------------------------------------------------------------------------


async def test_not_read(log: Log, ops: Admin) -> None:
    await add(log, 1, 2, 3)
    await run_relay(log, Arrivals())
    await serve(log)
    (id,) = await add(log, 4)
    answer = await why(ops, id)
    assert answer.reason is Reason.NOT_READ
    assert (answer.evidence["position"], answer.evidence["lane_position"], answer.evidence["gap"]) == (4, 3, 1)


async def test_stalled(log: Log, ops: Admin) -> None:
    await add(log, 1)
    await run_relay(log, Arrivals())
    await serve(log)
    (id,) = await add(log, 2)
    await nothing_moves(log)
    answer = await why(ops, id)
    assert answer.reason is Reason.STALLED
    assert answer.evidence["host"] == "a.host"
    assert "published nothing since " in answer.text


async def test_committed_late(log: Log, ops: Admin) -> None:
    if not isinstance(log, PostgreSQLLog):
        pytest.skip("SQLite has one writer: positions are in the order of commits")
    id = new_id()
    async with log.connected() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await OUTBOX.add(connection, "1", type="t", key="k", id=id)
        still_open = await why(ops, id)
        await add(log, 2)
        await run_relay(log, Arrivals())
        await transaction.commit()
    assert still_open.reason is Reason.UNKNOWN
    assert still_open.evidence["open_transactions"] >= 1
    assert "1 open transaction has written to the log" in still_open.text
    await serve(log)
    answer = await why(ops, id)
    assert answer.reason is Reason.COMMITTED_LATE
    assert (answer.evidence["position"], answer.evidence["lane_position"]) == (1, 2)
    broker = Arrivals()
    await query(log, "update {lanes} set owner = null, lease_until = null")
    await run_relay(log, broker)
    assert broker.numbers == [1], "and it is indeed read next"
    assert (await why(ops, id)).reason is Reason.PUBLISHED


# -- deferred --------------------------------------------------------------------------------------------------------


async def test_key_held_by_an_operator(log: Log, ops: Admin) -> None:
    await serve(log)
    await ops.hold("default", "k", ME)
    await query(log, "update {lanes} set owner = null")
    (id,) = await add(log, 1)
    await run_relay(log, Arrivals())
    await serve(log)
    answer = await why(ops, id)
    assert answer.reason is Reason.KEY_HELD
    assert command(answer) == "postroad key release k --sink default"
    assert answer.evidence["who"] == "anna"
    of_key = await ops.why_key("k")
    assert of_key is not None
    assert [each.reason for each in of_key.answers] == [Reason.KEY_HELD]
    assert str(id) in of_key.answers[0].text


async def test_retrying_and_behind_it(log: Log, ops: Admin) -> None:
    head, behind = await add(log, 1, 2)
    await run_relay(log, refusing(1), retry=LATER)
    await serve(log)
    answer = await why(ops, head)
    assert answer.reason is Reason.RETRYING
    assert answer.text.startswith("after 1 failed attempt, it is tried again at ")
    assert answer.text.endswith(": no 1")
    answer = await why(ops, behind)
    assert (answer.reason, answer.evidence["head"]) == (Reason.BEHIND, head)
    assert answer.because is not None
    assert answer.because.reason is Reason.RETRYING
    found = await ops.why_key("k")
    assert found is not None
    (of_key,) = found.answers
    assert (of_key.reason, of_key.evidence["message"], of_key.evidence["waiting"]) == (Reason.RETRYING, head, 2)


async def test_behind_another_message_of_its_source(log: Log, ops: Admin) -> None:
    """With ordering = "source-key" the ordering key is another text than the key."""
    head, behind = await add(log, 1, 2)
    await run_relay(log, refusing(1), retry=LATER, ordering="source-key")
    await serve(log)
    assert (await why(ops, behind)).evidence["head"] == head
    found = await ops.why_key("k")
    assert found is not None
    assert [(each.reason, each.evidence["message"]) for each in found.answers] == [(Reason.RETRYING, head)]


async def test_behind_a_dead_message(log: Log, ops: Admin) -> None:
    head, behind = await add(log, 1, 2)
    await run_relay(log, refusing(1), retry=ONCE, on_dead="hold")
    await serve(log)
    answer = await why(ops, behind)
    assert (answer.reason, command(answer)) == (Reason.BEHIND, f"postroad dead retry {head} --sink default")
    assert answer.because is not None
    assert answer.because.reason is Reason.DEAD


async def test_route_blocked(log: Log, ops: Admin) -> None:
    first, second = *await add(log, 1, key="a", topic="lost"), *await add(log, 2, key="b", topic="lost")
    (other,) = await add(log, 3)
    broker = Arrivals()
    broker.unbind("lost")
    await run_relay(log, broker)
    await serve(log)
    for id in (first, second):
        answer = await why(ops, id)
        assert answer.reason is Reason.ROUTE_BLOCKED
        assert answer.evidence["route"] == "lost"
        assert answer.text.startswith("route 'lost' has been blocked since ")
    assert (await why(ops, other)).reason is Reason.PUBLISHED


async def test_next_and_due_but_stalled(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    await run_relay(log, refusing(1), retry=LATER)
    await serve(log)
    await query(log, "update {progress set at = at")
    await log.pass_time(timedelta(hours=1, seconds=1))
    assert (await why(ops, id)).reason is Reason.NEXT
    await log.pass_time(MINUTE)
    await nothing_moves(log)
    answer = await why(ops, id)
    assert answer.reason is Reason.STALLED
    assert answer.evidence["error"] == "no 1"


async def test_being_sent(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    await run_relay(log, refusing(1), retry=LATER)
    await serve(log)
    await query(log, "update {deferred} set state = 'sending', due_at = null, epoch = 1")
    assert (await why(ops, id)).reason is Reason.SENDING


# -- decided ---------------------------------------------------------------------------------------------------------


async def test_dead_then_dropped(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    await run_relay(log, refusing(1), retry=ONCE)
    answer = await why(ops, id)
    assert (answer.reason, command(answer)) == (Reason.DEAD, f"postroad dead retry {id} --sink default")
    assert answer.text.endswith("after 1 attempt: no 1")
    await ops.drop(Filter(type="t", error="NO"), ME)
    answer = await why(ops, id)
    assert answer.reason is Reason.DROPPED
    assert answer.text.startswith("anna dropped it at ")


async def test_poisoned_and_skipped(log: Log, ops: Admin) -> None:
    await run_relay(log, Arrivals())
    poisoned, skipped = *await add(log, 1), *await add(log, 2)
    await ops.poison(Filter(ids=[poisoned]), ME)
    await ops.skip(Filter(ids=[skipped]), ME)
    answer = await why(ops, poisoned)
    assert (answer.reason, answer.evidence["who"]) == (Reason.DEAD, "anna")
    answer = await why(ops, skipped)
    assert answer.reason is Reason.SKIPPED
    assert answer.text.startswith("anna skipped it at ")
    assert answer.text.endswith(": because")


async def test_unroutable(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1, topic="lost")
    broker = Arrivals()
    broker.unbind("lost")
    await run_relay(log, broker, unroutable="drop")
    answer = await why(ops, id)
    assert answer.reason is Reason.UNROUTABLE
    assert "because no consumer had subscribed to 'lost'" in answer.text


async def test_canceled(log: Log, ops: Admin) -> None:
    refused, later = *await add(log, 1), *await add(log, 2, deliver_in="1h")
    await run_relay(log, refusing(1), retry=LATER)
    await query(log, "update {deferred} set unsure = false")
    assert await log.cancel(refused, later) == [Cancellation.CANCELED] * 2
    answer = await why(ops, refused)
    assert answer.reason is Reason.CANCELED
    answer = await why(ops, later)
    if isinstance(log, PostgreSQLLog):  # which notes it in the audit
        assert answer.reason is Reason.CANCELED
        assert answer.text.endswith(", before it was due")
    else:
        assert answer.reason is Reason.UNKNOWN


async def test_published_and_published_again(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    broker = Arrivals()
    await run_relay(log, broker)
    answer = await why(ops, id)
    assert answer.reason is Reason.PUBLISHED
    assert answer.evidence["after"] <= answer.evidence["before"]
    assert "(0s ago)" in answer.text or "ago)" in answer.text
    await ops.rewind(Rewind(sink="default", to=1), ME)
    await serve(log)
    answer = await why(ops, id)
    assert answer.reason is Reason.NEXT
    assert "because of a rewind" in answer.text


async def test_published_after_it_was_refused(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    mend(broker)
    await log.pass_time(timedelta(hours=2))
    await run_relay(log, broker, retry=AT_ONCE)
    answer = await why(ops, id)
    assert answer.reason is Reason.PUBLISHED
    assert "before" in answer.evidence


async def test_each_sink_has_its_own_answer(log: Log, ops: Admin) -> None:
    (id,) = await add(log, 1)
    await run_relay(log, Arrivals())
    await run_relay(log, refusing(1), sink="other", retry=ONCE)
    found = await ops.why(id)
    assert {answer.sink: answer.reason for answer in found.answers} == {
        "default": Reason.PUBLISHED,
        "other": Reason.DEAD,
    }
    (answer,) = (await ops.why(id, "other")).answers
    assert answer.reason is Reason.DEAD
    with pytest.raises(InvalidSetting, match="there is no sink 'othr'; did you mean 'other'?"):
        await ops.why(id, "othr")
    with pytest.raises(InvalidSetting, match="there is no sink 'othr'; did you mean 'other'?"):
        await ops.why_key("k", "othr")


# -- unknown ids and keys --------------------------------------------------------------------------------------------


async def test_unknown_and_expired(log: Log, ops: Admin) -> None:
    gone = UUID(int=new_id().int - (3600 * 1000 << 80))  # made an hour ago
    await log.add(Message("1", type="t", id=gone))
    await run_relay(log, Arrivals())
    await ops.cleanup(timedelta(0), ME)
    answer = await why(ops, gone)
    assert answer.reason is Reason.UNKNOWN
    assert "the log is empty: retention has deleted it, or" in answer.text
    await add(log, 2)
    answer = await why(ops, gone)
    assert answer.reason is Reason.EXPIRED
    rolled_back = new_id()
    await log.add_and_roll_back(Message("3", type="t", id=rolled_back))
    answer = await why(ops, rolled_back)
    assert answer.reason is Reason.UNKNOWN
    assert answer.evidence["made_at"] is not None
    for odd in (UUID(int=0), UUID(int=2**128 - 1), UUID("ffffffff-ffff-7fff-8fff-ffffffffffff")):
        assert (await why(ops, odd)).reason is Reason.UNKNOWN


async def test_a_key_that_waits_in_the_log_or_not_at_all(log: Log, ops: Admin) -> None:
    (old,) = await add(log, 1)
    await run_relay(log, Arrivals())

    async def of_key(key: str) -> Answer:
        found = await ops.why_key(key)
        assert found is not None
        (answer,) = found.answers
        return answer

    answer = await of_key("k")
    assert answer.reason is Reason.NONE_WAITS
    assert f"its newest, {old}: it was published" in answer.text
    assert "none is among the newest" in (await of_key("other")).text
    first, *_ = await add(log, 2, 3)
    answer = await of_key("k")
    assert (answer.reason, answer.evidence["message"]) == (Reason.NO_OWNER, first)
    await ops.hold("default", "other", ME)
    answer = await of_key("other")
    assert answer.reason is Reason.KEY_HELD
    assert "none of its messages waits yet" in answer.text


async def test_all_look_ups_are_of_one_moment(log: Log, ops: Admin) -> None:
    """A message that is published while it is explained is never neither here nor there."""
    (id,) = await add(log, 1)
    await run_relay(log, refusing(1), retry=LATER)
    async with ops._database.snapshot() as ask:
        assert await ask("why_deferred", 1)
        await query(log, "delete from {deferred}")
        assert await ask("why_deferred", 1), "as at the first look-up"
    found: Explanation = await ops.why(id)
    assert [answer.reason for answer in found.answers] == [Reason.PUBLISHED]
