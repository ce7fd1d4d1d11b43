"""What people ask of a running system, and what they do about it: one API for the command line and what comes after.

Nothing here knows SQL; the database's part is `stores.operating`. Names are checked here, with the nearest one that
exists, and what can't be done is refused in words: NothingMatches for what is not there, InvalidSetting for what was
asked in a wrong way. Nothing has been changed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import msgspec

from postroad.errors import InvalidSetting, NotFound
from postroad.lifecycle import FINAL, Mover, State, may_move
from postroad.ops.given import did_you_mean
from postroad.stores.leases import NOWHERE, sink_removed, still_served, wrong_destination
from postroad.stores.operating import Count, Filter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from postroad.stores.operating import (
        AuditEntry,
        By,
        Done,
        Found,
        HeldKey,
        KeyCount,
        MessageHistory,
        MessageRow,
        Operating,
        Progressed,
        Rewind,
        SinkReport,
        StatusReport,
    )

__all__ = ["Insights", "KeyFacts", "Listing", "Status", "Totals", "totals"]

_CANDIDATES: Final = 5
"""So many ids are named that a part of one may mean."""
_NEAR: Final = 1000
"""Among the keys of so many messages a similar one is looked for."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All lanes together. A message that two sinks still have to send counts twice."""

    sinks: int
    lanes: int
    pending: int
    exact: bool
    """False: `pending` is an estimate."""
    lag_seconds: float
    """The age of the oldest message that no lane has dealt with; 0 when there is none."""
    oldest_unsent_seconds: float
    """The same, also among those in trouble."""
    failing: int
    held: int
    dead: int
    unroutable: int
    published_last_hour: int


class Status(msgspec.Struct, frozen=True):
    """Everything at a glance."""

    report: StatusReport
    totals: Totals


class Listing(msgspec.Struct, frozen=True):
    """Messages, the newest first, and how many there are."""

    found: Found
    total: Count
    sinks: Sequence[str]


class KeyFacts(NamedTuple):
    """What is known of a key at a sink."""

    sink: str
    waiting: int
    """Its messages that are not published yet, among those that were looked at."""
    known: bool
    similar: str
    """What to say of a key that is not known."""


def totals(sinks: Sequence[SinkReport]) -> Totals:
    """Add up what sinks report."""
    lanes = [lane for sink in sinks for lane in sink.lanes]
    return Totals(
        sinks=len(sinks),
        lanes=len(lanes),
        pending=sum(lane.pending.number for lane in lanes),
        exact=all(lane.pending.exact for lane in lanes),
        lag_seconds=max((lane.lag_seconds for lane in lanes), default=0.0),
        oldest_unsent_seconds=max((lane.oldest_unsent_seconds for lane in lanes), default=0.0),
        failing=sum(lane.failing for lane in lanes),
        held=sum(lane.held for lane in lanes),
        dead=sum(lane.dead for lane in lanes),
        unroutable=sum(lane.unroutable for lane in lanes),
        published_last_hour=sum(lane.published_last_hour for lane in lanes),
    )


class Insights:
    """One database, as people look at it and work with it."""

    def __init__(self, operating: Operating) -> None:
        self._operating = operating

    # -- looking -----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Everything at a glance."""
        report = await self._operating.status()
        return Status(report, totals(report.sinks))

    async def messages(self, which: Filter, limit: int) -> Listing:
        """The newest messages that match, and how many do."""
        sinks = await self._checked(which.sink)
        found = await self._operating.messages(which, limit)
        whole = len(found.messages) < limit and found.looked_back_to is None
        return Listing(found, Count(len(found.messages)) if whole else await self._operating.count(which), sinks)

    async def message(self, id: UUID, *, payload_bytes: int = 0) -> MessageHistory:
        """All that is known of a message."""
        message = await self._operating.message(id, payload_bytes=payload_bytes)
        if message is None:
            raise NotFound(f"there is no message {id}; it was never committed, or it was delivered and deleted since")
        return message

    async def named(self, digits: str) -> UUID:
        """The message whose id these are the digits of, or the beginning or the end."""
        if len(digits) == 32:
            return UUID(digits)
        ids = sorted(map(str, await self._operating.find_ids(digits, _CANDIDATES + 1)))
        if not ids:
            raise NotFound(f"no message's id ends or begins with {digits!r}; give more of it, or all of it")
        if len(ids) > 1:
            more = " and more" if len(ids) > _CANDIDATES else ""
            raise InvalidSetting(
                f"ID is {digits!r}, which may be {', '.join(ids[:_CANDIDATES])}{more}; give more of it"
            )
        return UUID(ids[0])

    async def held_keys(self, sink: str | None) -> Sequence[HeldKey]:
        """The keys that people hold."""
        await self._checked(sink)
        return await self._operating.held_keys(sink)

    async def audit(self, limit: int) -> Sequence[AuditEntry]:
        """What people changed, the last first."""
        return await self._operating.audit(limit)

    async def sink(self, name: str | None) -> str:
        """The sink of this name, or the only one there is."""
        sinks = await self._checked(name)
        if name is not None:
            return name
        if len(sinks) != 1:
            raise InvalidSetting(f"--sink is missing; {did_you_mean('', sinks)}")
        return sinks[0]

    async def _checked(self, sink: str | None) -> Sequence[str]:
        sinks = await self._operating.sinks()
        if sink is not None and sink not in sinks:
            raise InvalidSetting(f"there is no sink {sink!r}; {did_you_mean(sink, sinks)}")
        return sinks

    # -- dead letters ------------------------------------------------------------------------------------------------

    async def dead(self, which: Filter) -> Count:
        """How many dead messages are meant. There must be some, and each that is named must be one."""
        _not_all_by_mistake(which)
        await self._checked(which.sink)
        for id in which.ids:
            await self._at_sinks(id, which.sink, {State.DEAD}, "retried or dropped")
        number = await self._operating.count(_dead(which))
        if number.exact and not number.number:
            raise NotFound("no dead message matches; `postroad dead list` shows all there are")
        return number

    async def retry(self, which: Filter, by: By, progress: Progressed | None = None) -> Done:
        """Let dead messages be tried again, at once and with all their attempts."""
        _not_all_by_mistake(which)
        return await self._operating.retry(_dead(which), by, progress=progress)

    async def drop(self, which: Filter, by: By, progress: Progressed | None = None) -> Done:
        """Give dead messages up."""
        _not_all_by_mistake(which)
        return await self._operating.drop(_dead(which), by, progress=progress)

    # -- one message -------------------------------------------------------------------------------------------------

    async def skippable(self, id: UUID, sink: str | None) -> Sequence[MessageRow]:
        """The message at each sink where it can be skipped; there must be one."""
        return await self._at_sinks(id, sink, _before(State.SKIPPED), "skipped")

    async def poisonable(self, id: UUID, sink: str | None) -> Sequence[MessageRow]:
        """The message at each sink where it can be poisoned; there must be one."""
        return await self._at_sinks(id, sink, _before(State.DEAD), "poisoned")

    async def _at_sinks(self, id: UUID, sink: str | None, states: Collection[State], what: str) -> Sequence[MessageRow]:
        await self._checked(sink)
        message = await self.message(id)
        rows = [each.row for each in message.sinks if sink in {None, each.row.sink}]
        right = [row for row in rows if row.state in states]
        if not right:
            where = ", ".join(f"{row.state} at sink {row.sink!r}" for row in rows) or "in no sink's log yet"
            allowed = " or ".join(state for state in State if state in states)
            raise NotFound(f"message {id} is {where}; only one that is {allowed} can be {what}")
        return right

    async def skip(self, id: UUID, sink: str | None, by: By) -> Done:
        """The message was published by other means: don't publish it."""
        return await self._operating.skip(Filter(ids=(id,), sink=sink), by)

    async def poison(self, id: UUID, sink: str | None, by: By, *, holds_key: bool = False) -> Done:
        """Let the message be dead."""
        return await self._operating.poison(Filter(ids=(id,), sink=sink), by, holds_key=holds_key)

    # -- keys --------------------------------------------------------------------------------------------------------

    async def key(self, key: str, sink: str | None) -> KeyFacts:
        """What is known of a key, before something is done with it."""
        sink = await self.sink(sink)
        found = await self._operating.messages(Filter(sink=sink, key=key), _NEAR)
        waiting = sum(row.state not in FINAL and row.state is not State.DEAD for row in found.messages)
        if found.messages:
            return KeyFacts(sink, waiting, known=True, similar="")
        recent = await self._operating.messages(Filter(sink=sink), _NEAR)
        keys = {row.key for row in recent.messages if row.key is not None}
        return KeyFacts(sink, 0, known=False, similar=did_you_mean(key, keys, show_all=False))

    async def hold(self, sink: str, key: str, by: By) -> Done:
        """From now on nothing of this key is published to the sink."""
        return await self._operating.hold(sink, key, by)

    async def release(self, sink: str | None, key: str, by: By) -> Done:
        """Let a held key's messages go on, in order."""
        sink = await self.sink(sink)
        done = await self._operating.release(sink, key, by)
        if not done.changed:
            held = [each.key for each in await self._operating.held_keys(sink)]
            raise NotFound(f"key {key!r} is not held at sink {sink!r}; {did_you_mean(key, held)}")
        return done

    async def in_trouble(self, sink: str | None, key: str) -> tuple[str, int]:
        """The sink, and how many messages of the key `skip_key` would skip; there must be some."""
        sink = await self.sink(sink)
        number = 0
        for state in (State.RETRYING, State.HELD, State.DEAD):
            number += (await self._operating.count(Filter(sink=sink, key=key, state=state))).number
        if not number:
            raise NotFound(f"no message of key {key!r} is retried, held or dead at sink {sink!r}")
        return sink, number

    async def skip_key(self, sink: str, key: str, by: By) -> Done:
        """Skip what is retried, held or dead of a key."""
        return await self._operating.skip_key(sink, key, by)

    # -- sinks and the log -------------------------------------------------------------------------------------------

    async def pause(self, sink: str, by: By) -> Done:
        """Let all lanes of a sink stand still."""
        return await self._operating.pause(await self.sink(sink), by)

    async def resume(self, sink: str, by: By) -> Done:
        """Let the lanes go on."""
        return await self._operating.resume(await self.sink(sink), by)

    async def movable(self, sink: str, destination: str) -> SinkReport:
        """A sink that could deliver to this destination instead of its own."""
        report, _ = await self._unserved(sink)
        if report.destination == destination:
            raise NotFound(f"sink {sink!r} delivers to {destination} already")
        if destination == NOWHERE:
            raise wrong_destination(sink, report.destination, destination)
        return report

    async def retarget(self, sink: str, destination: str, by: By) -> Done:
        """Let the sink deliver to another destination."""
        return await self._operating.retarget(sink, destination, by)

    async def removable(self, sink: str) -> tuple[SinkReport, bool]:
        """A sink that could be removed, and whether it is the only one."""
        return await self._unserved(sink)

    async def remove_sink(self, sink: str, by: By) -> Done:
        """Forget the sink and what it has not delivered."""
        return await self._operating.remove_sink(sink, by)

    async def _unserved(self, sink: str) -> tuple[SinkReport, bool]:
        await self._checked(sink)
        report = await self._operating.status()
        for each in report.sinks:
            if each.sink == sink and each.relays:
                raise still_served(sink, each.relays)
            if each.sink == sink:
                return each, len(report.sinks) == 1
        raise sink_removed(sink)

    async def would_clean_up(self, older_than: timedelta) -> Count:
        """How many messages `cleanup` would delete now; there must be some."""
        number = await self._operating.would_clean_up(older_than)
        if number.exact and not number.number:
            raise NotFound("nothing is old enough and has reached every sink; nothing to delete")
        return number

    async def cleanup(self, older_than: timedelta, by: By, progress: Progressed | None = None) -> Done:
        """Delete what every sink has had and is older than that."""
        return await self._operating.cleanup(older_than, by, progress=progress)

    async def of_key(self, key: str) -> KeyCount:
        """How many messages of a key there are; there must be some that every sink has had."""
        found = await self._operating.count_of_key(key)
        if not found.delivered:
            left = found.undelivered + found.scheduled
            raise NotFound(
                "no delivered message of that key is in the log"
                + (f"; {left:,} that {'is' if left == 1 else 'are'} not delivered yet will stay" if left else "")
            )
        return found

    async def forget(self, key: str, by: By, progress: Progressed | None = None) -> Done:
        """Delete a key's delivered messages with all that is known of them."""
        return await self._operating.forget(key, by, progress=progress)

    async def would_rewind(self, rewind: Rewind) -> Count:
        """How many messages `rewind` would publish again now; there must be some."""
        number = await self._operating.would_rewind(rewind)
        if number.exact and not number.number:
            raise NotFound(f"nothing that sink {rewind.sink!r} has had matches and is still in the log")
        return number

    async def rewind(self, rewind: Rewind, by: By, progress: Progressed | None = None) -> Done:
        """Have messages published again that the sink has had."""
        return await self._operating.rewind(rewind, by, progress=progress)


def _before(target: State) -> Collection[State]:
    """The states from which an operator may move a message there."""
    return {state for state in State if may_move(state, target, Mover.OPERATOR)}


def _not_all_by_mistake(which: Filter) -> None:
    if which.is_empty and not which.all:
        raise InvalidSetting("that would mean every dead message; say which ones, or --all")


def _dead(which: Filter) -> Filter:
    return msgspec.structs.replace(which, state=State.DEAD, all=False)
