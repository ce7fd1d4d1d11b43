"""Starts and kills the processes of the demo. It waits for the contents of the tables, never for a fixed time.

`Stage` starts, watches and kills processes; `_with_outbox` and `_without_outbox` are the two scripts.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec

from postroad.errors import PostroadError
from postroad.ops.demo import shop, warehouse
from postroad.ops.demo.audit import audit, count, read_books
from postroad.ops.demo.folder import folder_for
from postroad.ops.demo.plan import Plan
from postroad.ops.demo.report import show_audit, show_title
from postroad.ops.demo.screen import screen_for
from postroad.stores.sqlite import migrate_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from postroad.ops.demo.audit import Counts
    from postroad.ops.demo.screen import PlainScreen

__all__ = ["run_demo"]

Who = Literal["shop", "relay"]
POLL_SECONDS: Final = 0.03
STALLED_SECONDS: Final = 15.0
_KILLED: Final = -signal.SIGKILL if sys.platform != "win32" else 1


def run_demo(console: Console, *, orders: int, seed: int | None, sabotage: bool, directory: Path | None) -> int:
    """Run the demo and show it; 0 when the audit passed, 1 when it did not."""
    with folder_for(directory) as folder:
        plan = Plan(str(folder), orders, SystemRandom().randrange(100_000) if seed is None else seed, sabotage)
        show_title(console, plan, kept=directory is not None)
        shop.create_tables(plan)
        warehouse.create_tables(plan)
        with screen_for(console, plan) as screen, Stage(plan, screen) as stage:
            if sabotage:
                _without_outbox(stage)
            else:
                migrate_sqlite(plan.shop_file)
                _with_outbox(stage)
        result = audit(read_books(plan))
        show_audit(console, result, stage.kills)
    return 0 if result.passed else 1


def _with_outbox(stage: Stage) -> None:
    stage.start("shop", "opens: one order in five will be rolled back")
    stage.wait_until(lambda now: now.orders >= 0.2 * stage.expected)
    stage.start("relay", "starts to deliver the log")
    stage.wait_until(lambda now: now.orders >= 0.5 * stage.expected)
    stage.kill("shop", _after_some_orders)
    stage.start("shop", "opens again")
    stage.wait_until(lambda now: now.arrived >= 0.3 * stage.expected)
    stage.kill("relay", _while_publishing)
    stage.start("relay", "starts again, from the last cursor that was saved")
    stage.wait_for_end("shop", "closes")
    stage.wait_until(lambda now: now.arrived >= 0.7 * stage.expected)
    stage.kill("relay", _while_publishing)
    stage.start("relay", "starts again, to end when the log is empty", role="drain")
    stage.wait_for_end("relay", "ends: every message is delivered")


def _without_outbox(stage: Stage) -> None:
    stage.start("shop", "opens: one order in five will be rolled back")
    stage.wait_until(lambda now: now.orders >= 0.5 * stage.expected)
    stage.kill("shop", _after_some_orders)
    stage.start("shop", "opens again")
    stage.wait_for_end("shop", "closes; everything it still knew of is sent")


def _after_some_orders(now: Counts) -> str:
    return f"after {now.orders} orders, {now.under_way} not delivered yet"


def _while_publishing(now: Counts) -> str:
    return f"while publishing, with {now.under_way} orders to go" if now.under_way else "while it had nothing to do"


class Stage:
    """The processes of the demo. Leaving the context ends all of them."""

    def __init__(self, plan: Plan, screen: PlainScreen) -> None:
        self.expected = plan.expected
        self.kills: Counter[str] = Counter()
        self._plan = plan
        self._screen = screen
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._states: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for who in list(self._processes):
            self._end(who)

    def start(self, who: Who, words: str, *, role: str | None = None) -> None:
        """Start a process. Its standard input is a pipe, which closes when this process ends."""
        command = [sys.executable, "-m", "postroad.ops.demo", role or who, msgspec.json.encode(self._plan).decode()]
        with self._log_of(who).open("ab") as log:
            self._processes[who] = subprocess.Popen(  # noqa: S603 - our own module, our own plan
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to this process only, which then ends the others
            )
        self._states[who] = "running again" if self.kills[who] else "running"
        self._screen.say(who, f"{words} (pid {self._processes[who].pid})")

    def kill(self, who: Who, when: Callable[[Counts], str]) -> None:
        """Kill a process with SIGKILL: it can't finish or save anything."""
        self._check_processes()
        if self._end(who) != _KILLED:
            self._screen.say(who, "had ended before it could be killed")  # on a very slow machine; the demo goes on
            return
        self.kills[who] += 1
        self._states[who] = "killed"
        self._screen.say(who, f"killed with SIGKILL {when(count(self._plan))}", "bold red")

    def wait_until(self, condition: Callable[[Counts], bool]) -> None:
        """Wait until the counts satisfy the condition, or have not changed for STALLED_SECONDS."""
        before, moved = None, time.monotonic()
        while True:
            now = count(self._plan)
            self._screen.show(now, self._states)
            if condition(now):
                return
            self._check_processes()
            if now != before:
                before, moved = now, time.monotonic()
            elif time.monotonic() - moved > STALLED_SECONDS:
                self._screen.say(
                    "story", f"nothing has changed for {STALLED_SECONDS:.0f} s; going on to the audit", "bold red"
                )
                return
            time.sleep(POLL_SECONDS)

    def wait_for_end(self, who: Who, words: str) -> None:
        """Wait until a process has ended by itself."""
        process = self._processes[who]
        self.wait_until(lambda _: process.poll() is not None)
        self._check_processes()
        if self._end(who) == 0:
            self._states[who] = "done"
            self._screen.say(who, words)

    def _end(self, who: str) -> int:
        process = self._processes.pop(who)
        process.kill()
        returned = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return returned

    def _check_processes(self) -> None:
        for who, process in self._processes.items():
            if process.poll() not in (None, 0):
                lines = self._log_of(who).read_text(encoding="utf-8", errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
                raise DemoFailed(f"the demo's {who} ended by itself with code {process.returncode}: {last}")

    def _log_of(self, who: str) -> Path:
        return Path(self._plan.directory, f"{who}.log")


class DemoFailed(PostroadError):
    """A process of the demo failed."""
