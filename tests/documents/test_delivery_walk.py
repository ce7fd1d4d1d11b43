"""ARCHITECTURE.md lists the functions of the consumer that one healthy delivery passes. This test traces one."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType

import postroad
from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.memory import MemoryQueue
from tests.consumers import Numbered, consumer, put, soon
from tests.places import on_sqlite

SOURCE = Path(postroad.__file__).parent
PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"


class TracedQueue(MemoryQueue):
    """Traces the consumer's functions between the receiving of a message and its ack."""

    def __init__(self) -> None:
        super().__init__()
        self.walk: list[str] = []
        self.acked = asyncio.Event()

    async def receive(self) -> Sequence[Delivery] | Revoked:
        received = await super().receive()
        sys.setprofile(self._trace)
        return received

    def ack(self, deliveries: Collection[Delivery]) -> None:
        sys.setprofile(None)
        super().ack(deliveries)
        self.acked.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = code.co_filename.removeprefix(f"{SOURCE}/")
        is_named = not re.search(r"<|\.__", code.co_qualname.replace("<locals>", ""))
        step = f"{file}:{code.co_qualname}"
        if event == "call" and file.startswith("consumer/") and is_named and step not in self.walk:
            self.walk.append(step)


async def test_the_walk_is_written_as_it_is_walked(tmp_path: Path) -> None:
    place, queue = on_sqlite("aiosqlite", tmp_path / "app.sqlite"), TracedQueue()
    it = consumer(place, queue, heartbeat=None)
    it.on(Numbered)(place.handler())
    put(queue, 1)
    running = asyncio.create_task(it.run())
    await soon(queue.acked)
    it.stop()
    assert (await running).handled == 1
    assert "consumer/keys.py:Keys.take" in queue.walk, "the trace works"
    section = PAGE.read_text().partition("## The way of a delivery")[2].partition("\n## ")[0]
    assert re.findall(r"^\d+\. `([\w/]+\.py:[\w.]+)`", section, re.MULTILINE) == queue.walk
