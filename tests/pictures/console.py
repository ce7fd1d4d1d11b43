"""Draws docs/pictures/console-*.png: each page of the console in light and dark, on the demo's shop and its trouble.

    python -m tests.pictures.console

It needs Chromium and pngquant. The hour before the pictures is made up; what goes wrong in them is real.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import expect

from postroad.stores.latency import LATENCIES
from tests.browser.demo import demo
from tests.relays import ROOT
from tests.services.chromium import chromium

if TYPE_CHECKING:
    from playwright.async_api import Page

PICTURES = ROOT / "docs" / "pictures"
PAGES = {
    "now": "shop/", "trouble": "shop/trouble", "messages": "shop/messages", "lanes": "shop/lanes",
    "latency": "shop/latency", "time-machine": "shop/time-machine?sink=warehouse&to=2026-01-01T00:00",
    "inbox": "warehouse/inbox", "audit": "shop/audit", "doctor": "shop/doctor", "key": "shop/key?key=eva",
}  # fmt: skip
WHOLE = {"now"}
"""Pages that are shown to their end."""
SIZE = (1120, 760)
COLOURS = 64
LIMIT = 1_200_000
"""Bytes of all pictures."""


def make_up_an_hour(folder: Path) -> None:
    """What was published in the hour before, and how long it took: orders come in waves."""
    chance = random.Random(7)
    now = time.time()
    rows = [
        (sink, lane, 0, int((now - 60 * minute) * 1e6), number, 0, json.dumps(_latencies(number, minute, chance)))
        for sink in ("warehouse", "search", "mail")
        for minute in range(1, 60)
        for lane in range(4)
        for number in [int(40 + 22 * math.sin(minute / 7) + chance.randint(-5, 5))]
    ]
    with closing(sqlite3.connect(folder / "shop.sqlite", timeout=30)) as connection, connection:
        columns = "sink, lane, position, at, published, refused, latencies"
        connection.executemany(f"insert into postroad_progress ({columns}) values (?, ?, ?, ?, ?, ?, ?)", rows)


def _latencies(number: int, minute: int, chance: random.Random) -> list[int]:
    middle = 3.5 + 1.5 * math.sin(minute / 7) + (3 if 20 < minute < 26 else 0)
    counts = [0] * (len(LATENCIES) + 1)
    for _ in range(number):
        counts[min(len(LATENCIES), max(0, round(chance.gauss(middle, 1.1))))] += 1
    return counts


async def take(page: Page, base: str) -> list[Path]:
    """Every page, in both schemes."""
    await page.goto(f"{base}shop/messages?state=dead")
    found = await page.locator("a.id").first.get_attribute("title")
    retry = f"shop/do/retry?id={found}&sink=warehouse"
    taken = []
    for name, path in (PAGES | {"message": f"shop/message/{found}", "change": retry}).items():
        await page.goto(base + path)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            taken.append(PICTURES / f"console-{name}-{scheme}.png")
            await page.screenshot(path=taken[-1], full_page=name in WHOLE, animations="disabled")
    return taken


def squeeze(pictures: list[Path]) -> None:
    """A palette instead of all colours: a fifth of the size, and no difference that one sees."""
    command = ("pngquant", "--force", "--skip-if-larger", "--strip", "--speed", "1", "--ext", ".png", str(COLOURS))
    subprocess.run([*command, *map(str, pictures)], check=True)
    size = sum(each.stat().st_size for each in pictures)
    if size > LIMIT:
        raise SystemExit(f"the pictures have {size:,} bytes; take fewer COLOURS, or a smaller SIZE")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        async with demo(Path(name)) as address, chromium() as browser:
            make_up_an_hour(Path(name))
            base = address.partition("sign-in")[0]
            page = await browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, timezone_id="UTC")
            await page.goto(address)
            await page.wait_for_url(base)
            await page.goto(f"{base}shop/")
            await expect(page.locator("main")).to_contain_text("dead message", timeout=60_000)
            await page.wait_for_timeout(20_000)  # some orders more, and some dead letters
            squeeze(await take(page, base))


if __name__ == "__main__":
    asyncio.run(main())
