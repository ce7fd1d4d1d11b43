"""A key's messages in order, on SQLite and two versions of PostgreSQL."""

from __future__ import annotations

import pytest

from postroad import InvalidSetting
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.answers import KeyWindow, Reason
from tests.contracts.test_admin import LATER, ME, id_of, ops, refusing, run_relay
from tests.logs import Log, log_fixture, numbered

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")


def shown(window: KeyWindow) -> list[tuple[int, str]]:
    return [(row.position, row.state.value) for row in window.messages]


async def test_published_head_held_and_waiting_in_order(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4, key="other"))
    await run_relay(log, refusing(2), retry=LATER)
    await log.add(*numbered(5, key="k"))
    window = await ops.key_window("default", "k")
    assert shown(window) == [(1, "published"), (2, "retrying"), (3, "held"), (5, "waiting")]
    assert (window.head, window.waiting, window.hold) == (await id_of(ops, 2), 2, None)
    explained = await ops.why_key("k", "default")
    assert explained is not None
    assert (window.answer.reason, window.looked_back_to) == (explained.answers[0].reason, None)
    await ops.hold("default", "k", ME)
    window = await ops.key_window("default", "k")
    assert window.hold is not None
    assert window.hold.who == "anna"


async def test_a_small_window_has_the_head_and_the_newest(
    log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.add(*numbered(*range(1, 10), key="k"))
    await run_relay(log, refusing(1), retry=LATER)
    assert [position for position, _ in shown(await ops.key_window("default", "k", 4))] == [1, 2, 8, 9]
    monkeypatch.setattr("postroad.stores.admin.inspect.SCAN_LIMIT", 2)
    window = await ops.key_window("default", "k", 20)
    assert len(window.messages) == 9, "what waits is found wherever it is"
    assert window.looked_back_to == 8


async def test_ordering_by_source_and_key(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="k"))
    await run_relay(log, refusing(1), retry=LATER, ordering="source-key")
    window = await ops.key_window("default", "k", 2)
    assert shown(window) == [(1, "retrying"), (2, "held")]
    assert window.head == await id_of(ops, 1)


async def test_a_key_without_messages_and_a_wrong_sink(log: Log, ops: Admin) -> None:
    await run_relay(log, refusing())
    window = await ops.key_window("default", "none")
    assert (shown(window), window.head, window.waiting) == ([], None, 0)
    assert window.answer.reason is Reason.NONE_WAITS
    with pytest.raises(InvalidSetting, match="there is no sink 'wrong'"):
        await ops.key_window("wrong", "k")
