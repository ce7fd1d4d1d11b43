"""Publishes the deferred messages that are due, beside the pages: claim → publish → record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.relay.derived import rewound
from postroad.relay.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.relay.deferred import DeferredMessages
    from postroad.relay.measuring import PageTimer
    from postroad.relay.progress import LaneProgress
    from postroad.relay.publishing import LanePublisher
    from postroad.relay.refusals import Refusals
    from postroad.stores.base import Claimed, Deferred
    from postroad.stores.cursor import PageLimit

__all__ = ["Retries"]


class Retries:
    """The deferred messages of one lane that are published again."""

    def __init__(
        self,
        progress: LaneProgress,
        publisher: LanePublisher,
        deferred: DeferredMessages,
        refusals: Refusals,
        limit: PageLimit,
        *,
        timer: PageTimer,
    ) -> None:
        self._progress = progress
        self._publisher = publisher
        self._deferred = deferred
        self._refusals = refusals
        self._limit = limit
        self._timer = timer

    async def run(self, now: float) -> None:
        """Claim what is due, publish it, and record what became of it.

        Raises Interrupted when the relay is being stopped and messages were left without an answer: they are due again.
        Raises LaneChanged, so that the lane loads again, when messages were locked when they would have been due.
        """
        await self._progress.settle(now=True)
        if self._deferred.must_reload(now):
            raise self._progress.lease.locked()
        claimed = (await self._progress.claim(self._limit.rows, self._limit.payload_bytes)).claimed
        if not claimed:
            return
        messages = [each.message if each.rewind is None else rewound(each) for each in claimed]
        outcome = Outcome()
        began = self._timer.start()
        await self._publisher.publish(messages, outcome, {}, {each.message.position: each for each in claimed})
        # A message that is published again after a rewind was delivered long ago: its age says nothing.
        self._timer.stop([each.message for each in claimed if each.rewind is None], outcome, began)
        await self._record(claimed, outcome)
        if outcome.interrupted is not None:
            raise outcome.interrupted

    async def _record(self, claimed: Sequence[Claimed], outcome: Outcome) -> None:
        deferred: list[Deferred] = []
        published: list[int] = []
        freed: set[str] = set()
        unblocked: list[str] = []
        for each in claimed:
            message = each.message
            key = self._deferred.ordering_key(message)
            if not self._deferred.ordered and key is not None and self._deferred.blocked_keys.get(key):
                freed.add(key)  # a message that an operator rewound has a key, and later messages of it wait
            if message.position in outcome.held:
                deferred.append(self._deferred.put_back(each, due=False))
            elif decision := outcome.deferred.get(message.position):
                deferred.append(decision)
            elif outcome.interrupted is None or message.position in outcome.confirmed:
                published.append(message.position)
                if key is not None and self._deferred.ordered:
                    freed.add(key)
                if route := self._deferred.confirmed(each):
                    unblocked.append(route)
            else:
                deferred.append(self._deferred.put_back(each, due=True))
        self._refusals.unblocked(unblocked)
        self._deferred.answered(claimed)
        await self._progress.record_claim(deferred, published=published, freed=freed)
