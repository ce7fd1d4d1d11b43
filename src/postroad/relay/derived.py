"""Messages that are published in another form than they have in the log: dead letters and rewound messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from postroad.message import StoredMessage, new_id

if TYPE_CHECKING:
    from postroad.stores.base import Claimed, Deferred

__all__ = ["REWIND_HEADER", "dead_letter", "rewound"]

REWIND_HEADER: Final = "postroad-rewind"


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


def dead_letter(message: StoredMessage, deferred: Deferred, sink: str, topic: str) -> StoredMessage:
    """A copy for the dead-letter topic: with an id of its own, without a key, and with the reason in its headers."""
    why = {
        "postroad-dead-id": str(message.id),
        "postroad-dead-topic": message.topic,
        "postroad-dead-type": message.type,
        "postroad-dead-sink": sink,
        "postroad-dead-reason": deferred.error_kept or "",
        "postroad-dead-attempts": str(deferred.attempts),
        "postroad-dead-at": datetime.now(UTC).isoformat(),
    }
    if message.key is not None:
        why["postroad-dead-key"] = message.key
    return msgspec.structs.replace(
        message, id=new_id(), topic=topic, key=None, headers_json=_with_headers(message, why)
    )


def _with_headers(message: StoredMessage, more: dict[str, str]) -> str:
    try:
        headers = message.all_headers
    except msgspec.MsgspecError:  # perhaps the reason why it is dead; or they were too large to be read
        headers = {"source": "postroad"}
    return msgspec.json.encode(headers | more).decode()
