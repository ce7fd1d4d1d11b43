"""One lane: read → publish → settle, and in between what is due of its messages in trouble. Only this module moves a
cursor.

The rules, each of which has cost somebody messages:

- The cursor moves past a message only after the broker has confirmed it, or in the very transaction that defers it.
- The next page is read while this one is published, and dropped whenever this one was not dealt with whole.
- After any error of the store, and whenever the lane's row is not as it was loaded, everything known is forgotten and
  loaded again: the database may have gone back to before what is remembered here.
- What can't be saved is not published: loading writes, so an owner that can't write finds out before it publishes.
- A lane that has nothing to write asks whether its row is still as it was loaded: people change it, and take effect.
- No wave begins that the lane's lease may not outlast, as far as is known here.
- One task does it all, so whether a message must wait for an earlier one of its key is decided where it is sent.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

from postroad import events
from postroad.errors import LaneChanged, LeaseLost, LogNotReadable, LogReset, NotMigrated, StoreUnavailable
from postroad.listeners import LogListener, tell
from postroad.relay.breaker import FIRST_PAUSE
from postroad.relay.deferred import DeferredMessages, freed_by
from postroad.relay.derived import rewound
from postroad.relay.dispatch import FEW_ROUTES, Dispatch
from postroad.relay.owned_lane import LeaseInDoubt
from postroad.relay.sending import Interrupted, Outcome, Sending, is_being_cancelled
from postroad.stores.base import Tally, line
from postroad.stores.cursor import PageLimit

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Sequence

    from postroad.brokers.base import Publisher
    from postroad.config import RelaySettings
    from postroad.message import StoredMessage
    from postroad.relay.breaker import Breaker
    from postroad.relay.clock import Clock
    from postroad.relay.idle import IdleWait
    from postroad.relay.owned_lane import OwnedLane
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Claimed, Deferred, Held, Store
    from postroad.stores.cursor import Cursor, Page

__all__ = ["Lane"]

SAVING_SECONDS = 2
NOTING_SECONDS = 1.0
PAUSED_SECONDS = 1.0


class Lane:
    """Carries the messages of one lane until it is stopped or loses the lane."""

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        owned: OwnedLane,
        settings: RelaySettings,
        *,
        rest: IdleWait,
        breaker: Breaker,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        lease = owned.lease
        self._store = store
        self._owned = owned
        self._rest = rest
        self._settings = settings
        self._clock = clock
        self._ordered = settings.ordering != "none"
        self._by_source = settings.ordering == "source-key"
        self._limit = PageLimit(settings.batch_size, settings.page_bytes)
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        sending = Sending(
            (lease.sink, lease.lane),
            publisher,
            breaker,
            stopping=self._stopping,
            check_lease=owned.check,
        )
        self._deferred_messages = DeferredMessages(
            retry,
            on_dead=settings.on_dead,
            line=line if self._by_source else attrgetter("key"),
            ordered=self._ordered,
            longest_pause=settings.seconds("outage_backoff"),
            drops_unroutable=settings.unroutable == "drop",
            route_timeout=None if settings.route_timeout is None else settings.seconds("route_timeout"),
        )
        self._dispatch = Dispatch(
            (lease.sink, lease.lane),
            sending,
            self._deferred_messages,
            ordered=self._ordered,
            dead_letter_topic=settings.dead_letter_topic,
            max_attempts=getattr(retry, "max_attempts", "as many as the policy allows"),
        )
        self._first_pause = min(FIRST_PAUSE, settings.seconds("outage_backoff"))
        self._confirmed = lease.cursor
        self._deferred: list[Deferred] = []
        self._held: list[Held] = []
        """Decided and not yet saved, like the cursor; and those that merely wait for an earlier one of their key."""
        self._unsaved = False
        self._saved_at = clock.now()
        self._ahead: Collection[int] = frozenset()
        """Not read yet, and not to be sent: a person has decided about them."""
        self._paused = False
        self._unsure_through = 0
        """Messages up to here may have been published before they were loaded: by this lane, or by an earlier owner."""
        self._noted = Tally(0, 0)
        """What the database knows of what was done here."""
        self._noted_at = float("-inf")
        self.published = 0
        self.pages = 0
        self.skipped = 0
        self.lost = False

    @property
    def name(self) -> str:
        """The lane as logs call it."""
        return f"{self._owned.lease.sink}/{self._owned.lease.lane}"

    @property
    def refused(self) -> int:
        """How many attempts have failed."""
        return self._dispatch.refused

    @property
    def died(self) -> int:
        """How many messages will not be tried again."""
        return self._dispatch.died

    @property
    def dropped(self) -> int:
        """How many messages were dropped, because no consumer has subscribed to them."""
        return self._dispatch.dropped

    @property
    def waits_for(self) -> Collection[str]:
        """The routes that messages wait for."""
        return self._deferred_messages.routes

    @property
    def waits(self) -> bool:
        """Messages in trouble are left."""
        return self._deferred_messages.waits

    async def run(self, *, until_empty: bool = False) -> None:
        """Carry messages until told to stop, or until there are none left that may go now."""
        self._running = asyncio.create_task(self._run(until_empty=until_empty), name=f"postroad lane {self.name}")
        try:
            await self._running
        except asyncio.CancelledError:
            if not self._stopping.is_set() or is_being_cancelled():
                raise
            tell(
                events.LaneStopped(*self._where, reason="the database did not answer in time; the last pages go again")
            )
        if self._owned.lost and not self.lost:
            self._lose(self._owned.lease.lost())

    def _lose(self, lost: LeaseLost) -> None:
        self.lost = True
        tell(events.LaneLost(*self._where, reason=str(lost)))

    async def _run(self, *, until_empty: bool) -> None:
        pause = self._first_pause
        while not self._stopping.is_set():
            try:
                await self._load()
                pause = self._first_pause
                if self._paused:
                    tell(events.LanePaused(*self._where))
                    return None if until_empty else await self._stand_still()
                return await self._carry(until_empty=until_empty)
            except (LaneChanged, LeaseInDoubt) as reason:
                await self._owned.wait_until_decided(self._stopping)
                if not self._owned.lost:
                    tell(events.LaneReloaded(*self._where, reason=str(reason)))
            except LogReset:
                raise  # it ends the relay: an operator must decide, before positions pass the cursor
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                tell(events.StoreUnavailable(*self._where, reason=str(error), retry_ms=pause * 1000))
                await self._clock.wait(self._stopping, pause)
                pause = min(2 * pause, self._settings.seconds("outage_backoff"))
            except LeaseLost as lost:
                await self._owned.wait_until_decided(self._stopping)
                if self._owned.lose():
                    self._lose(lost)
                    return None
        return None

    def stop(self) -> None:
        """Take no new page; the one under way may still be confirmed."""
        self._stopping.set()
        self._rest.wake()

    def give_up(self) -> None:
        """Wait no longer for the broker; and for the database, only as long as saving the cursor should take."""
        if self._publishing is not None:
            self._publishing.cancel()
        if self._running is not None:
            asyncio.get_running_loop().call_later(SAVING_SECONDS, self._running.cancel)

    # -- read → publish → settle -------------------------------------------------------------------------------------

    async def _carry(self, *, until_empty: bool) -> None:
        reading = self._begin_reading(self._confirmed)
        try:
            while not self._stopping.is_set():
                if self._deferred_messages.due_in(self._clock.now()) == 0:
                    await self._serve_trouble()
                page = await reading
                if page.version > self._owned.lease.version:
                    await self._settle(self._confirmed, now=True)
                    raise self._owned.lease.changed()
                if self._deferred_messages.load_again(self._clock.now()):
                    await self._settle(self._confirmed, now=True)
                    raise self._owned.lease.locked()
                if page.messages:
                    self._rest.found_work()
                    reading = self._begin_reading(page.after)
                    with self._told(page):
                        await self._publish(page)
                    await self._settle(page.after)
                    continue
                await self._settle(page.after, now=True)
                if not page.before.catching_up:  # else only the late rows have come to an end
                    due_in = self._deferred_messages.due_in(self._clock.now())
                    if until_empty and due_in != 0:
                        return await self._settle(page.after, now=True, last=True)
                    if due_in != 0:
                        await self._rest.wait(self._deferred_messages.looks_in(self._clock.now()))
                reading = self._begin_reading(page.after)
            await self._settle(self._confirmed, now=True, last=True)
        except Interrupted as interrupted:
            tell(events.LaneStopped(*self._where, reason=str(interrupted)))
            await self._settle(self._confirmed, now=True, last=True)
        finally:
            reading.cancel()
            await asyncio.wait((reading,), timeout=SAVING_SECONDS)
            if reading.done() and not reading.cancelled():
                reading.exception()  # whatever it was, nobody needs that page any more

    def _begin_reading(self, cursor: Cursor) -> asyncio.Task[Page]:
        return asyncio.create_task(self._read(cursor))

    async def _read(self, cursor: Cursor) -> Page:
        await asyncio.sleep(0)  # who publishes the page before goes first
        return await self._store.read(self._owned.lease, cursor, self._limit)

    async def _publish(self, page: Page) -> None:
        """Have every message of the page dealt with. Raises Interrupted with its beginning noted."""
        outcome = Outcome(self._unsure_through)
        messages = self._without_ahead(page.messages, outcome) if self._ahead else page.messages
        try:
            await self._until_given_up(self._dispatch.send(messages, outcome, self._deferred_messages.heads, {}))
        except Interrupted:
            dealt_with = [outcome.is_dealt_with(message) for message in page.messages]
            beginning = dealt_with.index(False) if False in dealt_with else len(dealt_with)
            self._note(page.messages[:beginning], outcome, page.cursor_after(beginning))
            raise
        self.pages += 1
        self._note(page.messages, outcome, page.after)

    def _without_ahead(self, messages: Sequence[StoredMessage], outcome: Outcome) -> Sequence[StoredMessage]:
        """What a person has decided about is passed over."""
        outcome.skipped.update(message.position for message in messages if message.position in self._ahead)
        return [message for message in messages if message.position not in outcome.skipped]

    async def _until_given_up(self, publishing: Coroutine[None, None, None]) -> None:
        """Wait for confirms, unless the relay is being stopped and its grace has ended."""
        if self._stopping.is_set():
            publishing.close()
            raise Interrupted("stopped; what was confirmed is saved")
        self._publishing = asyncio.create_task(publishing)
        try:
            await self._publishing
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            raise Interrupted("the broker did not confirm in time; what it had confirmed is saved") from None
        finally:
            self._publishing = None

    # -- messages in trouble -----------------------------------------------------------------------------------------

    async def _serve_trouble(self) -> None:
        """Claim what is due, send it, and record what became of it."""
        await self._settle(self._confirmed, now=True)
        limit = self._limit
        claim = await self._store.claim(
            self._owned.lease, limit.rows, payload_bytes=limit.payload_bytes, routes=self._deferred_messages.released
        )
        self._owned.lease = claim.lease
        self._deferred_messages.claimed(claim, self._clock.now())
        if not claim.claimed:
            return
        messages = [each.message if each.rewind is None else rewound(each) for each in claim.claimed]
        claimed = {each.message.position: each for each in claim.claimed}
        outcome = Outcome()
        try:
            await self._until_given_up(self._dispatch.send(messages, outcome, {}, claimed))
        except Interrupted:
            await self._record_claim(claim.claimed, outcome, whole=False)
            raise
        await self._record_claim(claim.claimed, outcome, whole=True)

    async def _record_claim(self, claimed: Sequence[Claimed], outcome: Outcome, *, whole: bool) -> None:
        deferred: list[Deferred] = []
        published: list[int] = []
        freed: set[str] = set()
        back: list[str] = []
        for each in claimed:
            message = each.message
            key = self._deferred_messages.line(message)
            if not self._ordered and key is not None and self._deferred_messages.heads.get(key):
                freed.add(key)  # what a person rewound has a key, and its followers wait for it
            if message.position in outcome.held:
                deferred.append(self._deferred_messages.given_back(each, due=False))
            elif deferral := outcome.deferred.get(message.position):
                deferred.append(deferral)
            elif whole or message.position in outcome.confirmed:
                published.append(message.position)
                if key is not None and self._ordered:
                    freed.add(key)
                if route := self._deferred_messages.confirmed(each):
                    back.append(route)
            else:
                deferred.append(self._deferred_messages.given_back(each, due=True))
        self._tell_back(back)
        self._deferred_messages.answered(claimed)
        await self._record(self._confirmed, deferred, published=published, freed=freed)
        self.published += len(published)

    # -- the cursor --------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Begin from what the database says, and nothing else."""
        self._rest.end_nap()
        loaded = await self._store.load(self._owned.load_lease(), by_source=self._by_source)
        self._owned.lease = loaded.lease
        self._deferred_messages.loaded(loaded, self._clock.now())
        self._confirmed = loaded.lease.cursor
        self._ahead = loaded.ahead
        self._paused = loaded.paused
        self._unsure_through = loaded.log_end
        self._deferred, self._held = [], []
        self._unsaved = False
        self._saved_at = self._clock.now()

    def _note(self, messages: Sequence[StoredMessage], outcome: Outcome, cursor: Cursor) -> None:
        """So far the page was dealt with; what was deferred behind that will be read again."""
        held = [message for message in messages if message.position in outcome.held] if outcome.held else ()
        decided = [outcome.deferred[each.position] for each in messages if each.position in outcome.deferred]
        skipped = sum(message.position in outcome.skipped for message in messages) if outcome.skipped else 0
        self._held += [(message.position, self._deferred_messages.line(message)) for message in held]
        self._deferred += decided
        self.skipped += skipped
        self.published += len(messages) - len(held) - len(decided) - skipped
        self._unsaved = self._unsaved or bool(messages)
        self._confirmed = cursor

    async def _settle(self, cursor: Cursor, *, now: bool = False, last: bool = False) -> None:
        """Save the cursor: at once when the lane has nothing else to do, every so often under load."""
        self._confirmed = cursor
        saved, time = self._owned.lease.cursor, self._clock.now()
        moved = self._unsaved or (cursor.position, cursor.late_position) != (saved.position, saved.late_position)
        tally = self._tally(time, last=last) if now or moved else None
        if not (moved or tally) or not (now or time - self._saved_at >= self._settings.seconds("settle_interval")):
            return
        if self._deferred or self._held:
            await self._record(cursor, self._deferred, held=self._held, last=last)
            self._deferred, self._held = [], []
        else:
            self._owned.lease = await self._store.settle(self._owned.lease, cursor, tally)
            self._has_noted(tally, time)
        self._unsaved = False
        self._saved_at = self._clock.now()

    def _tally(self, time: float, *, last: bool = False) -> Tally | None:
        """What was done since that was last noted; at most once a second, unless this is the last chance."""
        if not last and time - self._noted_at < NOTING_SECONDS:
            return None
        published, refused = self.published - self._noted.published, self.refused - self._noted.refused
        return Tally(published, refused) if published or refused else None

    def _has_noted(self, tally: Tally | None, time: float) -> None:
        if tally is not None:
            self._noted = Tally(self._noted.published + tally.published, self._noted.refused + tally.refused)
            self._noted_at = time

    async def _record(
        self,
        cursor: Cursor,
        deferred: Sequence[Deferred],
        *,
        held: Sequence[Held] = (),
        published: Sequence[int] = (),
        freed: Collection[str] = (),
        last: bool = False,
    ) -> None:
        freed, time = freed_by(deferred).union(freed), self._clock.now()
        tally = self._tally(time, last=last)
        recorded = await self._store.record(
            self._owned.lease, cursor, deferred=deferred, held=held, unsure_through=self._unsure_through,
            published=published, freed=freed, tally=tally,
        )  # fmt: skip
        self._owned.lease = recorded.lease
        self._has_noted(tally, time)
        self._deferred_messages.recorded(deferred, freed, recorded, self._clock.now())

    async def _check(self) -> None:
        """Find out about what people have changed, although there is nothing to write."""
        if not self._stopping.is_set() and not await self._store.is_current(self._owned.lease):
            raise self._owned.lease.changed()

    async def _stand_still(self) -> None:
        """Wait until somebody changes the lane, such as who resumes its sink."""
        while not self._stopping.is_set():
            await self._clock.wait(self._stopping, min(PAUSED_SECONDS, self._settings.seconds("max_idle_backoff")))
            await self._check()

    # -- the log -----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> tuple[str, int]:
        return self._owned.lease.sink, self._owned.lease.lane

    def _tell_back(self, routes: Sequence[str]) -> None:
        if len(routes) > FEW_ROUTES:
            tell(events.RoutesUnblocked(*self._where, routes=len(routes), some=routes[:FEW_ROUTES]))
            return
        for route in routes:
            tell(events.RouteUnblocked(*self._where, route=route))

    @contextmanager
    def _told(self, page: Page) -> Iterator[None]:
        """For those who read about every page: what was taken, and what became of it."""
        if not LogListener().wants(events.PageTaken):
            yield
            return
        began, published, refused, held = self._clock.now(), self.published, self.refused, len(self._held)
        tell(events.PageTaken(*self._where, size=len(page.messages), position=page.after.position))
        try:
            yield
        finally:
            refused = self.refused - refused
            tell(
                events.PagePublished(
                    *self._where,
                    published=self.published - published,
                    refused=refused,
                    held=len(self._held) - held,
                    duration_ms=(self._clock.now() - began) * 1000,
                    position=self._confirmed.position,
                )
            )
