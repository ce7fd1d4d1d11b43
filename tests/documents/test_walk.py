"""ARCHITECTURE.md lists the functions that a healthy page passes from read to settle: this test runs one and compares.

The list ends at the contracts: what a store, a publisher, a lease or a listener does inside is not in it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from tests.logs import MemoryLog, numbered

ROOT = Path(__file__).parents[2]
SOURCE = f"{ROOT / 'src' / 'postroad'}/"
BEGIN, END = "relay/lane.py:Lane._deliver_pages", "stores/memory.py:MemoryStore.settle"
READ = ("relay/convoy.py:Convoy.read", "stores/memory.py:MemoryStore.read")
CONTRACTS = ("stores/", "brokers/", "listeners.py", "relay/owned_lane.py", "relay/idle.py", "relay/wake_signal.py")
"""Of these only what the relay itself calls is listed."""
UNLISTED = ("relay/clock.py", "config.py", "message.py", "relay/progress.py:LaneProgress.lease")
"""Attributes and plain values."""


def written() -> list[str]:
    section = (
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## The way of a page\n")[1].split("\n## ")[0]
    )
    return re.findall(r"^\d+\. `([\w/.]+:[\w.]+)`", section, re.MULTILINE)


def place(frame: FrameType | None) -> str | None:
    """The file of a function of postroad."""
    if frame is None or not frame.f_code.co_filename.startswith(SOURCE):
        return None
    return frame.f_code.co_filename.removeprefix(SOURCE)


async def walked() -> list[str]:
    """The functions called from when a lane begins to deliver until it has settled its first page, each once."""
    log, broker, calls = MemoryLog(), MemoryBroker(), list[str]()
    await log.add(*numbered(1, 2, 3), *numbered(4, 5, key="k"))

    earlier: set[str] = set()

    def note(frame: FrameType, what: str, _: object) -> None:
        file, caller, task = place(frame), place(frame.f_back), asyncio.current_task()
        if what != "call" or file is None or calls[-1:] == [END] or task is None:
            return
        call = f"{file}:{frame.f_code.co_qualname}"
        if call not in READ and not task.get_name().startswith("postroad lane"):  # a page is read in a task of its own
            return
        inside = file.startswith(CONTRACTS) and (caller == file or (caller or "").startswith(CONTRACTS))
        if not calls and call != BEGIN:
            earlier.add(call)  # it may be resumed, which is no call
        elif not inside and not call.startswith(UNLISTED) and "<" not in call and call not in earlier:
            calls.append(call)

    relay = Relay(log.store, broker, settings=RelaySettings(lanes=1, settle_interval="0s"), listeners=[])
    sys.setprofile(note)
    try:
        await relay.run_until_empty()
    finally:
        sys.setprofile(None)
    assert len(broker.messages) == 5
    return list(dict.fromkeys(calls))


async def test_the_way_of_a_page() -> None:
    calls = await walked()
    assert written() == calls, "the list should be:\n" + "\n".join(
        f"{number}. `{call}`" for number, call in enumerate(calls, start=1)
    )


def test_every_function_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    for file, name in named:
        found: object = import_module(
            "postroad." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
        for part in name.split("."):
            found = getattr(found, part)
