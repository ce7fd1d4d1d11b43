"""Messages that are published in another form than they have in the log: dead letters and rewound messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from postroad.message import REWIND_HEADER, StoredMessage

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from postroad.stores.base import Claimed, Deferred

__all__ = ["Death", "dead_letter", "rewound", "without_dead_letter"]

ROOM_FOR_BOTH: Final = 900
"""Characters of each reason. What the database keeps of an error has room for two of them and the words between."""


def rewound(claimed: Claimed) -> StoredMessage:
    """The message as it was published before, with a header that marks it as published again."""
    message = claimed.message
    if message.is_unread:
        return message
    return msgspec.structs.replace(
        message,
        id=claimed.new_id or message.id,
        headers_json=_with_headers(message, {REWIND_HEADER: claimed.rewind or ""}),
    )


class Death(NamedTuple):
    """Where, why and when a message died."""

    sink: str
    reason: str
    attempts: int
    at: datetime


def dead_letter(message: StoredMessage, death: Death, *, id: UUID, topic: str) -> StoredMessage:
    """A copy of a dead message: with an id of its own, without a key, and with the reason in its headers."""
    why = {
        "postroad-dead-id": str(message.id),
        "postroad-dead-topic": message.topic,
        "postroad-dead-type": message.type,
        "postroad-dead-sink": death.sink,
        "postroad-dead-reason": death.reason,
        "postroad-dead-attempts": str(death.attempts),
        "postroad-dead-at": death.at.isoformat(),
    }
    if message.key is not None:
        why["postroad-dead-key"] = message.key
    return msgspec.structs.replace(message, id=id, topic=topic, key=None, headers_json=_with_headers(message, why))


def without_dead_letter(deferred: Deferred, topic: str, reason: str) -> Deferred:
    """A dead message whose dead letter was refused: its row says so, for operators and for `postroad doctor`."""
    died = (deferred.error or "")[:ROOM_FOR_BOTH]
    error = f"{died}; its dead letter for topic {topic!r} was refused: {reason[:ROOM_FOR_BOTH]}"
    return msgspec.structs.replace(deferred, error=error)


def _with_headers(message: StoredMessage, more: dict[str, str]) -> str:
    try:
        headers = message.all_headers
    except msgspec.MsgspecError:  # perhaps the reason why it is dead; or they were too large to be read
        headers = {"source": "postroad"}
    return msgspec.json.encode(headers | more).decode()
