"""A database of the console: connected at the first use, looked at by one poller, closed with the console."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from postroad.admin import examine, notices, open_admin
from postroad.console.poller import Poller
from postroad.errors import InvalidSetting, PostroadError, StoreUnavailable
from postroad.safe_text import without_passwords
from postroad.stores.admin.snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from postroad.admin import Admin, Finding, Notice
    from postroad.stores.admin.snapshot import Snapshot

__all__ = ["Database", "Look", "named"]

T = TypeVar("T")
CONNECTIONS: Final = 4
EXAMINED_SECONDS: Final = 5.0
"""An examination is shown for so long, also to others, before the next one is made."""
ANSWER_SECONDS: Final = 3.0
"""A page of several databases waits so long for each of them."""
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)=(?P<url>[\w+]+:.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
_RESERVED: Final = frozenset({"static", "sign-in", "sign-out"})


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What one look at a database showed, or why it could not be looked at."""

    snapshot: Snapshot | None
    before: Snapshot | None
    """The one before it, for rates."""
    error: str | None = None
    fragments: dict[Any, str] = field(default_factory=dict)
    """What was rendered of it, for all viewers who see the same."""

    @property
    def notices(self) -> Sequence[Notice]:
        """What needs attention."""
        return () if self.snapshot is None else notices(self.snapshot.report)

    @property
    def problems(self) -> Sequence[Notice]:
        """What is wrong."""
        return [each for each in self.notices if each.problem]


class Examination(NamedTuple):
    """What doctor found, and when."""

    at: datetime
    findings: Sequence[Finding]


class Database:
    """One database, by the name that its pages have."""

    def __init__(self, name: str, url: str, *, schema: str) -> None:
        open_admin(url, schema=schema)  # which does not connect yet: a URL that can't be used is refused at once
        self.name = name
        self.url = url
        self.schema = schema
        self.poller: Poller[Look] = Poller(self._look)
        self.doctor: Poller[Examination] = Poller(self._examine, seconds=EXAMINED_SECONDS)
        self._admin: Admin | None = None
        self._opening = asyncio.Lock()
        self._late: set[asyncio.Task[Any]] = set()
        """What has not answered in time, until it does."""

    async def admin(self) -> Admin:
        """The connected `Admin`. Raises StoreUnavailable and the like, and the next call tries again."""
        async with self._opening:
            if self._admin is None:
                admin = open_admin(self.url, schema=self.schema, connections=CONNECTIONS)
                self._admin = await admin.__aenter__()
            return self._admin

    async def in_time(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns. Raises StoreUnavailable if that takes too long, and at once until it has ended: it is not
        canceled, because that takes an answer of the database, too.
        """
        if not self._late:
            task = asyncio.ensure_future(ask())
            if (await asyncio.wait([task], timeout=ANSWER_SECONDS))[0]:
                return task.result()
            self._late.add(task)
            task.add_done_callback(self._ended)
        raise StoreUnavailable(f"the database has not answered within {ANSWER_SECONDS:g} seconds")

    def _ended(self, late: asyncio.Task[Any]) -> None:
        self._late.discard(late)
        if not late.cancelled():
            late.exception()  # which is not reported as one that was never retrieved

    async def look(self) -> Look:
        """The latest look, if there is one in time."""
        try:
            return await self.in_time(self.poller.latest)
        except StoreUnavailable as error:
            return Look(None, None, str(error))

    def forget(self) -> None:
        """Have the next page see the database as it is now, such as after a change."""
        self.poller.forget()
        self.doctor.forget()

    async def close(self) -> None:
        """End all streams, and disconnect."""
        await self.poller.close()
        for late in self._late:
            late.cancel()
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.__aexit__(None, None, None)

    async def _examine(self, _: Examination | None) -> Examination:
        return Examination(datetime.now(UTC), await examine(self.url, schema=self.schema))

    async def _look(self, last: Look | None) -> Look:
        before = None if last is None else last.snapshot
        try:
            return Look(await take_snapshot(await self.admin()), before)
        except PostroadError as error:
            return Look(None, None, without_passwords(str(error)))


def named(given: str | Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """The URLs by their names: as given, as NAME=URL, or else the database's own. Raises InvalidSetting."""
    if isinstance(given, str):
        given = [given]
    pairs = list(given.items()) if hasattr(given, "items") else [_pair(each) for each in given]
    found: dict[str, str] = {}
    for name, url in pairs:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise InvalidSetting(f"database has the name {name!r}; it must be letters, digits, '_', '-' and '.'")
        if name in found:
            raise InvalidSetting(f"two databases have the name {name!r}; give them names: NAME=URL")
        found[name] = url
    if not found:
        raise InvalidSetting("database is empty; give at least one URL")
    return found


def _pair(text: str) -> tuple[str, str]:
    if matched := _NAMED.fullmatch(text):
        return matched["name"], matched["url"]
    last = urlsplit(text).path.rstrip("/").rpartition("/")[2].partition(".")[0]
    name = re.sub(r"[^\w.-]", "-", last).strip("-._")
    return (name if _NAME.fullmatch(name) and name not in _RESERVED else "database"), text
