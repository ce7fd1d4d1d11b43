"""console: how long each page takes with a million messages in the log, half of them waiting, and 100,000 deferred; and
which of its statements read a whole table, if one does.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import httpx

from benchmarks.backlog import TOPIC, create_log, create_sinks, fill
from benchmarks.operations import AFTERMATH, SINK
from benchmarks.plans import explain_everything, logged_plans
from benchmarks.process import Broken
from benchmarks.sections import Plan, Section, median
from postroad.admin import By, Filter, State, open_admin
from postroad.console import Console, Role, User
from postroad.console.poller import SECONDS

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

KEY = "customer-1"
BASE = "http://console.example"
LARGE = ("outbox", "deferred", "attempts", "progress", "delivered", "inbox", "audit")
"""The tables that grow; the others have a row per lane, sink or process."""
_SCAN = re.compile(rf"Seq Scan on ({'|'.join(LARGE)})\b")


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(1_000_000, quick=50_000)
    title = f"The console: {messages:,} messages in the log, {messages // 10:,} deferred"
    section = Section("console", title, ["page", "median", "slowest"])
    url = create_log(server)
    create_sinks(url, [SINK])
    fill(server, url, messages, keys=messages // 100)
    server.psql(url, AFTERMATH.format(behind=messages // 2, sink=SINK))
    server.psql(url, "vacuum (analyze)")
    pages = asyncio.run(_pages(url))
    slowest = asyncio.run(_measure(url, pages, section, plan))
    section.at_most("ms for the slowest page", 100, slowest, "{:.0f}")
    asyncio.run(_explain(server, url, pages, section))
    return section


async def _pages(url: str) -> dict[str, str]:
    """The address of each page, with a message and a key that have a history."""
    async with open_admin(url) as admin:
        (dead,) = (await admin.messages(Filter(state=State.DEAD), 1)).messages
        await admin.hold(SINK, KEY, By("benchmark", "measured"))
    return {
        "Now": "", "Trouble": "trouble", "Messages": "messages", "Messages, dead": "messages?state=dead",
        "Messages, by error": "messages?state=dead&error=message+12345",
        "Messages, of a type": f"messages?type={TOPIC}",
        "Message": f"message/{dead.id}", "Key": f"key?key={KEY}", "Key that is not there": "key?key=none",
        "Lanes": "lanes", "Latency": "latency", "Time machine": "time-machine",
        "Time machine, an hour back": f"time-machine?sink={SINK}&hours=1", "Inbox": "inbox", "Audit": "audit",
        "Retry, previewed": f"do/retry?id={dead.id}", "Retry of all, previewed": "do/retry?all=1",
        "Rewind, previewed": f"do/rewind?sink={SINK}&to=1", "Cleanup, previewed": "do/cleanup?older_than=14d",
    }  # fmt: skip


def _browser(console: Console) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=console), base_url=f"{BASE}/log/", timeout=600)


def _console(url: str) -> Console:
    return Console({"log": url}, auth=lambda _: User("benchmark", Role.ADMIN))


async def _measure(url: str, pages: dict[str, str], section: Section, plan: Plan) -> float:
    """The slowest page's median. What pages share is read anew for each of them."""
    slowest = 0.0
    async with _console(url) as console, _browser(console) as browser:
        for name, path in pages.items():
            times = [await _timed(browser, path) for _ in range(1 + 4 * plan.rounds())][1:]
            slowest = max(slowest, median(times))
            section.rows.append([name, f"{median(times):.1f} ms", f"{max(times):.1f} ms"])
            section.raw[name] = times
    section.notes.append(
        "From the request to the answer in one process, without a network; the doctor is not measured."
    )
    return slowest


async def _timed(browser: httpx.AsyncClient, path: str) -> float:
    if path in {"", "lanes", "trouble"}:
        await asyncio.sleep(SECONDS)  # until the last look is too old to be used again
    began = time.perf_counter()
    await _load(browser, path)
    return (time.perf_counter() - began) * 1000


async def _load(browser: httpx.AsyncClient, path: str) -> None:
    answer = await browser.get(path)
    if answer.status_code != 200:
        raise Broken(f"{path}: {answer.status_code} {answer.text}")


async def _explain(server: PostgreSQL, url: str, pages: dict[str, str], section: Section) -> None:
    """Note each page with a statement that reads a whole large table."""
    scans = dict[str, list[str]]()
    with explain_everything(server, url):
        async with _console(url) as console, _browser(console) as browser:
            for name, path in pages.items():
                before = len(logged_plans(server))
                await _load(browser, path)
                if len(logged_plans(server)) == before and path != "lanes":  # it may share the look of another page
                    raise Broken(f"{name}: no plan was logged")
                scans[name] = [plan for _, plan in logged_plans(server)[before:] if _SCAN.search(plan)]
    for name, plans in scans.items():
        section.notes += [f"{name} reads a whole table: `{' '.join(plan.split())[:600]}`" for plan in plans]
    if not any(scans.values()):
        section.notes.append(
            f"No statement reads a whole table of {', '.join(LARGE[:-1])} or {LARGE[-1]} (auto_explain)."
        )
    section.raw["plans with scans"] = scans
