"""A Kafka record as a delivery: CloudEvents in both modes, and records without them.

A foreign record gets the attributes of a CloudEvent. Its id is made of topic, partition, offset and time: the time
tells it from a record of a topic of the same name that was deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from postroad.brokers.base import Delivery
from postroad.brokers.foreign import is_event, type_of
from postroad.brokers.kafka.records import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Reader", "Record"]

_LENGTH: Final = len(CONTENT_TYPE)


class Record(Protocol):
    """What is used of the client's Message."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


class Reader:
    """Reads the records of a cluster for one consumer."""

    def __init__(self, types: Sequence[str] = (), *, foreign: bool = True) -> None:
        """`types` are those that the consumer takes, all if empty. `foreign`: whether it takes foreign records."""
        self._types = frozenset(types)
        self._foreign = foreign
        self.cluster = ""
        """The id of the cluster, as soon as it is known."""

    def delivery(self, record: Record, session: object, *, redelivered: bool | None) -> Delivery:
        """The record as it is handed to a consumer."""
        value, offset = record.value(), record.offset() or 0
        try:
            headers = _headers(record.headers())
        except (UnicodeDecodeError, ValueError) as error:
            reason = f"the names of its headers are no UTF-8: {error}"
            return Delivery(session=session, tag=offset, body=value or b"", unreadable=reason, original=record)
        key, unreadable = _key(record.key()), None
        content_type = headers.pop(CONTENT_TYPE, None)
        if not is_event(headers, content_type):
            headers |= self._attributes(record, headers, key)
            unreadable = None if self._foreign else "it is no CloudEvent, and foreign is 'dead_letter'"
        return Delivery(
            session=session,
            tag=offset,
            body=value or b"",
            headers=headers,
            content_type="" if value is None else content_type,
            key=key,
            redelivered=redelivered,
            unreadable=unreadable,
            original=record,
        )

    def skipped_type(self, delivery: Delivery) -> str | None:
        """The type of the message, if no handler of the consumer takes it."""
        if not self._types or delivery.unreadable is not None:
            return None
        found = type_of(delivery)
        return None if found is None or found in self._types else found

    def _attributes(self, record: Record, headers: dict[str, str], key: str | None) -> dict[str, str]:
        topic = record.topic() or ""
        attributes = {
            "ce_specversion": "1.0",
            "ce_id": f"{topic}/{record.partition()}/{record.offset()}@{record.timestamp()[1]}",
            "ce_source": f"kafka://{self.cluster}",
            "ce_type": headers.get("type") or topic,
        }
        return attributes if key is None else attributes | {"ce_partitionkey": key}


def _headers(found: Any) -> dict[str, str]:
    """Of headers with the same name, the last. What is no UTF-8 is replaced: see the original for the bytes."""
    headers = {}
    for name, value in found or ():
        key = CONTENT_TYPE if len(name) == _LENGTH and name.lower() == CONTENT_TYPE else name
        try:
            headers[key] = value.decode() if value else ""  # without `errors`, which takes twice as long
        except UnicodeDecodeError:
            headers[key] = value.decode(errors="replace")
    return headers


def _key(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return key.hex() if "\0" in text else text
