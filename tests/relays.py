"""`postroad relay` in a process of its own, and what it writes to its log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.services.server import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.logs import PostgreSQLLog

WAIT_SECONDS = 120
ROOT = Path(__file__).parents[1]


class Place(NamedTuple):
    """Where a number stands in the log, which lane reads it, and how far that lane's saved cursor has come."""

    number: int
    lane: int
    position: int
    saved: int


class Span(NamedTuple):
    """A page: what a lane reads of the log after one position and up to another."""

    lane: int
    after: int
    through: int

    def holds(self, place: Place) -> bool:
        return self.lane == place.lane and self.after < place.position <= self.through


class RunningRelay:
    """A relay that was started, and that writes all it does to its log."""

    def __init__(
        self, log: PostgreSQLLog, to: str, log_file: Path, *options: str, module: str = "postroad", **environment: str
    ) -> None:
        self._log_file = log_file
        options = ("--log-format", "json", "--log-level", "debug", *options)
        with log_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "relay", *options],
                env=os.environ
                | {"PYTHONPATH": str(ROOT)}
                | {"POSTROAD_DATABASE": log.url, "POSTROAD_TO": to}
                | environment,
                cwd=log_file.parent,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    async def until(self, published: int) -> None:
        """Wait until it has published so many messages."""
        await self._until(lambda: sum(page["published"] for page in self.logged("page_published")) >= published)

    async def until_logged(self, event: str, words: str = "", *, times: int = 1) -> None:
        """Wait until its log has so many lines about the event, with these words."""
        await self._until(lambda: sum(words in line["message"] for line in self.logged(event)) >= times)

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not reached():
                assert self.process.poll() is None, self._log_file.read_text()
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, WAIT_SECONDS)

    async def ended_by(self, number: signal.Signals) -> int:
        """Its exit code after a signal in the middle of its work."""
        assert self.process.poll() is None
        self.process.send_signal(number)
        return await self.ended()

    def logged(self, *events: str) -> list[dict[str, Any]]:
        """The lines of its log about these events."""
        return [line for line in self.lines() if line.get("event") in events]

    def lines(self) -> list[dict[str, Any]]:
        """All lines of its log."""
        lines = self._log_file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # it may be writing the last one

    def last_lines(self, number: int) -> list[str]:
        """The end of its log, as it stands."""
        return self._log_file.read_text().splitlines()[-number:]

    def interrupted(self) -> Counter[Span]:
        """The pages that were under way when a connection to the broker was lost, and how often each was.

        A relay logs that the broker is back when it has confirmed something: a connection that was made and lost before
        that is told by its reason. Only for a relay that began at the beginning of the log.
        """
        through: Counter[int] = Counter()
        under_way: dict[int, Span] = {}
        interrupted: Counter[Span] = Counter()
        out = False
        for line in self.logged("page_taken", "page_published", "broker_unavailable", "broker_recovered"):
            match line["event"]:
                case "page_taken":
                    lane = line["lane"]
                    under_way[lane] = Span(lane, through[lane], line["position"])
                    through[lane] = line["position"]
                case "page_published":
                    del under_way[line["lane"]]
                case "broker_unavailable" if not out or "Connect call failed" not in line["reason"]:
                    interrupted.update(under_way.values())
            out = line["event"] == "broker_unavailable" or (out and line["event"] != "broker_recovered")
        return interrupted


@contextmanager
def relay(log: PostgreSQLLog, to: str, log_file: Path, *options: str) -> Iterator[RunningRelay]:
    """A relay that runs as long as the block. If the test fails there, the end of its log is shown."""
    running = RunningRelay(log, to, log_file, *options)
    try:
        yield running
    except BaseException:
        end = "\n".join(running.last_lines(40))
        sys.stderr.write(f"{log_file.name}, exit code {running.process.poll()}:\n{end}\n")
        raise
    finally:
        running.process.kill()
        running.process.wait()


async def frozen_in_a_page(running: RunningRelay) -> None:
    """Stop its process while it has messages under way."""
    async with asyncio.timeout(WAIT_SECONDS):
        stop(running.process)
        while len(running.logged("page_taken")) == len(running.logged("page_published")):
            running.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.005)
            stop(running.process)
