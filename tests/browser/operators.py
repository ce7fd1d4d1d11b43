"""An operator at a console: a real browser, a console that serves it on a port, and what the page complains about.

A page that complains fails the test: an error, a violation of the policy, a dialog, a line of the browser's console.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn
from playwright.async_api import expect

from postroad.console import Console, Role, SignIn, User

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    from playwright.async_api import Browser, BrowserContext, Page

SECONDS = 60.0
"""How long a page may take to show something, on a busy machine."""
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  violated(`${event.violatedDirective} ${event.blockedURI} at ${document.URL}: ${event.sample}`))"""

expect.set_options(timeout=SECONDS * 1000)


class Operator:
    """Uses one page of a console. Texts and buttons are waited for."""

    def __init__(self, page: Page, console: str, complaints: list[str]) -> None:
        self.page = page
        self.console = console
        self.complaints = complaints

    async def open(self, path: str = "", **query: Any) -> None:
        """Load a page of the database `shop`."""
        asked = f"?{urlencode(query)}" if query else ""
        await self.page.goto(f"{self.console}shop/{path}{asked}")

    async def see(self, *texts: str) -> None:
        """Wait until the page has these texts."""
        for text in texts:
            await expect(self.page.locator("main")).to_contain_text(text)

    async def find(self, path: str, *texts: str) -> None:
        """Load a page that is not live again and again, until it has these texts."""
        async with asyncio.timeout(SECONDS):
            await self.open(path)
            while not _has(await self.page.locator("main").inner_text(), texts):
                await self.page.reload()

    async def press(self, name: str, *, exact: bool = True) -> None:
        """Press a button, or a link that looks like one."""
        main = self.page.locator("main")
        found = main.get_by_role("link", name=name, exact=exact).or_(main.get_by_role("button", name=name, exact=exact))
        await found.first.click()

    async def confirm(self, reason: str) -> None:
        """Give the reason, confirm the change, and wait until it is done."""
        form = self.page.locator("form.confirm")  # the page before it may have a reason of its own
        await form.get_by_label("Reason").fill(reason)
        await form.locator("#confirm").click()
        await self.see("Done:")

    async def audit(self) -> list[list[str]]:
        """Who did what and why, newest first, as the page of the audit shows it."""
        await self.open("audit")
        rows = await self.page.locator("tbody tr").all()
        cells = [await row.locator("td").all_inner_texts() for row in rows]
        return [[who.split()[0], what, reason] for _, who, what, *_, reason in cells]

    def forgive(self, words: str) -> None:
        """Forget complaints with these words: the test provoked them."""
        self.complaints[:] = [each for each in self.complaints if words not in each]


def _has(shown: str, texts: tuple[str, ...]) -> bool:
    return all(text in shown for text in texts)


@asynccontextmanager
async def operator(
    browser: Browser, database: Any, *, name: str = "anna", role: Role = Role.ADMIN, payloads: bool = True,
    consumers: Any = (), **options: Any,
) -> AsyncIterator[Operator]:  # fmt: skip
    """Somebody who has signed in to a console of this database, or of these; it is closed after the browser's context.

    `options` are those of the browser's context, such as `color_scheme`.
    """
    urls = database if isinstance(database, dict) else {"shop": database}
    sign_in = SignIn(User(name, role, payloads))
    complaints: list[str] = []
    async with serving(Console(urls, auth=sign_in, consumers=consumers)) as address:
        context = await browser.new_context(**options)
        try:
            await watch(context, complaints)
            page = await context.new_page()
            await page.goto(f"{address}sign-in?token={sign_in.token}")
            await expect(page.locator("header .user")).to_contain_text(name)
            yield Operator(page, address, complaints)
        finally:
            await context.close()
    assert complaints == []


async def watch(context: BrowserContext, complaints: list[str]) -> None:
    """Note whatever a page of this context complains about."""
    context.set_default_timeout(SECONDS * 1000)
    context.on("weberror", lambda error: complaints.append(f"error: {error.error}"))
    context.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    context.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    await context.expose_binding("violated", lambda _, text: complaints.append(f"policy: {text}"))
    await context.add_init_script(TELL_VIOLATIONS)


class Server(uvicorn.Server):
    """Uvicorn, which leaves the signals of the tests alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """The address at which an ASGI application is served, in this loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        server = Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, ws="none"))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await running
