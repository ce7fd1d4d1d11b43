"""Every change of the console, through its forms and without scripts: previewed, confirmed, audited, undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from postroad import Message
from postroad.admin import Admin, By, Filter, State
from postroad.console import Role
from postroad.console.changes import CHANGES
from postroad.retry import Backoff
from postroad.wording import count
from tests.consoles import Browser, browsing, url_of
from tests.contracts.test_admin import (
    LATER,
    admin_of,
    at,
    id_of,
    mend,
    refusing,
    run_relay,
    running,
    states,
    until,
)
from tests.logs import Arrivals, Log, log_fixture, numbered

log = log_fixture("sqlite", "postgresql15", "postgresql18")
ONCE = Backoff(max_attempts=1)


@pytest.fixture
async def admin(log: Log) -> AsyncIterator[Admin]:
    async with admin_of(log) as admin:
        yield admin


@pytest.fixture
async def browser(log: Log) -> AsyncIterator[Browser]:
    async with browsing(url_of(log)) as browser:
        yield browser


async def last(admin: Admin) -> tuple[str, str | None, str, int]:
    """The last line of the audit."""
    entry = (await admin.audit(1))[0]
    return entry.who, entry.reason, entry.command, entry.changed


async def dead(log: Log, *numbers: int) -> None:
    await log.add(*numbered(*range(1, 5)))
    await run_relay(log, refusing(*numbers), retry=ONCE)


async def test_dead_messages_are_retried_in_groups(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1, 2)
    trouble = await browser.get("trouble")
    assert "no <n>" in trouble.text
    preview = await browser.follow(trouble.links["Retry the dead ones"])
    assert "2 dead messages would be retried" in preview.text
    assert "postroad dead retry --error-pattern 'no <n>' --sink default" in preview.text
    done = await browser.send(preview.form("/do/retry"), reason="mended")
    assert "Done: 2 dead messages will be retried." in done.text
    assert await last(admin) == ("anna", "mended", "retry", 2)
    assert State.DEAD not in (await states(admin, all=True)).values()


async def test_a_drop_is_undone(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1)
    id = str(await id_of(admin, 1))
    done = await browser.change("drop", id=id)
    assert (await at(admin, 1)).state is State.DROPPED
    assert await last(admin) == ("anna", "because", "drop", 1)
    undo = await browser.follow(done.links["Undo: restore them"])
    assert "1 dropped message would be dead again" in undo.text
    await browser.send(undo.form("/do/restore"))
    assert (await at(admin, 1)).state is State.DEAD


async def test_a_message_is_poisoned_and_retried(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1))
    await run_relay(log, refusing(1), retry=LATER)
    id = str(await id_of(admin, 1))
    done = await browser.change("poison", id=id, reason="it is wrong")
    assert (await at(admin, 1)).state is State.DEAD
    assert await last(admin) == ("anna", "it is wrong", "poison", 1)
    undo = await browser.follow(done.links["Undo: retry it"])
    await browser.send(undo.form("/do/retry"))
    assert (await at(admin, 1)).state is State.RETRYING


async def test_a_message_is_skipped(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1)
    page = await browser.get(f"message/{await id_of(admin, 1)}")
    preview = await browser.follow(page.links["Skip"])
    assert "This can't be undone" in preview.text
    done = await browser.send(preview.form("/do/skip"), reason="sent by hand")
    assert "Undo" not in done.text
    assert (await at(admin, 1)).state is State.SKIPPED
    assert await last(admin) == ("anna", "sent by hand", "skip", 1)


async def test_a_key_is_held_released_and_skipped(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1, 2, key="k"))
    await run_relay(log, refusing(1), retry=LATER)
    page = await browser.get("key", key="k")
    done = await browser.send((await browser.follow(page.links["Hold"])).form("/do/hold"), reason="looking")
    assert [held.key for held in await admin.held_keys()] == ["k"]
    assert await last(admin) == ("anna", "looking", "hold", 1)
    assert "Held at sink default by anna" in (await browser.get("key", key="k")).text
    undo = await browser.follow(done.links["Undo: release it"])
    await browser.send(undo.form("/do/release"))
    assert await admin.held_keys() == []
    assert "skipped 2 messages of key 'k'" in (await browser.change("skip-key", key="k")).text
    assert set((await states(admin, all=True)).values()) == {"skipped"}


async def test_a_sink_is_paused_and_resumed(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1))
    await run_relay(log, Arrivals())
    done = await browser.change("pause", sink="default", reason="the broker is upgraded")
    assert (await admin.sink("default")).paused
    assert "is paused already" in (await browser.get("do/pause", sink="default")).text
    assert (
        "paused, by anna" in (await browser.get("")).text.lower() or "Paused, by anna" in (await browser.get("")).text
    )
    undo = await browser.follow(done.links["Undo: resume it"])
    await browser.send(undo.form("/do/resume"))
    assert not (await admin.sink("default")).paused
    assert await last(admin) == ("anna", None, "resume", 2)


async def test_a_sink_is_rewound_cleaned_up_and_removed(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1, 2, 3))
    await run_relay(log, Arrivals())
    found = await browser.get("time-machine", sink="default", to="2020-01-01T00:00")
    assert "3 messages since" in found.text
    preview = await browser.get("do/rewind", sink="default", to="2020-01-01T00:00", key="k2")
    assert "1 message would be published again" in preview.text
    await browser.send(preview.form("/do/rewind"), reason="lost there")
    assert (await last(admin))[:3] == ("anna", "lost there", "rewind")
    again = Arrivals()
    await run_relay(log, again)
    assert [message.payload for message in again.messages] == [b"2"]
    assert "deleted 3 messages" in (await browser.change("cleanup", older_than="0s")).text
    await browser.change("remove-sink", sink="default")
    assert await admin.sinks() == []
    assert (await last(admin))[2] == "sink remove"


async def test_a_count_that_has_grown_is_asked_again(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1)
    preview = await browser.get("do/drop", all="1")
    assert "1 dead message would be dropped" in preview.text
    await log.add(*numbered(5, 6))
    await run_relay(log, refusing(5, 6), retry=ONCE)
    refused = await browser.send(preview.form("/do/drop"), reason="not needed")
    assert refused.status == 409
    assert "Nothing was changed: there are more than the 1 that you confirmed" in refused.text
    assert "3 dead messages would be dropped" in refused.text
    assert await admin.audit() == []
    confirmed = await browser.send(refused.form("/do/drop"))  # which has kept the reason
    assert "dropped 3 dead messages" in confirmed.text
    assert (await last(admin))[1] == "not needed"


async def test_a_change_that_another_was_faster_with(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1)
    preview = await browser.get("do/drop", all="1")
    await admin.drop(Filter(all=True), By("ben"))
    late = await browser.send(preview.form("/do/drop"), reason="not needed")
    assert late.status == 409
    assert "no dead message matches any more" in late.text


async def test_a_reason_is_required_and_a_number_too(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1)
    preview = await browser.get("do/drop", all="1")
    refused = await browser.send(preview.form("/do/drop"), reason="  ")
    assert (refused.status, await admin.audit()) == (400, [])
    assert "A reason is required" in refused.text
    for wrong in ("", "x", "-1", "1" * 30):
        page = await browser.send(preview.form("/do/drop"), reason="r", expected=wrong)
        assert page.status == 400
    assert "1,001 characters" in (await browser.send(preview.form("/do/drop"), reason="x" * 1001)).text


@pytest.mark.parametrize("name", sorted(CHANGES))
async def test_a_change_without_what_it_needs_says_so(browser: Browser, name: str) -> None:
    page = await browser.get(f"do/{name}")
    assert page.status == 400
    assert any(word in page.text for word in ("is missing", "selected")), page.text
    nul = await browser.get(f"do/{name}", key="\0", sink="\0")
    assert (nul.status, "NUL" in nul.text) == (400, True)


async def test_a_result_can_not_be_made_up(browser: Browser) -> None:
    assert (await browser.get("done", r="AAAA")).status == 404
    assert (await browser.get("done")).status == 404


async def test_an_operator_is_not_offered_what_has_no_way_back(log: Log, admin: Admin) -> None:
    await dead(log, 1)
    async with browsing(url_of(log), role=Role.OPERATOR) as browser:
        page = await browser.get(f"message/{await id_of(admin, 1)}")
        assert {"Retry", "Drop"} <= set(page.links)
        assert "Skip" not in page.links
        assert (await browser.get("do/skip", id=str(await id_of(admin, 1)))).status == 403


async def test_a_running_relay_takes_up_what_was_changed(log: Log, admin: Admin, browser: Browser) -> None:
    broker: Any = refusing(1)
    await log.add(*numbered(1))
    async with running(log, broker, retry=ONCE):
        await until(admin, 1, State.DEAD)
        mend(broker)
        await browser.change("retry", id=str(await id_of(admin, 1)))
        await until(admin, 1, State.PUBLISHED)


async def test_an_undo_is_of_what_was_changed_and_not_of_what_matched_before(
    log: Log, admin: Admin, browser: Browser
) -> None:
    await dead(log, 1, 2, 3)
    await admin.drop(Filter(ids=[await id_of(admin, 1)]), By("ben"))
    dropped = await browser.change("drop", error_pattern="no <n>")
    undo = await browser.follow(dropped.links["Undo: restore them"])
    assert "2 dropped messages would be dead again" in undo.text
    restored = await browser.send(undo.form("/do/restore"))
    assert await states(admin, all=True) == {1: "dropped", 2: "dead", 3: "dead", 4: "published"}
    await admin.restore(Filter(ids=[await id_of(admin, 1)]), By("ben"))
    again = await browser.follow(restored.links["Undo: drop them again"])
    assert "2 dead messages would be dropped" in again.text
    await admin.drop(Filter(ids=[await id_of(admin, 2)]), By("ben"))
    late = await browser.send(again.form("/do/drop"), reason="not needed")
    assert "dropped 1 dead message." in late.text, "one that was changed meanwhile is left out"


async def test_an_undo_of_more_than_can_be_named_is_offered_if_nothing_else_matches(
    log: Log, admin: Admin, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.console.changes.messages.MOST_NAMED", 1)
    await dead(log, 1, 2, 3, 4)
    dropped = await browser.change("drop", error="no ")
    undo = await browser.follow(dropped.links["Undo: restore them"])
    assert "4 dropped messages would be dead again" in undo.text
    await admin.restore(Filter(ids=[await id_of(admin, 1), await id_of(admin, 2)]), By("ben"))
    again = await browser.change("drop", error="no ")
    assert "dropped 2 dead messages" in again.text
    assert "Undo" not in again.text


async def test_a_retry_of_several_is_undone(log: Log, admin: Admin, browser: Browser) -> None:
    await dead(log, 1, 2)
    retried = await browser.change("retry", error_pattern="no <n>")
    undo = await browser.follow(retried.links["Undo: poison them"])
    assert "2 messages would be dead" in undo.text
    await run_relay(log, refusing(2), retry=LATER)
    undo = await browser.follow(retried.links["Undo: poison them"])
    assert "1 message would be dead" in undo.text, "the other one was published"
    poisoned = await browser.send(undo.form("/do/poison"), reason="too early")
    assert "Done: dead now: 1 message" in poisoned.text
    assert await states(admin, all=True) == {1: "published", 2: "dead", 3: "published", 4: "published"}
    await browser.send((await browser.follow(poisoned.links["Undo: retry them"])).form("/do/retry"))
    assert (await at(admin, 2)).state is State.RETRYING
    await run_relay(log, Arrivals())
    assert (await browser.follow(retried.links["Undo: poison them"])).status == 404


# -- more than a preview counts ----------------------------------------------------------------------------------------


@pytest.fixture
async def many_dead(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven dead messages of one error, of which four have one type, and an eighth; previews read the first three."""
    monkeypatch.setattr("postroad.stores.admin.inspect.SCAN_LIMIT", 3)
    monkeypatch.setattr("postroad.stores.admin.inspect.SAMPLE", 3)
    kinds = ["order", "order", "order", "note", "order", "note", "note"]
    for number, kind in enumerate(kinds, 1):
        await log.add(Message(str(number), type=kind, key=f"k{number}"))
    await log.add(Message("8", type="order", key="k8"))
    broker = Arrivals()
    broker.refuse(lambda message: "unlike the others" if message.payload == b"8" else f"no {int(message.payload)}")
    await run_relay(log, broker, retry=ONCE)


@pytest.mark.parametrize(
    ("query", "would", "made"),
    [
        ({"error_pattern": "no <n>"}, "At least 3 dead messages would be dropped", 7),
        ({"type": "order"}, "About 3 dead messages would be dropped", 5),
        ({"error_pattern": "unlike the others"}, "An unknown number of dead messages would be dropped", 1),
        ({"type": "order", "key": "k8"}, "1 dead message would be dropped", 1),
    ],
)
async def test_all_that_match_are_changed_if_there_were_too_many_to_count(
    many_dead: None, browser: Browser, query: dict[str, str], would: str, made: int
) -> None:
    preview = await browser.get("do/drop", **query)
    assert would in preview.text
    assert ("They were not all counted" in preview.text) == ("1 dead" not in would)
    done = await browser.send(preview.form("/do/drop"), reason="not needed")
    assert f"dropped {count(made, 'dead message')}." in done.text
    undo = await browser.follow(done.links["Undo: restore them"])
    assert "would be dead again" in undo.text
    assert f"restored {count(made, 'dropped message')};" in (await browser.send(undo.form("/do/restore"))).text


async def test_an_exact_number_is_refused_when_there_are_too_many_to_count(
    log: Log, admin: Admin, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(log, 1)
    preview = await browser.get("do/drop", error_pattern="no <n>")
    monkeypatch.setattr("postroad.stores.admin.inspect.SCAN_LIMIT", 2)
    await log.add(*numbered(5, 6))
    await run_relay(log, refusing(5, 6), retry=ONCE)
    refused = await browser.send(preview.form("/do/drop"), reason="not needed")
    assert refused.status == 409
    assert "there are more than the 1 that you confirmed" in refused.text
    assert "At least 2 dead messages would be dropped" in refused.text
    assert await admin.audit() == []
    assert "dropped 3 dead messages" in (await browser.send(refused.form("/do/drop"))).text


# -- what grows by itself ----------------------------------------------------------------------------------------------


async def test_a_rewind_is_of_the_messages_that_were_there(log: Log, browser: Browser) -> None:
    await log.add(*numbered(1, 2))
    await run_relay(log, Arrivals())
    preview = await browser.get("do/rewind", to="1")
    assert "2 messages would be published again" in preview.text
    await log.add(*numbered(3))
    await run_relay(log, Arrivals())
    asked = await browser.send(preview.form("/do/rewind"))
    assert "A reason is required" in asked.text
    assert "2 messages would be published again" in asked.text
    done = await browser.send(asked.form("/do/rewind"), reason="lost there")
    assert "Done: 2 messages will be published again." in done.text
    again = Arrivals()
    await run_relay(log, again)
    assert sorted(message.payload for message in again.messages) == [b"1", b"2"]


async def test_a_rewind_of_more_than_is_counted(log: Log, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.stores.admin.rewind.SAMPLE", 2)
    await log.add(*(Message(str(number), type="note" if number < 3 else "order") for number in range(1, 6)))
    await run_relay(log, Arrivals())
    found = await browser.get("time-machine", sink="default", to="2020-01-01T00:00", type="order")
    assert "An unknown number of messages since" in found.text
    preview = await browser.follow(found.links["Rewind…"])
    assert "An unknown number of messages would be published again" in preview.text
    done = await browser.send(preview.form("/do/rewind"), reason="lost there")
    assert "Done: 3 messages will be published again." in done.text


async def test_a_cleanup_is_of_the_messages_that_were_old(log: Log, browser: Browser) -> None:
    await log.add(*numbered(1, 2))
    await run_relay(log, Arrivals())
    await log.make_older(timedelta(days=1))
    began = datetime.now(UTC)
    preview = await browser.get("do/cleanup", older_than="0s")
    assert "2 messages older than 0 would be deleted" in preview.text
    await log.add(*numbered(3))
    await run_relay(log, Arrivals())
    form = preview.form("/do/cleanup")
    parts = urlsplit(form.action)
    query = dict(parse_qsl(parts.query))
    assert began <= datetime.fromisoformat(query["before"]) <= datetime.now(UTC)
    query["before"] = (began - timedelta(hours=1)).isoformat()  # as if it had been shown then, which no clock decides
    form.action = f"{parts.path}?{urlencode(query)}"
    done = await browser.send(form, reason="the disk is full")
    assert "deleted 2 messages" in done.text


async def test_a_key_is_held_and_a_sink_removed_while_messages_come(log: Log, admin: Admin, browser: Browser) -> None:
    await run_relay(log, Arrivals())
    hold = await browser.get("do/hold", key="k")
    remove = await browser.get("do/remove-sink", sink="default")
    assert "0 undelivered messages will never be delivered there" in remove.text
    await log.add(*numbered(1, 2, key="k"))
    assert "is held at sink" in (await browser.send(hold.form("/do/hold"), reason="looking")).text
    assert "removed sink" in (await browser.send(remove.form("/do/remove-sink"), reason="forgotten")).text
    assert await admin.sinks() == []


async def test_a_bound_must_be_one(log: Log, browser: Browser) -> None:
    await run_relay(log, Arrivals())
    refused = await browser.get("do/rewind", to="1", until="now")
    assert (refused.status, "it must be a position in the log, such as 1000" in refused.text) == (400, True)
