"""The id by which a destination can drop what it has stored before: for publishers that can send one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.message import REWIND_HEADER

if TYPE_CHECKING:
    from postroad.message import StoredMessage

__all__ = ["dedupe_id"]


def dedupe_id(message: StoredMessage) -> str:
    """The message's id; for one that was rewound, also the rewind's, because it is meant to be stored once more.

    However often a message is published otherwise, as after an outage, this stays the same.
    """
    if REWIND_HEADER not in message.headers_json:  # a text to look through is much cheaper than headers to decode
        return str(message.id)
    rewind = message.all_headers.get(REWIND_HEADER)
    return f"{message.id}:{rewind}" if rewind else str(message.id)
