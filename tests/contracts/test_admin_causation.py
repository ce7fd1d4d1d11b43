"""The neighbourhood of a message, on SQLite and two versions of PostgreSQL: outbox, inbox, outbox."""

from __future__ import annotations

from typing import Any

import pytest

from postroad import Message
from postroad.message import new_id
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.causation import join
from tests.contracts.test_admin import id_of, ops, run_relay
from tests.logs import Arrivals, Log, PostgreSQLLog, SQLiteLog, log_fixture

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")


def message(number: int, **more: Any) -> Message:
    return Message(b"1", topic="t", type=f"type.{number}", **more)


async def execute(log: Log, statement: str) -> None:
    """A statement with the tables' names as `{postroad}name`."""
    if isinstance(log, SQLiteLog):
        log.execute(statement.replace("{postroad}", "postroad_").replace("{now}", NOW_SQLITE))
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute(statement.replace("{postroad}", "postroad.").replace("{now}", "clock_timestamp()"))


NOW_SQLITE = "(cast((julianday('now') - 2440587.5) * 86400000000 as integer))"


async def process(log: Log, consumer: str, identity: str) -> None:
    await execute(
        log, f"insert into {{postroad}}inbox (consumer, id, type) values ('{consumer}', '{identity}', 'type.1')"
    )


async def bury(log: Log, consumer: str, identity: str) -> None:
    await execute(
        log,
        "insert into {postroad}inbox_attempts (consumer, id, type, attempts, error, dead_at) "
        f"values ('{consumer}', '{identity}', 'type.1', 3, 'no', {{now}})",
    )


async def test_cause_caused_and_handled(log: Log, ops: Admin) -> None:
    cause = new_id()
    await log.add(message(1, causation_id=str(cause)))
    await run_relay(log, Arrivals())
    id = await id_of(ops, 1)
    await log.add(message(2, causation_id=str(id)), message(3))
    found = await ops.causation(id)
    assert found.message is not None
    assert (found.id, found.message.type, found.cause) == (str(id), "type.1", str(cause))
    assert [each.type for each in found.caused] == ["type.2"]
    assert (list(found.handled), found.searched_all) == ([], True)
    assert found.identity is not None
    assert found.identity.endswith(str(id))
    await process(log, "mailer", found.identity)
    await process(log, "mailer", "other 1")
    await process(log, "zoo", found.identity)
    await bury(log, "auditor", found.identity)
    await bury(log, "auditor", "other 1")
    handled = (await ops.causation(id)).handled
    assert [(each.consumer, each.outcome, each.error) for each in handled] == [
        ("auditor", "dead", "no"), ("mailer", "processed", None), ("zoo", "processed", None),
    ]  # fmt: skip
    assert {each.identity for each in handled} == {found.identity}


async def test_a_message_of_another_database(log: Log, ops: Admin) -> None:
    foreign = new_id()
    nothing = await ops.causation(foreign)
    assert (nothing.message, list(nothing.caused), list(nothing.handled)) == (None, [], [])
    assert nothing.identity is None
    await log.add(message(0))
    await process(log, "mailer", f"/shop {foreign}")
    await bury(log, "auditor", f"/shop {foreign}")
    await log.add(message(1, causation_id=str(foreign)))
    for identity in (f"/shop {foreign}", None):
        found = await ops.causation(foreign, identity=identity)
        assert [(each.consumer, each.outcome) for each in found.handled] == [
            ("auditor", "dead"), ("mailer", "processed"),
        ]  # fmt: skip
        assert [each.type for each in found.caused] == ["type.1"]
        assert (found.identity, found.message) == (f"/shop {foreign}", None)
    assert list((await ops.causation(foreign, identity=f"/other {foreign}")).handled) == []
    graph = join([("here", await ops.causation(foreign))])
    assert sorted(node.kind for node in graph.nodes) == ["handled", "handled", "message", "message"]


async def test_bounds(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.stores.admin.caused.SCAN_LIMIT", 2)
    monkeypatch.setattr("postroad.stores.admin.caused.RECENT", 1)
    foreign = new_id()
    await process(log, "mailer", f"/shop {foreign}")
    await process(log, "mailer", "later 1")
    await execute(log, "update {postroad}inbox set processed_at = {now} where id = 'later 1'")
    assert list((await ops.causation(foreign)).handled) == [], "without its source, only the newest are searched"
    assert len((await ops.causation(foreign, identity=f"/shop {foreign}")).handled) == 1
    await log.add(message(1), message(2), message(3), message(4))
    assert (await ops.causation(foreign)).searched_all is False
