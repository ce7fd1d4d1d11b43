"""Debian's Chromium, driven by Playwright: one process, in which each test has a profile of its own.

Playwright brings the protocol and no browser: what it would download is not needed.
"""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

# What a browser does by itself, such as asking for updates, is not what tests are about.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_SECONDS = 120


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser without a window."""
    from playwright.async_api import async_playwright

    program = find()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=list(OPTIONS), timeout=START_SECONDS * 1000
        )
        try:
            yield browser
        finally:
            await browser.close()


def find() -> Path:
    """The browser's program."""
    program = shutil.which("chromium")
    if program is None:
        raise ServerMissing("Chromium", "apt-get install chromium")
    return Path(program)
