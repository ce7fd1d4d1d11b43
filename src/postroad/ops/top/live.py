"""Polls the database once per interval and draws what it found, until a key or a signal ends it.

One poller, whatever is shown. While the view is paused, the database is not asked. A database that can't be reached is
shown as such, and asked again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from postroad.admin import notices, open_admin
from postroad.errors import InvalidSetting, PostroadError
from postroad.ops.commands.status import notice_line
from postroad.ops.rendering.tables import only_ascii
from postroad.ops.top.frame import Look, View, frame
from postroad.ops.top.screen import screen
from postroad.stores.admin.snapshot import take_snapshot
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from rich.text import Text

    from postroad.ops.settings import Settings
    from postroad.ops.top.screen import Screen
    from postroad.stores.admin.snapshot import Snapshot

__all__ = ["one_frame", "watch"]

RATE_SNAPSHOTS: Final = 6
"""Rates are those between the newest snapshot and the oldest of so many."""
REDRAW_SECONDS: Final = 1.0

_VIEWS: Final = {str(number): view for number, view in enumerate(View, start=1)}


async def one_frame(settings: Settings, *, view: View, width: int) -> list[Text]:
    """One picture of the database, with as many lines as it needs."""
    async with open_admin(settings.needed("database"), schema=settings.command.schema, connections=1) as admin:
        now = await take_snapshot(admin)
    return frame(
        now, None, Look(view=view, width=width, height=None, keys=False, notices=_notices(now), plain=only_ascii())
    )


async def watch(settings: Settings, *, view: View, interval: float) -> None:
    """The live view."""
    await _View(settings, view, interval).run()


def _notices(snapshot: Snapshot) -> list[str]:
    """What needs attention, and what is good to know, as `postroad status` says it."""
    return [notice_line(notice) for notice in notices(snapshot.report)]


class _View:
    def __init__(self, settings: Settings, view: View, interval: float) -> None:
        self._settings = settings
        self._view = view
        self._interval = interval
        self._snapshots: deque[Snapshot] = deque(maxlen=RATE_SNAPSHOTS)
        self._taken = 0.0
        self._problem: str | None = None
        self._paused = False
        self._ended = False
        self._changed = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()

    async def run(self) -> None:
        polling = asyncio.create_task(self._poll())
        try:
            with screen(self._on_key, self._changed.set, self._end) as terminal:
                while not self._ended:
                    self._draw(terminal)
                    await self._wait(polling)
        finally:
            await cancel_and_wait(polling, seconds=REDRAW_SECONDS)

    async def _wait(self, polling: asyncio.Task[None]) -> None:
        """Until there is something to draw; at least once a second, because ages grow."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), REDRAW_SECONDS)
        self._changed.clear()
        if polling.done():
            polling.result()  # raises what can't be waited for, such as a wrong setting

    def _draw(self, terminal: Screen) -> None:
        width, height = terminal.size
        now = self._snapshots[-1] if self._snapshots else None
        look = Look(
            view=self._view,
            width=width,
            height=height,
            interval=self._interval,
            problem=self._problem,
            stale_seconds=asyncio.get_running_loop().time() - self._taken,
            paused=self._paused,
            notices=[] if now is None else _notices(now),
            plain=only_ascii(),
        )
        before = self._snapshots[0] if len(self._snapshots) > 1 else None
        terminal.draw(frame(now, before, look))

    def _on_key(self, key: str) -> None:
        if key in {"q", "Q"}:
            self._end()
        elif key in _VIEWS:
            self._view = _VIEWS[key]
        elif key in {"p", "P", " "}:
            self._paused = not self._paused
            (self._running.clear if self._paused else self._running.set)()
        self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    async def _poll(self) -> None:
        while True:
            try:
                await self._poll_until_lost()
            except InvalidSetting:
                raise
            except PostroadError as error:
                self._problem = str(error)
                self._changed.set()
            await asyncio.sleep(self._interval)

    async def _poll_until_lost(self) -> None:
        database, schema = self._settings.needed("database"), self._settings.command.schema
        async with open_admin(database, schema=schema, connections=1) as admin:
            while True:
                await self._running.wait()
                snapshot = await take_snapshot(admin)
                if self._problem is not None or self._has_jumped(snapshot):
                    self._snapshots.clear()
                self._snapshots.append(snapshot)
                self._problem, self._taken = None, asyncio.get_running_loop().time()
                self._changed.set()
                await asyncio.sleep(self._interval)

    def _has_jumped(self, snapshot: Snapshot) -> bool:
        """Whether much time has passed since the last snapshot: a rate would be of a time that was not shown."""
        if not self._snapshots:
            return False
        passed = (snapshot.report.at - self._snapshots[-1].report.at).total_seconds()
        return not 0 < passed < 10 * self._interval + 10
