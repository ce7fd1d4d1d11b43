"""An entry of a stream as a delivery: CloudEvents in both modes, and entries of other programs. Pure.

A foreign entry gets the attributes of a CloudEvent. Its id is made of the stream and the entry's own id, which begins
with the time. Without a field `data`, all its fields are its body, as a JSON object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from postroad.brokers.base import Delivery
from postroad.brokers.foreign import is_event, type_of
from postroad.brokers.redis.entries import CONTENT_TYPE, DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Entry", "Reader"]


class Entry(NamedTuple):
    """An entry as Redis gave it: its fields are names and values in turn."""

    stream: str
    id: str
    fields: Sequence[bytes]


class Reader:
    """Reads entries for one consumer."""

    def __init__(self, types: Sequence[str] = (), *, foreign: bool = True) -> None:
        """`types` are those that the consumer takes, all if empty. `foreign`: whether it takes foreign entries."""
        self._types = frozenset(types)
        self._foreign = foreign

    def delivery(self, entry: Entry, session: object, tag: int, *, redelivered: bool) -> Delivery:
        """The entry as it is handed to a consumer."""
        fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
        body = fields.pop(DATA.encode(), None)
        unreadable = None
        try:
            headers = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
        except UnicodeDecodeError as error:
            headers, unreadable = {}, f"the names of its fields are no UTF-8: {error}"
        content_type = headers.pop(CONTENT_TYPE, None)
        if unreadable is None and not is_event(headers, content_type):
            unreadable = None if self._foreign else "it is no CloudEvent, and foreign is 'dead_letter'"
            if body is None and content_type is None:
                body, content_type = msgspec.json.encode(headers), "application/json"
            headers |= _attributes(entry, headers)
        return Delivery(
            session=session,
            tag=tag,
            body=body or b"",
            headers=headers,
            content_type="" if body is None else content_type,
            redelivered=redelivered,
            unreadable=unreadable,
            original=entry,
        )

    def skipped_type(self, delivery: Delivery) -> str | None:
        """The type of the message, if no handler of the consumer takes it."""
        if not self._types or delivery.unreadable is not None:
            return None
        found = type_of(delivery)
        return None if found is None or found in self._types else found


def _attributes(entry: Entry, headers: dict[str, str]) -> dict[str, str]:
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": f"{entry.stream}/{entry.id}",
        "ce_source": f"redis:{entry.stream}",
        "ce_type": headers.get("type") or entry.stream,
    }
    return attributes | {"ce_partitionkey": headers["key"]} if "key" in headers else attributes
