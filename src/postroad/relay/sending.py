"""Have messages confirmed, through outages; and find the one that is at fault when it is not the broker.

Every message ends confirmed or refused. What is known is noted in the outcome as soon as it is known, so that nothing
confirmed is forgotten when the relay is stopped in the middle.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import BrokerUnavailable, PostroadError, Refusal
from postroad.listeners import tell
from postroad.message import LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_NAME
from postroad.relay.owned_lane import LeaseInDoubt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.base import Publisher
    from postroad.message import StoredMessage
    from postroad.relay.breaker import Breaker
    from postroad.stores.base import Deferred

__all__ = ["Interrupted", "Outcome", "Sending"]

SUSPECTED_AFTER: Final = 3
"""So often the same messages may break a connection that is fine without them before they are taken apart, and so often
a single one before it is refused. From the second time on they go alone, because lanes share a connection.
"""

TOO_LARGE: Final = (
    f"it is too large to be read: a payload may have {LARGEST_PAYLOAD_OF_ALL:,} bytes, "
    f"headers {LONGEST_HEADERS:,} and a content type {LONGEST_NAME}"
)


class Interrupted(PostroadError):
    """The messages were left before all had an answer, because the relay is being stopped."""


class Outcome:
    """What became of the messages of one page, or of one claim.

    Messages up to `unsure_through` may have been published before, by an owner that did not save its cursor.
    """

    __slots__ = ("_unsure_through", "confirmed", "deferred", "held", "refused", "skipped", "unanswered")

    def __init__(self, unsure_through: int = 0) -> None:
        self._unsure_through = unsure_through
        self.confirmed: set[int] = set()
        """Complete only when the sending was interrupted: otherwise all are confirmed that are nothing else."""
        self.refused: dict[int, Refusal] = {}
        self.deferred: dict[int, Deferred] = {}
        """What was decided about each refused one."""
        self.held: set[int] = set()
        """They wait for an earlier message of their key."""
        self.unanswered: set[int] = set()
        """They were sent at least once without an answer, so the broker may have them whatever it said later."""
        self.skipped: set[int] = set()
        """A person has decided about them."""

    def is_answered(self, message: StoredMessage) -> bool:
        """Whether the broker has said something about it, as far as that was noted."""
        return message.position in self.confirmed or message.position in self.refused

    def is_unsure(self, message: StoredMessage) -> bool:
        """Whether the broker may have it although it refuses it now."""
        return message.position <= self._unsure_through or message.position in self.unanswered

    def is_dealt_with(self, message: StoredMessage) -> bool:
        """Whether it is confirmed, deferred or skipped. A refusal that nobody has decided about yet is none of that."""
        if message.position in self.skipped:
            return True
        return message.position in self.confirmed or message.position in self.deferred or message.position in self.held


class Sending:
    """Sends for one lane."""

    def __init__(
        self,
        where: tuple[str, int],
        publisher: Publisher,
        breaker: Breaker,
        *,
        stopping: asyncio.Event,
        check_lease: Callable[[], None],
    ) -> None:
        """`check_lease` is called each time before something is sent, and raises LeaseInDoubt if that must not be."""
        self._where = where
        self._check_lease = check_lease
        self._publisher = publisher
        self._breaker = breaker
        self._turns = breaker.turns
        self._stopping = stopping

    async def send(self, messages: Sequence[StoredMessage], outcome: Outcome, *, suspected: bool = False) -> None:
        """Return when each of them is confirmed or refused. Raises Interrupted when stopped in an outage."""
        enough = 1 if suspected and len(messages) > 1 else SUSPECTED_AFTER
        failures = 0
        messages = _within_limits(messages, outcome)
        while messages:
            await self._until_the_broker_may_be_asked()
            await self._turns.begin(alone=suspected)
            if self._breaker.is_open:  # it went out while this call waited for its turn
                self._turns.end(alone=suspected)
                continue
            try:
                refusals = await self._publish(messages, alone=suspected)
            except BrokerUnavailable as outage:
                self._breaker.trip(outage)
                answered = self._note(messages, outage, outcome)
                if self._stopping.is_set():  # nobody probes any more, so nobody knows when to go on
                    raise Interrupted("stopped in an outage; what was confirmed is saved") from outage
                if answered:
                    messages = [message for message in messages if not outcome.is_answered(message)]
                failures = failures + 1 if outage.suspicious and not answered else 0
                suspected = suspected or failures > 0
                if failures == enough:
                    await self._until_the_broker_may_be_asked()
                    reason = f"it breaks the connection: {outage}"
                    return await self._take_apart(messages, reason, outcome, suspected=True)
            except LeaseInDoubt:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                # Neither a refusal nor an outage, nor did anybody want this to end: nothing is known of any message.
                outcome.unanswered.update(message.position for message in messages)
                return await self._take_apart(messages, f"the publisher failed: {error!r}", outcome)
            else:
                self._breaker.worked()
                if refusals:
                    outcome.refused.update((refusal.position, refusal) for refusal in refusals)
                return None
        return None

    async def _publish(self, messages: Sequence[StoredMessage], *, alone: bool) -> Sequence[Refusal]:
        try:
            self._check_lease()  # last of all: an outage, or another's turn, may have taken long
            return await self._publisher.publish(messages)
        finally:
            self._turns.end(alone=alone)

    async def _take_apart(
        self, messages: Sequence[StoredMessage], reason: str, outcome: Outcome, *, suspected: bool = False
    ) -> None:
        """The one that fails alone is refused; the others go on."""
        if len(messages) == 1:
            outcome.refused[messages[0].position] = Refusal(messages[0].position, reason)
            return
        tell(events.MessagesSuspected(*self._where, messages=len(messages), reason=reason))
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            await self.send(part, outcome, suspected=suspected)
            # Should the other half be interrupted, this one's confirms must be known.
            outcome.confirmed.update(each.position for each in part if each.position not in outcome.refused)

    async def _until_the_broker_may_be_asked(self) -> None:
        if self._breaker.is_open:
            await self._breaker.closed(self._stopping)
            if self._stopping.is_set():
                raise Interrupted("stopped in an outage; what was confirmed is saved")

    def _note(self, messages: Sequence[StoredMessage], outage: BrokerUnavailable, outcome: Outcome) -> bool:
        outcome.confirmed |= outage.confirmed
        outcome.refused.update((refusal.position, refusal) for refusal in outage.refusals)
        outcome.unanswered.update(each.position for each in messages if not outcome.is_answered(each))
        return bool(outage.confirmed or outage.refusals)


def _within_limits(messages: Sequence[StoredMessage], outcome: Outcome) -> Sequence[StoredMessage]:
    """Without those of which there is nothing to send: they are refused for good."""
    unread = {message.position for message in messages if message.is_unread}
    if not unread:
        return messages
    outcome.refused.update((position, Refusal(position, TOO_LARGE, permanent=True)) for position in unread)
    return [message for message in messages if message.position not in unread]


def is_being_cancelled() -> bool:
    """Somebody has cancelled the task that runs this, as against an error of that name that came from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
