"""The audit says which role did what, and lines are only ever added to it."""

from __future__ import annotations

import json

import asyncpg
import pytest

from postroad.stores.admin import change
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from tests.security.neighbours import Neighbours, postroad

DEAD = """
    insert into postroad.sinks (sink) values ('default');
    insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot)
    values ('default', 0, 0, 1023, 0, pg_current_snapshot());
    select postroad.add('/shop', 'n', '{}') from generate_series(1, 5);
    insert into postroad.deferred (sink, lane, position, blocks, state)
    select 'default', 0, position, false, 'dead' from postroad.outbox;
    update postroad.lanes set position = 5, snapshot = pg_current_snapshot();
"""


async def test_the_role_is_noted_beside_the_name_that_was_given(neighbours: Neighbours) -> None:
    neighbours.execute("owner", DEAD)
    database = ("--database", neighbours.url("operator"))
    postroad("pause", "default", *database, "--reason", "a test", "--who", "the chief")
    (entry,) = json.loads(postroad("audit", *database, "--json"))
    assert (entry["who"], entry["role"]) == ("the chief", neighbours.name("operator"))
    listed = postroad("audit", *database)
    assert "role" in listed
    assert neighbours.name("operator")[:8] in listed


async def test_no_operator_can_change_what_it_did(neighbours: Neighbours) -> None:
    neighbours.execute("owner", DEAD)
    postroad("pause", "default", "--database", neighbours.url("operator"), "--reason", "a test")
    forged = "insert into postroad.audit (who, command, arguments, changed{}) values ('x', 'y', '{{}}', 1{})"
    refused = (
        "update postroad.audit set who = 'another'",
        "update postroad.audit set changed = 0",
        "delete from postroad.audit",
        "truncate postroad.audit",
        forged.format(", role", ", 'another'"),
        forged.format(", at", ", '2020-01-01'"),
    )
    for role in ("operator", "reader", "relay", "shop", "stranger"):
        for statement in refused:
            async with neighbours.connected(role) as connection:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
    async with neighbours.connected("operator") as connection:
        await connection.execute(forged.format("", ""))
        assert await connection.fetchval("select role from postroad.audit where who = 'x'") == neighbours.name(
            "operator"
        )


async def test_nothing_is_forgotten_in_the_audit_without_a_line_about_it(neighbours: Neighbours) -> None:
    neighbours.execute("owner", DEAD)
    postroad("key", "hold", "k", "--database", neighbours.url("operator"), "--reason", "a test", "--yes")
    written = (
        "insert into postroad.audit (who, command, arguments, changed) values ('x', 'forget', '{}', 0) returning number"
    )
    forget = "select postroad.forget_in_audit('k', $1)"
    async with neighbours.connected("operator") as connection:
        before = await connection.fetchval(written)
        for line in (before, 0, None):
            with pytest.raises(asyncpg.RaiseError, match="does not say that this transaction forgets something"):
                await connection.execute(forget, line)
        async with connection.transaction():
            await connection.execute(forget, await connection.fetchval(written))
        assert await connection.fetch("select from postroad.audit where arguments ->> 'key' = 'k'") == []
    for role in ("reader", "relay", "shop", "stranger"):
        async with neighbours.connected(role) as connection:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(forget, 1)


async def test_no_operator_can_change_the_count_of_another(neighbours: Neighbours) -> None:
    neighbours.execute("owner", DEAD)
    database = ("--database", neighbours.url("operator"))
    postroad("pause", "default", *database, "--reason", "a test")
    (entry,) = json.loads(postroad("audit", *database, "--json"))
    neighbours.execute("owner", f"""
        insert into postroad.audit (who, command, arguments, changed, continues)
        values ('x', 'pause', '{{}}', -1, {entry['number']})""")  # fmt: skip
    forged, after = json.loads(postroad("audit", *database, "--json"))
    assert (after["changed"], forged["changed"], forged["who"]) == (entry["changed"], -1, "x")


async def test_a_change_of_many_batches_is_one_entry(neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch adds a line; the entry counts them together."""
    monkeypatch.setattr(change, "BATCH", 2)
    neighbours.execute("owner", DEAD)
    async with Admin(PostgreSQLAdminDatabase(neighbours.url("operator"))) as operating:
        assert (await operating.drop(Filter(all=True), By("me", "a test"))).changed == 5
        (entry,) = await operating.audit()
    assert (entry.changed, entry.role) == (5, neighbours.name("operator"))
    assert neighbours.execute("owner", "select count(*) from postroad.audit").strip() == "3"
