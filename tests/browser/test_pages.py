"""Every page that links lead to, on the demo's databases: for screen readers, in the dark, on a phone, no scripts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from postroad.console.context import PAGES
from tests.browser.demo import demo
from tests.browser.operators import Operator, watch

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
RUN_AXE = """async (rules) => {
  const found = await axe.run(document, {resultTypes: ["violations"], ...(rules && {runOnly: rules})});
  return found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
}"""
LINKS = "(all) => all.map((each) => new URL(each.getAttribute('href'), document.baseURI).href)"  # also in SVG
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 380, "height": 800}
CONTRAST = ["color-contrast"]
"""The only rule that the colours matter for."""


class Signed:
    """The console of the demo, and what a browser needs to be signed in to it."""

    def __init__(self, browser: Browser, address: str, state: Any) -> None:
        self._browser = browser
        self.address = address
        self._state = state

    @asynccontextmanager
    async def operator(self, **options: Any) -> AsyncIterator[Operator]:
        """A page of a fresh context, which is watched."""
        complaints: list[str] = []
        context = await self._browser.new_context(storage_state=self._state, **options)
        try:
            await watch(context, complaints)
            yield Operator(await context.new_page(), self.address, complaints)
        finally:
            await context.close()
        assert complaints == []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def signed(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Signed]:
    async with demo(tmp_path_factory.mktemp("demo")) as address:
        base = address.partition("sign-in")[0]
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(address)
        await page.wait_for_url(base)
        await until_there_is_trouble(page, base)
        state = await context.storage_state()
        await context.close()
        yield Signed(browser, base, state)


async def until_there_is_trouble(page: Page, base: str) -> None:
    await page.goto(f"{base}shop/")
    await expect(page.locator("main")).to_contain_text("dead message")
    while "No dead letters" in await (await page.goto(f"{base}warehouse/inbox")).text():  # type: ignore[union-attr]
        await page.wait_for_timeout(200)


def kind_of(address: str) -> tuple[str, ...]:
    """Pages that differ only in values are of one kind."""
    parts = urlsplit(address)
    names = sorted(name for name in parse_qs(parts.query) if name in {"state", "error_pattern", "to"})
    return re.sub(r"[0-9a-f-]{36}", "ID", parts.path.partition("/")[2].partition("/")[2]), *names


async def every_page(page: Page, start: str, seen: set[tuple[str, ...]]) -> AsyncIterator[str]:
    """Load one page of each kind that links lead to, except those that were seen, and give its address."""
    waiting = [start]
    seen.add(kind_of(start))
    while waiting:
        address = waiting.pop()
        await page.goto(address)
        links = await page.eval_on_selector_all("a[href]:not([download])", LINKS)
        for link in links:
            if link.startswith(start) and kind_of(link) not in seen:
                seen.add(kind_of(link))
                waiting.append(link.partition("#")[0])
        yield address


async def faults(page: Page) -> list[str]:
    """What is wrong with the page that is loaded, in light and dark, wide and narrow."""
    await page.evaluate(AXE)
    found = await page.evaluate(RUN_AXE, None)
    await page.emulate_media(color_scheme="dark")
    found += [f"dark: {each}" for each in await page.evaluate(RUN_AXE, CONTRAST)]
    await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    if wide := await page.evaluate(TOO_WIDE):
        found.append(f"{wide} pixels too wide for a phone")
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    return list(found)


async def test_every_page_is_for_everybody(signed: Signed) -> None:
    async with signed.operator(viewport=DESKTOP) as anna:
        found: list[str] = []
        seen: set[tuple[str, ...]] = set()
        for database in ("shop", "warehouse"):
            async for address in every_page(anna.page, f"{signed.address}{database}/", seen):
                found += [f"{address}: {each}" for each in await faults(anna.page)]
        assert not found, "\n".join(found)
        assert {path.partition("/")[0] for path, *_ in seen} >= {*PAGES, "message", "key", "do", "inbox"}


async def test_every_page_works_without_scripts(signed: Signed) -> None:
    async with signed.operator(java_script_enabled=False) as anna:
        async for _ in every_page(anna.page, f"{signed.address}shop/", set()):
            await expect(anna.page.get_by_role("heading", level=1)).to_be_visible()
            await expect(anna.page.locator("main")).not_to_contain_text("Unavailable")


async def confirmed(anna: Operator, change: str, **query: Any) -> None:
    """Make the change, at the first attempt: the shop takes orders all the time."""
    await anna.open(f"do/{change}", **query)
    await anna.page.get_by_label("Reason").fill(f"{change} without scripts")
    await anna.page.locator("#confirm").click()
    await anna.see("Done:")


async def test_changes_work_without_scripts(signed: Signed) -> None:
    async with signed.operator(java_script_enabled=False) as anna:
        await anna.open("messages", state="dead")
        first = str(await anna.page.locator("tbody a.id").first.get_attribute("title"))
        made = [
            ("pause", {"sink": "warehouse"}), ("resume", {"sink": "warehouse"}),
            ("hold", {"sink": "mail", "key": "anna"}), ("release", {"sink": "mail", "key": "anna"}),
            ("drop", {"id": first, "sink": "warehouse"}), ("restore", {"id": first, "sink": "warehouse"}),
            ("retry", {"id": first, "sink": "warehouse"}), ("skip", {"id": first, "sink": "mail"}),
            ("rewind", {"sink": "mail", "to": "2026-01-01T00:00", "key": "eva"}),
            ("remove-sink", {"sink": "mail"}),
        ]  # fmt: skip
        for change, query in made:
            await confirmed(anna, change, **query)
        lines = [line for line in await anna.audit() if "without scripts" in line[2]]
        assert [reason.split()[0] for _, _, reason in lines] == [change for change, _ in reversed(made)]
        await expect(anna.page.locator("time").first).to_contain_text("Z")  # UTC, as nothing has changed it


async def test_times_are_those_of_the_viewer(signed: Signed) -> None:
    async with signed.operator(timezone_id="Asia/Tokyo", locale="en-GB") as anna:
        await anna.open("audit")
        time = anna.page.locator("tbody time").first
        await expect(time).to_have_attribute("data-local", "1")
        utc, shown = str(await time.get_attribute("title")), await time.inner_text()
        hour = (int(utc[11:13]) + 9) % 24
        assert f"{hour:02}:{utc[14:19]}" in shown


async def test_the_keyboard_is_enough(signed: Signed) -> None:
    async with signed.operator() as anna:
        await anna.open("trouble")
        await anna.page.keyboard.press("Tab")
        focused = anna.page.locator(":focus")
        await expect(focused).to_have_text("Skip to the content")
        await anna.page.keyboard.press("Enter")
        await anna.page.keyboard.press("Tab")
        await expect(anna.page.locator("main :focus")).to_have_count(1)
        outline = await anna.page.locator("main :focus").evaluate("(it) => getComputedStyle(it).outlineStyle")
        assert outline != "none"
        await anna.page.keyboard.press("/")
        await expect(anna.page.locator("#find")).to_be_focused()


async def test_a_page_that_is_no_longer_followed_says_so_and_recovers(signed: Signed) -> None:
    """A proxy answers instead of the console, as it also does when a session has ended."""
    async with signed.operator() as anna:
        await anna.page.route("**/live/**", lambda route: route.fulfill(status=502, body="<h1>Bad Gateway</h1>"))
        await anna.open()
        await expect(anna.page.locator("#stale")).to_contain_text("Not connected since")
        await expect(anna.page.locator("#live")).to_have_class("stale")
        await anna.page.unroute("**/live/**")
        await expect(anna.page.locator("#connection")).to_contain_text("live")
        await expect(anna.page.locator("#stale")).to_have_count(0)
        await expect(anna.page.locator("#live")).not_to_have_class("stale")
        anna.forgive("502 (Bad Gateway)")


async def test_pages_that_are_left_are_not_followed(signed: Signed) -> None:
    async with signed.operator() as anna:
        streams: list[str] = []
        anna.page.on("request", lambda request: streams.append(request.url) if "/live/" in request.url else None)
        await anna.open()
        await expect(anna.page.locator("#connection")).to_contain_text("live")
        await anna.page.get_by_role("link", name="Audit", exact=True).click()
        await anna.see("Audit")
        await anna.page.go_back()
        await expect(anna.page.locator("#connection")).to_contain_text("live")
        assert len(streams) == 2
