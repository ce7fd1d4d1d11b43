"""Publishes a lane's messages wave by wave, through outages of the broker.

- A key's next message is published only after the one before it was confirmed. One that is refused or deferred holds
  back the later messages of its key.
- A publisher that is `in_order` sees to that by itself: it gets a page in one call. What that leaves without an answer
  is published in waves, as for any other.
- Each refusal becomes a decision before the next wave is published.
- In an outage messages wait, and no attempt is counted. Messages that break the connection again and again, or that the
  publisher fails on, are published in halves until the one at fault is found: it is refused, and the others go on.
- No wave begins in the last fifth of the lane's lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad import events
from postroad.brokers.guilty import find_guilty
from postroad.errors import BrokerUnavailable, LeaseLost, Refusal
from postroad.lifecycle import State
from postroad.message import StoredMessage, any_unread, new_id
from postroad.relay.breaker import STOPPED_IN_OUTAGE
from postroad.relay.deferred import split
from postroad.relay.derived import Death, dead_letter, without_dead_letter
from postroad.relay.outcome import Interrupted, Outcome
from postroad.relay.owned_lane import LeaseInDoubt
from postroad.relay.waves import in_waves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroad.listeners import Listeners
    from postroad.relay.breaker import Breaker
    from postroad.relay.deferred import BlockedKeys, DeferredMessages
    from postroad.relay.epochs import EpochPublisher
    from postroad.relay.owned_lane import OwnedLane
    from postroad.relay.progress import LaneProgress
    from postroad.relay.refusals import Refusals
    from postroad.stores.base import Claimed, Deferred

__all__ = ["LanePublisher", "is_being_cancelled"]

SUSPECTED_AFTER: Final = 3
"""How often the same messages may break the connection before they are published in halves, and how often a single
message may before it is refused. From the second time on they are published alone, because lanes share a connection.
"""


class _Fault(NamedTuple):
    """Why messages are suspected."""

    reason: str
    breaks_connection: bool = False
    """They are published alone, because lanes share a connection."""
    error: BaseException | None = None
    """What the publisher raised, if it was no outage."""


_Suspects = tuple[Sequence[StoredMessage], _Fault]


class LanePublisher:
    """Publishes for one lane."""

    def __init__(
        self,
        breaker: Breaker,
        epochs: EpochPublisher,
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
        self._epochs = epochs
        self._owned = owned
        self._progress = progress
        self._deferred = deferred
        self._refusals = refusals
        self._listeners = listeners
        self._dead_letter_topic = dead_letter_topic
        self._stopping = stopping
        self._publishing: asyncio.Task[object] | None = None
        """The task to cancel when the broker is not waited for any longer."""
        self._waves: Callable[[Sequence[StoredMessage]], Sequence[Sequence[StoredMessage]]]
        if breaker.in_order:  # it may leave the second message of a key in a wave, even if the two need no order
            self._waves = in_waves
        elif deferred.ordered:
            self._waves = partial(in_waves, ordering_key=deferred.ordering_key)
        else:
            self._waves = lambda messages: [messages]

    def give_up(self) -> None:
        """Wait no longer for the broker. May be called again while the publisher is still being cancelled."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()

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
            if self._breaker.in_order and not any_unread(messages):
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
            outcome.confirm_all_but_refused(chain.from_iterable(published))

    async def publish_copies(self, copies: Sequence[StoredMessage], outcome: Outcome) -> None:
        """Publish copies of messages that died in other sinks, until each is confirmed or refused; `publish` says what
        happens when the relay is being stopped.
        """
        if self._stopping.is_set():
            outcome.interrupted = Interrupted("stopped; what was confirmed is saved")
            return
        try:
            await self._publish_again(copies, await self._publish_wave(copies, outcome), outcome)
            outcome.confirm_all_but_refused(copies)
        except Interrupted as interrupted:
            outcome.interrupted = interrupted

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
        failure = await self._publish_wave(messages, outcome, checked=True)
        if failure is None:
            if not outcome.refused:
                return ()
            outcome.confirm_in_order(messages)
        answered = [message for message in messages if outcome.is_answered(message)]
        await self._decide(answered, outcome, blocked_keys, claimed)
        return [message for message in messages if not outcome.is_answered(message)]

    # -- one wave ----------------------------------------------------------------------------------------------------

    async def _publish_wave(
        self, messages: Sequence[StoredMessage], outcome: Outcome, *, alone: bool = False, checked: bool = False
    ) -> BaseException | None:
        """Publish in one call, and note the answers. Returns the outage or error that has left messages without one.

        `checked`: none of them was too large to be read.
        Raises Interrupted when stopped in an outage, or by `give_up`, and LeaseLost when the destination has fenced the
        lane.
        """
        if not checked and any_unread(messages):
            messages = outcome.refuse_unread(messages)
        if not messages:
            return None
        # Not asyncio.timeout, which costs a lane with small pages a tenth of its time.
        self._publishing = task = asyncio.current_task()
        try:
            publisher = self._epochs.publisher
            refusals = await self._breaker.publish(messages, publisher, self._owned, self._stopping, alone=alone)
        except BrokerUnavailable as outage:
            outcome.note_outage(messages, outage)
            if self._stopping.is_set():  # the breaker probes no more, so this call can't know when to go on
                raise Interrupted(STOPPED_IN_OUTAGE) from outage
            return outage
        except (LeaseInDoubt, LeaseLost, Interrupted):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                outcome.note_cancelled(error)
                if not self._stopping.is_set():
                    raise
                raise Interrupted("the broker did not confirm in time; what it had confirmed is saved") from error
            # Neither a refusal nor an outage, and this task was not cancelled: nothing is known of any message.
            outcome.unanswered.update(message.position for message in messages)
            return error
        finally:
            self._publishing = None
            # A publisher may have cancelled this task and caught that without `uncancel`, as older libraries do. Later,
            # `is_being_cancelled` and TaskGroups would take errors for cancellations.
            while task is not None and task.cancelling():
                task.uncancel()
        # A publisher of the user's may return None for none.
        outcome.refused.update([(refusal.position, refusal) for refusal in refusals or ()])
        return None

    async def _publish_again(
        self, messages: Sequence[StoredMessage], failure: BaseException | None, outcome: Outcome
    ) -> None:
        """After a failed call, publish what has no answer until each message is confirmed or refused."""
        suspects = await self._until_suspected(messages, failure, outcome)
        if suspects is None:
            return

        async def send(part: Sequence[StoredMessage], fault: _Fault) -> _Suspects | None:
            failure = await self._publish_wave(part, outcome, alone=fault.breaks_connection)
            left = await self._until_suspected(part, failure, outcome, suspected=fault.breaks_connection)
            if left is None:
                outcome.confirm_all_but_refused(part)  # should another part be interrupted, this must be known
            return left

        def refuse(message: StoredMessage, fault: _Fault) -> None:
            outcome.refused[message.position] = Refusal(message.position, fault.reason, error=fault.error)

        await find_guilty(*suspects, send=send, refuse=refuse)

    async def _until_suspected(
        self,
        messages: Sequence[StoredMessage],
        failure: BaseException | None,
        outcome: Outcome,
        *,
        suspected: bool = False,
    ) -> _Suspects | None:
        """Publish what has no answer until each message has one. Returns those of which one must be at fault, because
        they fail together again and again; None if there are none.
        """
        enough = 1 if suspected and len(messages) > 1 else SUSPECTED_AFTER
        failures = 0
        while failure is not None:
            messages = [message for message in messages if not outcome.is_answered(message)]
            if not isinstance(failure, BrokerUnavailable):
                return self._suspect(messages, _Fault(f"the publisher failed: {failure!r}", error=failure))
            answered = bool(failure.confirmed or failure.refusals)
            failures = failures + 1 if failure.suspicious and not answered else 0
            suspected = suspected or failures > 0
            if failures == enough:
                await self._breaker.wait_closed(self._stopping)  # an outage without these is not their fault
                return self._suspect(messages, _Fault(f"it breaks the connection: {failure}", breaks_connection=True))
            failure = await self._publish_wave(messages, outcome, alone=suspected)
        return None

    def _suspect(self, messages: Sequence[StoredMessage], fault: _Fault) -> _Suspects:
        if len(messages) > 1:
            lease, reason = self._progress.lease, fault.reason
            event = events.MessagesSuspected(lease.sink, lease.lane, messages=len(messages), reason=reason)
            self._listeners.emit(event.caused_by(fault.error))
        return messages, fault

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

        A copy that is refused is not retried, for the message itself is in the log, with that reason too. But a death
        whose copy was interrupted is forgotten: the message is published again, dies again, and then there is another
        copy.
        """
        died = [
            message
            for message in wave
            if (deferred := outcome.deferred.get(message.position)) and deferred.state is State.DEAD
        ]
        lease, copies = self._progress.lease, Outcome()
        letters = [_letter(each, outcome.deferred[each.position], lease.sink, topic) for each in died]
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
                deferred = outcome.deferred[message.position]
                outcome.deferred[message.position] = without_dead_letter(deferred, topic, refusal.reason)
                self._listeners.emit(
                    events.DeadLetterRefused(lease.sink, lease.lane, id=message.id, topic=topic, reason=refusal.reason)
                )


def _letter(message: StoredMessage, deferred: Deferred, sink: str, topic: str) -> StoredMessage:
    death = Death(sink, deferred.error_kept or "", deferred.attempts, datetime.now(UTC))
    return dead_letter(message, death, id=new_id(), topic=topic)


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled, as against a CancelledError that came from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
