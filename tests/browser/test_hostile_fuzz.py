"""Texts that are generated, in every field that applications and attackers write: pages have no other elements,
attributes and addresses than with harmless texts, nothing runs, and no page complains (`operators`).

Each run has other texts. `POSTROAD_FUZZ_SEED=… pytest tests/browser/test_hostile_fuzz.py` repeats one that failed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from postroad import Message
from postroad.admin import By, open_admin
from postroad.console.context import PAGES
from postroad.message import new_id
from tests.browser.hostile import Hostile
from tests.browser.operators import Operator, operator
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

pytestmark = pytest.mark.asyncio(loop_scope="session")

Text = Callable[[int], str]
"""Makes a text of at most so many bytes."""

MESSAGES = 40
OPENED = 3
"""Of so many messages, the pages of their own are opened, too."""

SHAPE = """() => {
  const shape = new Set(), foreign = [];
  for (const each of document.querySelectorAll("*")) {
    shape.add(each.localName);
    for (const name of each.getAttributeNames()) {
      if (name !== "class") shape.add(`${each.localName}[${name}]`);  // htmx adds classes while it loads
      if (/^(href|src|action|formaction|xlink:href|hx-get|data-stream)$/.test(name)) {
        const address = new URL(each.getAttribute(name), document.baseURI);
        if (address.origin !== location.origin) foreign.push(`${each.localName}[${name}] ${address.href}`);
      }
    }
  }
  return [[...shape], foreign, globalThis.hacked === undefined, document.body.innerText];
}"""


def harmless(longest: int) -> str:
    return f"plain-{new_id()}"[:longest]


async def pages_with(log: PostgreSQLLog, text: Text) -> list[tuple[str, dict[str, Any]]]:
    """Fill the log with such texts. Returns the pages that show them, with their queries."""
    sinks = [text(200) for _ in range(3)]
    await log.store.open()
    for sink in sinks:
        await log.store.leases.create(sink, f"null://{text(100)}", lanes=1, start="oldest")
    await log.store.close()
    messages = [
        Message({text(300): text(300), "list": [text(2000)]}, type=text(255), topic=text(255), key=text(1024),
                id=new_id(), headers={text(100): text(500)}, correlation_id=text(255))
        for _ in range(MESSAGES)
    ]  # fmt: skip
    await log.add(*messages)
    for number, message in enumerate(messages):
        sink, state = sinks[number % len(sinks)], ("dead", "held", "retrying")[number // len(sinks) % 3]
        await defer(log, message, sink, state, text)
    letters = [(text(255), text(1024)) for _ in range(OPENED)]
    for consumer, id in letters:
        await log.execute(
            "insert into postroad.inbox_attempts (attempts, dead_at, consumer, id, type, error) "
            "values (5, now(), $1, $2, $3, $4)",
            consumer, id, text(255), text(2000),
        )  # fmt: skip
        await log.execute(
            "insert into postroad.consumers (instance, pid, alive_until, handled, duplicates, failed, dead, consumer, "
            "source, host, version) values ($1, 1, now() + '1h', 1, 1, 1, 1, $2, $3, $4, $5)",
            new_id(), consumer, text(1024), text(255), text(255),
        )  # fmt: skip
    async with open_admin(log.url) as admin:
        for message in messages[:OPENED]:
            await admin.hold(sinks[0], str(message.key), By(text(100), text(500)))
        await admin.pause(sinks[1], By(text(100), text(500)))
    sink, found = sinks[0], messages[:OPENED]
    return [
        *((path, {}) for path in (*PAGES, "key")),
        ("trouble", {"sink": sink}),
        ("messages", {"sink": sink, "state": "dead", "error": text(100), "type": messages[0].type, "key": text(300)}),
        ("do/hold", {"sink": sink, "key": text(300)}),
        ("do/retry", {"sink": sink, "error_pattern": text(300)}),
        ("find", {"q": text(300)}),
        *((f"message/{each.id}", {}) for each in found),
        *(("key", {"sink": sink, "key": str(each.key)}) for each in found),
        *(("inbox/letter", {"consumer": consumer, "id": id}) for consumer, id in letters),
    ]


async def defer(log: PostgreSQLLog, message: Message, sink: str, state: str, text: Text) -> None:
    error = text(2000)
    await log.execute(
        "insert into postroad.deferred (sink, lane, position, attempts, blocks, state, due_at, key, error, route) "
        "select $1, 0, position, 5, $2 <> 'dead', $2, case when $2 = 'retrying' then now() + '1h' end, key, $3, $4 "
        "from postroad.outbox where id = $5",
        sink, state, error, text(100) if state == "retrying" else None, message.id,
    )  # fmt: skip
    await log.execute(
        "insert into postroad.attempts (sink, position, attempt, error) "
        "select $1, position, 1, $2 from postroad.outbox where id = $3",
        sink, error, message.id,
    )  # fmt: skip


async def shape_of(anna: Operator) -> set[str]:
    """The page's elements and attributes. Nothing on it has run, leads elsewhere or changes how a text reads."""
    shape, foreign, quiet, shown = await anna.page.evaluate(SHAPE)
    assert quiet, f"a script has run on {anna.page.url}"
    assert not foreign, f"{anna.page.url} leads elsewhere"
    unseen = {each for each in shown if not each.isprintable()} - set("\n\t\xa0")
    assert not unseen, f"{anna.page.url} shows {unseen}"
    assert anna.complaints == []
    return set(shape)


async def shapes(browser: Browser, server: PostgreSQL, text: Text) -> set[str]:
    """All elements and attributes that the pages have, with such texts in the log."""
    log = await PostgreSQLLog.fresh(server)
    try:
        pages = await pages_with(log, text)
        async with operator(browser, log.url) as anna:
            found: set[str] = set()
            for path, query in [*pages, ("audit", {})]:
                await anna.open(path, **query)
                if path in {"", "lanes"}:  # live: a fragment of the stream replaces what was loaded
                    await expect(anna.page.locator("#connection")).not_to_have_text("times in UTC")
                found |= await shape_of(anna)
                if path.startswith("message/"):
                    await anna.page.get_by_label("Reason").fill(text(300))
                    await anna.press("Show the payload")
                    await anna.see("This look is in the audit")
                    found |= await shape_of(anna)
            return found
    finally:
        await log.close()


async def test_no_text_changes_what_a_page_is_made_of(browser: Browser, postgresql15: PostgreSQL) -> None:
    usual = await shapes(browser, postgresql15, harmless)
    seed = int(os.environ.get("POSTROAD_FUZZ_SEED") or secrets.randbits(32))
    try:
        unusual = await shapes(browser, postgresql15, Hostile(seed)) - usual
        assert not unusual
    except BaseException as error:
        error.add_note(f"found again with POSTROAD_FUZZ_SEED={seed}")
        raise
