"""Publishes a lane's messages wave by wave, through outages of the broker.

- A key's next message is published only after the one before it was confirmed. One that is refused or deferred holds
  back the later messages of its key.
- A publisher that is `in_order` sees to that by itself: it gets a page in one call. What that leaves without an answer
  is published in waves, as for any other.
- Each refusal becomes a decision before the next wave is published.
- In an outage messages wait, and no attempt is counted. Messages that break the connection again and again, or that the
  publisher fails on, are published in halves until the one at fault is found: it is refused, and the others go on.
- No wave is published unless the lane's lease lasts, as far as this relay knows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import BrokerUnavailable, Refusal
from postroad.lifecycle import State
from postroad.relay.breaker import STOPPED_IN_OUTAGE
from postroad.relay.deferred import split
from postroad.relay.derived import dead_letter
from postroad.relay.outcome import Interrupted, Outcome
from postroad.relay.owned_lane import LeaseInDoubt
from postroad.relay.waves import in_waves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.relay.breaker import Breaker
    from postroad.relay.deferred import BlockedKeys, DeferredMessages
    from postroad.relay.owned_lane import OwnedLane
    from postroad.relay.progress import LaneProgress
    from postroad.relay.refusals import Refusals
    from postroad.stores.base import Claimed

__all__ = ["LanePublisher", "is_being_cancelled"]

SUSPECTED_AFTER: Final = 3
"""How often the same messages may break the connection before they are published in halves, and how often a single
message may before it is refused. From the second time on they are published alone, because lanes share a connection.
"""

_headers = attrgetter("headers_json")


class LanePublisher:
    """Publishes for one lane."""

    def __init__(
        self,
        breaker: Breaker,
        *,
        owned: OwnedLane,
        progress: LaneProgress,
        deferred: DeferredMessages,
        refusals: Refusals,
        listeners: Listeners,
        dead_letter_topic: str | None,
        stopping: asyncio.Event,
    ) -> None:
        self._breaker = breaker
        self._owned = owned
        self._progress = progress
        self._deferred = deferred
        self._refusals = refusals
        self._listeners = listeners
        self._dead_letter_topic = dead_letter_topic
        self._stopping = stopping
        self._deadline: asyncio.Timeout | None = None
        self._waves: Callable[[Sequence[StoredMessage]], Sequence[Sequence[StoredMessage]]]
        if breaker.in_order:  # it may leave the second message of a key in a wave, even if the two need no order
            self._waves = in_waves
        elif deferred.ordered:
            self._waves = partial(in_waves, ordering_key=deferred.ordering_key)
        else:
            self._waves = lambda messages: [messages]

    def give_up(self) -> None:
        """Wait no longer for the broker. May be called again while the publisher is still being cancelled."""
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def publish(
        self,
        messages: Sequence[StoredMessage],
        outcome: Outcome,
        blocked_keys: BlockedKeys,
        claimed: Mapping[int, Claimed],
    ) -> None:
        """Return when each message is confirmed, deferred or held, or when the relay is being stopped and can't wait
        any longer: then `outcome.interrupted` says why, and `outcome.confirmed` is complete.

        A page that was begun is finished also when the relay is being stopped: the first wave has messages from all
        over the page, so a page that is left after it would almost all be published again.
        """
        if self._stopping.is_set():
            outcome.interrupted = Interrupted("stopped; what was confirmed is saved")
            return
        if outcome.skipped or blocked_keys:
            messages = self._without_held(messages, outcome, blocked_keys)
        published: list[Sequence[StoredMessage]] = []
        try:
            async with asyncio.timeout(None) as self._deadline:
                if self._breaker.in_order and all(map(_headers, messages)):
                    messages = await self._publish_in_order(messages, outcome, blocked_keys, claimed)
                for each in self._waves(messages):
                    wave = self._without_held(each, outcome, blocked_keys) if outcome.refused else each
                    refused = len(outcome.refused)
                    failure = await self._publish_wave(wave, outcome)
                    if failure is not None:
                        await self._publish_again(wave, failure, outcome)
                    if len(outcome.refused) > refused:
                        await self._decide(wave, outcome, blocked_keys, claimed)
                    published.append(wave)
        except Interrupted as interrupted:
            outcome.interrupted = interrupted
        except (TimeoutError, asyncio.CancelledError):
            if not self._stopping.is_set():
                raise
            outcome.interrupted = Interrupted("the broker did not confirm in time; what it had confirmed is saved")
        finally:
            self._deadline = None
            # A publisher may have cancelled this task and caught that without `uncancel`, as older libraries do. In
            # later pages, `is_being_cancelled` and TaskGroups would take errors for cancellations.
            while (task := asyncio.current_task()) is not None and task.cancelling():
                task.uncancel()
        if outcome.interrupted is not None:
            outcome.confirm_all_but_refused(chain.from_iterable(published))

    def _without_held(
        self, messages: Sequence[StoredMessage], outcome: Outcome, blocked_keys: BlockedKeys
    ) -> Sequence[StoredMessage]:
        """Without those that must wait for an earlier message of their key, or that an operator has skipped."""
        if outcome.skipped:
            messages = [message for message in messages if message.position not in outcome.skipped]
        free, held = split(messages, blocked_keys, self._deferred.ordering_key)
        outcome.held.update(message.position for message in held)
        return free

    async def _publish_in_order(
        self,
        messages: Sequence[StoredMessage],
        outcome: Outcome,
        blocked_keys: BlockedKeys,
        claimed: Mapping[int, Claimed],
    ) -> Sequence[StoredMessage]:
        """Publish all in one call. Returns those that have no answer: they are behind a refused message of their key,
        or the call has failed.
        """
        failure = await self._publish_wave(messages, outcome)
        if failure is None:
            if not outcome.refused:
                return ()
            outcome.confirm_in_order(messages)
        answered = [message for message in messages if outcome.is_answered(message)]
        await self._decide(answered, outcome, blocked_keys, claimed)
        return [message for message in messages if not outcome.is_answered(message)]

    # -- one wave ----------------------------------------------------------------------------------------------------

    async def _publish_wave(
        self, messages: Sequence[StoredMessage], outcome: Outcome, *, alone: bool = False
    ) -> BaseException | None:
        """Publish in one call, and note the answers. Returns the outage or error that has left messages without one.

        Raises Interrupted when stopped in an outage.
        """
        if not all(map(_headers, messages)):
            messages = outcome.refuse_unread(messages)
        if not messages:
            return None
        try:
            refusals = await self._breaker.publish(messages, self._owned, self._stopping, alone=alone)
        except BrokerUnavailable as outage:
            outcome.note_outage(messages, outage)
            if self._stopping.is_set():  # the breaker probes no more, so this call can't know when to go on
                raise Interrupted(STOPPED_IN_OUTAGE) from outage
            return outage
        except (LeaseInDoubt, Interrupted):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            # Neither a refusal nor an outage, and this task was not cancelled: nothing is known of any message.
            outcome.unanswered.update(message.position for message in messages)
            return error
        # A publisher of the user's may return None for none.
        outcome.refused.update([(refusal.position, refusal) for refusal in refusals or ()])
        return None

    async def _publish_again(
        self,
        messages: Sequence[StoredMessage],
        failure: BaseException | None,
        outcome: Outcome,
        *,
        suspected: bool = False,
    ) -> None:
        """After a failed call, publish what has no answer until each message is confirmed or refused."""
        enough = 1 if suspected and len(messages) > 1 else SUSPECTED_AFTER
        failures = 0
        while failure is not None:
            messages = [message for message in messages if not outcome.is_answered(message)]
            if not isinstance(failure, BrokerUnavailable):
                return await self._take_apart(messages, f"the publisher failed: {failure!r}", outcome)
            answered = bool(failure.confirmed or failure.refusals)
            failures = failures + 1 if failure.suspicious and not answered else 0
            suspected = suspected or failures > 0
            if failures == enough:
                await self._breaker.wait_closed(self._stopping)  # an outage without these is not their fault
                return await self._take_apart(messages, f"it breaks the connection: {failure}", outcome, suspected=True)
            failure = await self._publish_wave(messages, outcome, alone=suspected)
        return None

    async def _take_apart(
        self, messages: Sequence[StoredMessage], reason: str, outcome: Outcome, *, suspected: bool = False
    ) -> None:
        """Publish in halves, recursively: the message that fails alone is refused, and the others go on."""
        if len(messages) == 1:
            outcome.refused[messages[0].position] = Refusal(messages[0].position, reason)
            return
        lease = self._progress.lease
        self._listeners.emit(events.MessagesSuspected(lease.sink, lease.lane, messages=len(messages), reason=reason))
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            failure = await self._publish_wave(part, outcome, alone=suspected)
            await self._publish_again(part, failure, outcome, suspected=suspected)
            outcome.confirm_all_but_refused(part)  # should the other half be interrupted, this must be known

    # -- refusals ----------------------------------------------------------------------------------------------------

    async def _decide(
        self,
        wave: Sequence[StoredMessage],
        outcome: Outcome,
        blocked_keys: BlockedKeys,
        claimed: Mapping[int, Claimed],
    ) -> None:
        self._refusals.decide(wave, outcome, blocked_keys, claimed)
        if self._dead_letter_topic is not None:
            await self._publish_dead_letters(wave, outcome, self._dead_letter_topic)

    async def _publish_dead_letters(self, wave: Sequence[StoredMessage], outcome: Outcome, topic: str) -> None:
        """Publish copies of the messages that died in this wave, before that is recorded: after a crash in between
        they are published twice.

        A copy that is refused is not retried, for the message itself is in the log. But a death whose copy was
        interrupted is forgotten: the message is published again, dies again, and then there is another copy.
        """
        died = [
            message
            for message in wave
            if (deferred := outcome.deferred.get(message.position)) and deferred.state is State.DEAD
        ]
        lease, copies = self._progress.lease, Outcome()
        letters = [dead_letter(each, outcome.deferred[each.position], lease.sink, topic) for each in died]
        try:
            await self._publish_again(letters, await self._publish_wave(letters, copies), copies)
        except (Interrupted, asyncio.CancelledError):
            outcome.confirm_all_but_refused(wave)
            for message in died:
                if not copies.is_answered(message):
                    del outcome.deferred[message.position], outcome.refused[message.position]
            raise
        for message in died:
            if refusal := copies.refused.get(message.position):
                self._listeners.emit(
                    events.DeadLetterRefused(lease.sink, lease.lane, id=message.id, topic=topic, reason=refusal.reason)
                )


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled, as against a CancelledError that came from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
