"""What became of the messages of one page, or of one claim. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad.brokers.base import Confirmed
from postroad.errors import PostroadError, Refusal
from postroad.message import LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from postroad.errors import BrokerUnavailable
    from postroad.message import StoredMessage
    from postroad.stores.base import Deferred

__all__ = ["Interrupted", "Outcome"]

TOO_LARGE: Final = (
    f"it is too large to be read: a payload may have {LARGEST_PAYLOAD_OF_ALL:,} bytes, "
    f"headers {LONGEST_HEADERS:,} and a content type {LONGEST_NAME}"
)


class Interrupted(PostroadError):
    """The relay is being stopped, and some messages have no answer from the broker."""


class Outcome(msgspec.Struct):
    """What is known is noted here as soon as it is known, so that no confirm is forgotten when the relay is stopped."""

    unsure_through: int = 0
    """Messages up to this position may have been published before, by an owner that did not save its cursor."""
    skipped: Collection[int] = frozenset()
    """Messages that an operator has skipped or poisoned: they are not published."""
    confirmed: set[int] = msgspec.field(default_factory=set)
    """Names every confirmed message only after an interruption. Otherwise each message that is not refused, deferred,
    held or skipped is confirmed, named here or not.
    """
    refused: dict[int, Refusal] = msgspec.field(default_factory=dict)
    deferred: dict[int, Deferred] = msgspec.field(default_factory=dict)
    """The decision about each refused message."""
    held: set[int] = msgspec.field(default_factory=set)
    """They wait for an earlier message of their key."""
    unanswered: set[int] = msgspec.field(default_factory=set)
    """They were sent at least once without an answer, so the broker may have them whatever it answered later."""
    interrupted: Interrupted | None = None
    """Why publishing ended before every message had an answer."""

    def confirm_all_but_refused(self, messages: Iterable[StoredMessage]) -> None:
        """The broker has answered about all of these messages: those that it did not refuse are confirmed."""
        self.confirmed.update(each.position for each in messages if each.position not in self.refused)

    def confirm_in_order(self, messages: Iterable[StoredMessage]) -> None:
        """A publisher that is `in_order` has answered: of each key, what is in front of a refused message is confirmed,
        and what is behind it has no answer.
        """
        stopped: set[str | None] = set()
        for message in messages:
            if message.position in self.refused:
                stopped.add(message.key)
            elif message.key is None or message.key not in stopped:
                self.confirmed.add(message.position)

    def note_outage(self, messages: Sequence[StoredMessage], outage: BrokerUnavailable) -> None:
        """Note the answers that came before the outage."""
        self.confirmed |= outage.confirmed
        self.refused.update((refusal.position, refusal) for refusal in outage.refusals)
        self.unanswered.update(each.position for each in messages if not self.is_answered(each))

    def note_cancelled(self, cancelled: BaseException) -> None:
        """Note the confirms that came before a call was cancelled, if the publisher says which."""
        for each in cancelled.args:
            if isinstance(each, Confirmed):
                self.confirmed |= each.positions

    def refuse_unread(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Refuse permanently the messages that were too large to be read; return the others."""
        unread = {message.position for message in messages if message.is_unread}
        if not unread:
            return messages
        self.refused.update((position, Refusal(position, TOO_LARGE, permanent=True)) for position in unread)
        return [message for message in messages if message.position not in unread]

    def is_answered(self, message: StoredMessage) -> bool:
        """Whether the broker has confirmed or refused it, as far as that was noted."""
        return message.position in self.confirmed or message.position in self.refused

    def is_unsure(self, message: StoredMessage) -> bool:
        """Whether the broker may have the message although it refuses it now."""
        return message.position <= self.unsure_through or message.position in self.unanswered

    def is_dealt_with(self, message: StoredMessage) -> bool:
        """Whether it is confirmed, deferred or skipped. A refusal without a decision is none of these."""
        if message.position in self.skipped:
            return True
        return message.position in self.confirmed or message.position in self.deferred or message.position in self.held
