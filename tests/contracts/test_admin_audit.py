"""Searching the audit, and looking at payloads, on SQLite and two versions of PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad.brokers.memory import MemoryBroker
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import AuditFilter, By, Filter
from tests.contracts.test_admin import ME, id_of, ops, refusing, run_relay
from tests.logs import Log, log_fixture, numbered

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")


async def numbers(ops: Admin, limit: int = 100, **which: object) -> list[int]:
    return [line.number for line in await ops.audit(limit, which=AuditFilter(**which))]  # type: ignore[arg-type]


async def test_lines_are_found_by_every_field(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await run_relay(log, MemoryBroker())
    for who, key, reason in (("anna", "Kunde-1", "slow"), ("bert", "k2", None), ("anna", "k3", "Too Fast")):
        await ops.hold("default", key, By(who, reason))
    await ops.pause("default", By("bert"))
    one, two, three, four = sorted(await numbers(ops))
    assert await numbers(ops, who="anna") == [three, one]
    assert await numbers(ops, command="pause") == [four]
    assert await numbers(ops, text="too fast") == [three]
    assert await numbers(ops, text="KUNDE") == [one]
    assert await numbers(ops, text="bert") == [four, two]
    assert await numbers(ops, who="ann") == []
    assert await numbers(ops, 2) == [four, three]
    assert await numbers(ops, 2, below=three) == [two, one]
    assert await numbers(ops, below=three, who="anna", command="hold") == [one]
    lines = await ops.audit(100)  # in SQLite two of them may have the same millisecond
    for at in {line.at for line in lines}:
        assert await numbers(ops, since=at) == [line.number for line in lines if line.at >= at]
        assert await numbers(ops, before=at) == [line.number for line in lines if line.at < at]
    assert await numbers(ops, since=lines[0].at + timedelta(seconds=1)) == []
    monkeypatch.setattr("postroad.stores.admin.inspect.AUDIT_SEARCHED", 2)
    assert await numbers(ops, who="anna") == [three], "the search is bounded"
    assert await numbers(ops, who="anna", below=three) == [one], "and goes on below"


async def test_looking_at_a_payload_is_a_line(log: Log, ops: Admin) -> None:
    id = new_id()
    await ops.record_view(id, By("carla", "a customer asked"))
    await ops.record_view("shop 7", By("carla"), consumer="mailer")
    letter, message = await ops.audit()
    assert (message.command, message.who, message.reason) == ("view_payload", "carla", "a customer asked")
    assert (message.arguments, message.changed) == ({"id": str(id)}, 0)
    assert letter.arguments == {"id": "shop 7", "consumer": "mailer"}


async def test_why_a_message_of_a_group_was_dropped(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1))
    await run_relay(log, refusing(1), retry=Backoff(max_attempts=1))
    id = await id_of(ops, 1)
    await ops.drop(Filter(state=State.DEAD, error_pattern="no <n>"), ME)
    await ops.drop(Filter(error_pattern="something else"), By("bert"))
    await ops.record_view(id, By("carla"))
    (answer,) = (await ops.why(id)).answers
    assert answer.evidence["who"] == "anna"
