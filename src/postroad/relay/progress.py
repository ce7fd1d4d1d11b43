"""A lane's progress: the cursor, what was decided and is not saved yet, and saving both. No other module of
the relay moves a cursor; `stores/cursor.py` computes where to.

- The cursor passes a message only after the broker has confirmed it, or in the very transaction that defers it.
- Under load the cursor is saved every `settle_interval`; when the lane has nothing else to do, at once.
- Every write is fenced by the lease as it was loaded or last saved.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from postroad.relay.deferred import unblocked_by
from postroad.stores.base import Tally
from postroad.stores.latency import NUMBER_OF_BUCKETS, count_ages

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.relay.clock import Clock
    from postroad.relay.convoy import Convoy
    from postroad.relay.deferred import DeferredMessages
    from postroad.relay.outcome import Outcome
    from postroad.relay.owned_lane import OwnedLane
    from postroad.stores.base import Claim, Deferred, Held, Lease, Loaded, Store
    from postroad.stores.cursor import Cursor, Page

__all__ = ["Counts", "LaneProgress"]

TALLY_SECONDS: Final = 1.0
"""How often a lane writes down how many messages it has published."""


class Counts(msgspec.Struct):
    """What lanes have done since they were started."""

    published: int = 0
    pages: int = 0
    refused: int = 0
    """Attempts that failed."""
    died: int = 0
    skipped: int = 0
    dropped: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another lane."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LaneProgress:
    """How far one lane has come."""

    def __init__(
        self,
        store: Store,
        convoy: Convoy,
        owned: OwnedLane,
        deferred: DeferredMessages,
        *,
        settle_interval: float,
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        self._store = store
        self._convoy = convoy
        self._deferred_messages = deferred
        self._settle_interval = settle_interval
        self._listeners = listeners
        self._clock = clock
        self._owned = owned
        self.cursor = owned.lease.cursor
        """How far the lane has come, saved or not."""
        self.skipped: Collection[int] = frozenset()
        """Messages that an operator has skipped or poisoned before the lane has read them: they are not published."""
        self.unsure_through = 0
        """Messages up to here may have been published before the lane was loaded: by it, or by an earlier owner."""
        self.counts = Counts()
        self._deferred: list[Deferred] = []
        """Decisions about refused messages, to be saved with the cursor."""
        self._held: list[Held] = []
        """Messages that wait for an earlier one of their key, to be saved with the cursor."""
        self._unsaved = False
        self._saved_at = clock.now()
        self._tallied = Tally(0, 0)
        """The part of `counts` that the database has."""
        self._tallied_at = float("-inf")
        self._latencies = [0] * NUMBER_OF_BUCKETS
        """Of the messages that are not tallied yet."""

    @property
    def lease(self) -> Lease:
        """As it was loaded or last saved: the fence of the next write."""
        return self._owned.lease

    async def load(self, *, by_source: bool) -> Loaded:
        """Begin from what the database has, and forget everything else. Raises what `Store.load` raises."""
        loaded = await self._store.load(self._owned.load_lease(), by_source=by_source)
        self._deferred_messages.loaded(loaded, self._clock.now())
        self._owned.lease = loaded.lease
        self.cursor = loaded.lease.cursor
        self.skipped = loaded.skipped
        self.unsure_through = loaded.log_end
        self._deferred, self._held = [], []
        self._unsaved = False
        self._saved_at = self._clock.now()
        return loaded

    # -- dealing with messages ---------------------------------------------------------------------------------------

    def pass_page(self, page: Page, outcome: Outcome) -> None:
        """Move the cursor past the page; past its beginning only, if publishing it was interrupted. What was deferred
        behind that is read again.
        """
        messages, cursor = page.messages, page.after
        if outcome.interrupted is None:
            self.counts.pages += 1
        else:
            dealt_with = [outcome.is_dealt_with(message) for message in page.messages]
            beginning = dealt_with.index(False) if False in dealt_with else len(dealt_with)
            messages, cursor = page.messages[:beginning], page.cursor_after(beginning)
        published = len(messages)
        if outcome.held or outcome.deferred or outcome.skipped:
            published -= self._keep_unpublished(messages, outcome)
        self.counts.published += published
        count_ages(self._latencies, messages, published, time.time_ns() // 1000)
        self._unsaved = self._unsaved or bool(messages)
        self.cursor = cursor

    def pass_empty(self, page: Page) -> None:
        """Move the cursor past a page without messages."""
        self.cursor = page.after

    def _keep_unpublished(self, messages: Sequence[StoredMessage], outcome: Outcome) -> int:
        """Keep what was decided about messages until it is saved; how many were held, deferred or skipped."""
        held = [message for message in messages if message.position in outcome.held]
        decided = [outcome.deferred[each.position] for each in messages if each.position in outcome.deferred]
        skipped = sum(message.position in outcome.skipped for message in messages)
        self._held += [(message.position, self._deferred_messages.ordering_key(message)) for message in held]
        self._deferred += decided
        self.counts.skipped += skipped
        return len(held) + len(decided) + skipped

    def follow(self, cursor: Cursor, carried: int) -> None:
        """Another program has carried so many messages: move the cursor past them."""
        self.counts.published += carried
        self.counts.pages += 1
        self._unsaved = True
        self.cursor = cursor

    # -- saving ------------------------------------------------------------------------------------------------------

    async def settle(self, *, now: bool = False, with_tally: bool = False) -> None:
        """Save the cursor and what was decided, if that is due; `now`: even before `settle_interval` has passed. The
        tally is saved with it once a second; `with_tally`: this time, too. Raises LaneChanged, and saves nothing, when
        the lane's row is not as it was loaded.
        """
        began = self._clock.now()
        if not now and began - self._saved_at < self._settle_interval:
            return
        cursor, saved = self.cursor, self.lease.cursor
        moved = self._unsaved or (cursor.position, cursor.late_position) != (saved.position, saved.late_position)
        counts, tallied, tally = self.counts, self._tallied, None
        if with_tally or began - self._tallied_at >= TALLY_SECONDS:
            published, refused = counts.published - tallied.published, counts.refused - tallied.refused
            measured = tuple(self._latencies) if any(self._latencies) else None
            tally = Tally(published, refused, measured) if published or refused else None
        if not (moved or (now and tally)):
            return
        if self._deferred or self._held:
            await self._record(self._deferred, held=self._held, tally=tally)
            self._deferred, self._held = [], []
        else:
            self._owned.lease = await self._convoy.settle(self.lease, cursor, tally)
        if tally is not None:
            self._tallied, self._tallied_at = Tally(counts.published, counts.refused), began
            self._latencies = [0] * NUMBER_OF_BUCKETS
        self._unsaved = False
        self._saved_at = self._clock.now()
        if self._listeners.measure:
            self._listeners.settled(self.lease.sink, self._saved_at - began)

    async def claim(self, limit: int, payload_bytes: int) -> Claim:
        """Claim the deferred messages that are due."""
        routes = self._deferred_messages.unblocked_routes
        claim = await self._store.claim(self.lease, limit, payload_bytes=payload_bytes, routes=routes)
        self._owned.lease = claim.lease
        self._deferred_messages.claimed(claim, self._clock.now())
        return claim

    async def record_claim(
        self, deferred: Sequence[Deferred], *, published: Sequence[int], freed: Collection[str]
    ) -> None:
        """Save what became of the claimed messages."""
        await self._record(deferred, published=published, freed=freed)
        self.counts.published += len(published)

    async def _record(
        self,
        deferred: Sequence[Deferred],
        *,
        held: Sequence[Held] = (),
        published: Sequence[int] = (),
        freed: Collection[str] = (),
        tally: Tally | None = None,
    ) -> None:
        freed = unblocked_by(deferred).union(freed)
        recorded = await self._store.record(
            self.lease, self.cursor, deferred=deferred, held=held, unsure_through=self.unsure_through,
            published=published, freed=freed, tally=tally,
        )  # fmt: skip
        self._owned.lease = recorded.lease
        self._deferred_messages.recorded(deferred, freed, recorded, self._clock.now())
