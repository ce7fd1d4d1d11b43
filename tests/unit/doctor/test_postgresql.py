"""Judgements about a PostgreSQL server; tests/contracts/test_doctor.py has the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.admin import Level
from postroad.doctor.postgresql_roles import milliseconds
from tests.judging import judged

SERVER = {"version": "15.1", "number": 150001, "role": "relay", "database": "shop"}
FACTS = {
    "standby": False, "subscribed": False, "moved": False, "future": False, "complete": True, "sequence_cache": 1,
    "started": "today",
}  # fmt: skip


@pytest.mark.parametrize(
    ("server", "facts", "level", "says"),
    [
        ({}, {}, Level.OK, "PostgreSQL 15.1, a primary"),
        ({"number": 129999, "version": "12.9"}, {}, Level.ERROR, "this is PostgreSQL 12.9"),
        ({}, {"standby": True, "moved": True}, Level.ERROR, "a standby"),
        ({}, {"subscribed": True}, Level.ERROR, "logical replication"),
        ({}, {"complete": False}, Level.ERROR, "no primary key"),
        ({}, {"sequence_cache": 20}, Level.ERROR, "caches 20 values"),
        ({}, {"sequence_cache": None}, Level.OK, "a primary"),
        ({}, {"moved": True}, Level.WARNING, "came from another cluster"),
        ({}, {"future": True}, Level.WARNING, "came from another cluster"),
    ],
)
def test_the_server(server: dict[str, Any], facts: dict[str, Any], level: Level, says: str) -> None:
    (finding,) = judged("server", server=[SERVER | server], server_facts=[FACTS | facts])
    assert finding.level is level
    assert says in finding.text
    assert "started" not in finding.evidence


@pytest.mark.parametrize(
    ("found", "level"),
    [
        ({"pooled": False, "direct": False, "echo": True}, Level.OK),
        ({"pooled": False, "direct": False, "echo": False}, Level.WARNING),
        ({"pooled": True, "direct": False, "echo": False}, Level.WARNING),
        ({"pooled": True, "direct": True, "same_place": False, "direct_pooled": False, "echo": True}, Level.ERROR),
        ({"pooled": True, "direct": True, "same_place": True, "direct_pooled": True, "echo": False}, Level.WARNING),
        ({"pooled": True, "direct": True, "same_place": True, "direct_pooled": False, "echo": True}, Level.OK),
    ],
)
def test_listening(found: dict[str, Any], level: Level) -> None:
    (finding,) = judged("listen", listen=found)
    assert finding.level is level


@pytest.mark.parametrize(
    ("usage", "level"),
    [(0.0, Level.OK), (0.1, Level.OK), (0.11, Level.WARNING), (0.5, Level.WARNING), (0.51, Level.ERROR)],
)
def test_the_notification_queue(usage: float, level: Level) -> None:
    (finding,) = judged("notification-queue", notification_queue=[{"usage": usage}])
    assert finding.level is level


@pytest.mark.parametrize(
    ("enabled", "level"), [("O", Level.OK), ("A", Level.OK), ("R", Level.ERROR), ("D", Level.ERROR)]
)
def test_triggers_are_enabled_for_ordinary_sessions(enabled: str, level: Level) -> None:
    rows = [
        {"table": table, "name": name, "enabled": enabled if name == "wake_naps" else "O", "ours": True}
        for table, name in (
            ("outbox", "refuse_row"), ("outbox", "wake_naps"), ("scheduled", "refuse_row"),
            ("scheduled", "wake_scheduled"),
        )
    ]  # fmt: skip
    (finding,) = judged("triggers", triggers=rows)
    assert finding.level is level


def test_names_from_outside_are_quoted_in_fixes() -> None:
    evil = 'x"; drop table orders; --'
    row = {"table": "outbox", "name": evil, "valid": True, "definition": "", "enabled": "O", "ours": False}
    (finding,) = judged("log-indexes", indexes=[row])
    assert finding.fix == 'drop index concurrently postroad."x""; drop table orders; --"'
    gid = {"gid": "it's'); drop", "role": "r", "seconds": 1e6}
    (finding,) = judged("prepared-transactions", prepared_transactions=[gid])
    assert (finding.fix or "").startswith("rollback prepared 'it''s''); drop' --")
    (finding,) = judged("application-rights", payload_readers=[{"role": "a$(b)"}])
    assert "--grants 'application=a$(b)'" in str(finding.fix)
    assert 'from "a$(b)"' in str(finding.fix)


@pytest.mark.parametrize(
    ("age", "level"),
    [(999_999_999, Level.OK), (1_000_000_000, Level.WARNING), (1_600_000_000, Level.ERROR), (2**31, Level.ERROR)],
)
def test_the_age_of_transaction_ids(age: int, level: Level) -> None:
    (finding,) = judged("transaction-ids", transaction_ids=[{"age": age, "freeze_max_age": 200_000_000}])
    assert finding.level is level


@pytest.mark.parametrize(
    ("live", "dead", "level"),
    [(0, 10_000, Level.OK), (0, 10_001, Level.WARNING), (1_000_000, 100_000, Level.OK), (100, 20_000, Level.WARNING)],
)
def test_dead_rows(live: int, dead: int, level: Level) -> None:
    row = {"table": "lanes", "live": live, "dead": dead, "vacuumed_seconds": None}
    (finding,) = judged("dead-rows", dead_rows=[row])
    assert finding.level is level


def test_updates_that_are_not_hot_without_another_index() -> None:
    (finding,) = judged("hot-updates", hot_updates=[{"updates": 5000, "hot": 100}], indexes=[])
    assert (finding.level, "fillfactor = 10" in str(finding.fix)) == (Level.WARNING, True)
    (finding,) = judged("hot-updates", hot_updates=[], indexes=[])
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", 0), ("5000", 5000), ("5s", 5000), ("1.5h", 5_400_000), (" 2 min ", 120_000), ("100us", 0.1), ("?", 0)],
)
def test_a_setting_of_the_server_in_milliseconds(value: str, expected: float) -> None:
    assert milliseconds(value) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("statement_timeout", "0", Level.OK),
        ("statement_timeout", "60s", Level.OK),
        ("statement_timeout", "59s", Level.WARNING),
        ("idle_session_timeout", "1h", Level.OK),
        ("idle_session_timeout", "1min", Level.WARNING),
        ("transaction_timeout", "1s", Level.WARNING),
    ],
)
def test_timeouts(name: str, value: str, level: Level) -> None:
    row = {"role": "relay", "database": "shop", "name": name, "value": value}
    (finding,) = judged("timeouts", timeouts=[row])
    assert finding.level is level
    if level is Level.WARNING:
        assert finding.fix == f"alter role relay in database shop set {name} = 0"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({"used": 95}, ["the server has 95 of 97"]),
        ({"used_by_database": 1, "allowed_for_database": 5}, ["database shop has 1 of 5"]),
        ({"used_by_role": 3, "allowed_for_role": 0, "used": 97}, ["the server has 97", "role relay has 3 of 0"]),
    ],
)
def test_connections(changed: dict[str, int], says: list[str]) -> None:
    row = {
        "used": 10, "allowed": 97, "used_by_database": 10, "allowed_for_database": -1, "used_by_role": 3,
        "allowed_for_role": -1, "role": "relay", "database": "shop",
    }  # fmt: skip
    findings = judged("connections", connections=[row | changed])
    assert [each.text for each in findings if each.level is Level.WARNING] == [
        each.text for each, wanted in zip(findings, says, strict=False) if each.text.startswith(wanted)
    ]
    assert len(findings) == max(1, len(says))


@pytest.mark.parametrize(
    ("difference", "level"),
    [(0.0, Level.OK), (-2.5, Level.OK), (3.5, Level.WARNING), (-29.0, Level.WARNING), (40.0, Level.ERROR)],
)
def test_the_clock_as_far_as_it_is_known(difference: float, level: Level) -> None:
    clock = {"difference_seconds": difference, "uncertainty_seconds": 1.0}
    (finding,) = judged("clock", clock=clock)
    assert finding.level is level
