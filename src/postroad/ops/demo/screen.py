"""Prints the progress of the demo: live on a terminal, line by line in a pipe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from postroad.ops.demo.audit import Counts
    from postroad.ops.demo.plan import Plan

__all__ = ["LiveScreen", "PlainScreen", "screen_for"]

_COLOURS = {"shop": "cyan", "relay": "magenta", "so far": "dim", "story": "dim"}
_STATES = {"running": "green", "killed": "bold red", "running again": "yellow", "done": "dim"}


class PlainScreen:
    """One line per event, and one per quarter of the orders."""

    def __init__(self, console: Console, plan: Plan, expected: int) -> None:
        self.console = console
        self._orders = plan.orders
        self._expected = expected
        self._began = time.monotonic()
        self._quarters = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""

    def say(self, who: str, what: str, style: str = "") -> None:
        seconds = time.monotonic() - self._began
        self.console.print(Text.assemble(f"{seconds:5.1f} s  ", (f"{who:<7}", _COLOURS[who]), (what, style)))

    def show(self, counts: Counts, states: dict[str, str]) -> None:
        quarters = 4 * counts.arrived // self._expected
        if quarters > self._quarters:
            self._quarters = quarters
            self.say("so far", f"{_of_shop(counts)}; {_of_warehouse(counts)}")


class LiveScreen(PlainScreen):
    """The same lines, and below them progress bars."""

    def __init__(self, console: Console, plan: Plan, expected: int) -> None:
        super().__init__(console, plan, expected)
        self._live = Live(console=console, refresh_per_second=15, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, counts: Counts, states: dict[str, str]) -> None:
        table = Table.grid(padding=(0, 2))
        tried = counts.orders + counts.declined
        table.add_row()
        for who, done, whole, words in (
            ("shop", tried, self._orders, _of_shop(counts)),
            ("relay", counts.arrived, self._expected, _of_warehouse(counts)),
        ):
            if who in states:
                bar = ProgressBar(total=whole, completed=done, width=24, complete_style=_COLOURS[who])
                table.add_row(Text(who, _COLOURS[who]), bar, _state(states[who]), Text(words))
        self._live.update(table)


def screen_for(console: Console, plan: Plan) -> PlainScreen:
    """The screen for this console: live if it can redraw lines."""
    kind = LiveScreen if console.is_terminal and not console.is_dumb_terminal else PlainScreen
    return kind(console, plan, max(1, plan.expected))


def _of_shop(counts: Counts) -> str:
    return f"{counts.orders:,} placed, {counts.declined:,} rolled back"


def _of_warehouse(counts: Counts) -> str:
    return f"{counts.arrived:,} delivered" + (f", and {counts.again:,} again" if counts.again else "")


def _state(state: str) -> Text:
    return Text(f"{state:<13}", _STATES[state])
