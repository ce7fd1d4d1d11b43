"""A message as an entry of a stream: CloudEvents attributes as fields `ce_…`, and the payload as `data`. Pure.

There is no CloudEvents binding for Redis; the fields are named as Kafka's binding names its headers. A tombstone has no
field `data`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from postroad.brokers.cloudevents import CannotEncode, time_of, wrap
from postroad.brokers.redis.resp import bulk, command
from postroad.brokers.redis.scripts import ADD, TRIM
from postroad.brokers.routing import RoutingKey
from postroad.message import SLOTS, StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.brokers.redis.settings import PublisherSettings

__all__ = ["CONTENT_TYPE", "DATA", "MOST_DELETED", "Entries", "Entry", "partition_name"]

PREFIX: Final = "ce_"
DATA: Final = "data"
CONTENT_TYPE: Final = "content-type"
MOST_FIELDS: Final = 1000
"""The script that adds several messages can't pass more than a few thousand arguments on to a command."""

MOST_DELETED: Final = 100_000
"""So many entries a trim deletes at most: for about 15 ms the server does nothing else."""

Fields = tuple[int, bytes]
"""How many names and values there are, and all of them, encoded."""


class Entry(msgspec.Struct, gc=False):
    """A message of a page, and those of its key that follow it: one command adds them, and Redis takes none behind a
    refused one. A message that is alone has no list of others, because a page has a thousand of these.
    """

    stream: str
    message: StoredMessage
    fields: bytes
    count: int
    """How many names and values there are in `fields`."""
    followers: list[Entry] | None = None

    @property
    def all(self) -> list[Entry]:
        """This one, and those that follow it."""
        return [self, *(self.followers or ())]


class Entries:
    """Makes entries, by the template of the stream and the form of messages."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._settings = settings
        self._mode = settings.envelope
        self._template = RoutingKey(settings.stream, "stream")
        self.stream_of: Callable[[StoredMessage], str]
        """The stream of a message. Raises CannotEncode when the message lacks what the template names."""
        self.stream_of = self._template.of if settings.partitions is None else self._partition_of
        self._trims = settings.trim == "all"
        self._max_age = None if settings.max_age is None else int(settings.seconds("max_age") * 1000)

    def fields_of(self, message: StoredMessage) -> Fields:
        """The fields of a message. Raises CannotEncode."""
        if self._mode == "binary" and (message.payload or not message.is_tombstone):
            return _binary_fields(message)
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        fields = _encoded(headers)
        if content_type or not fields[0]:  # Redis takes no entry without fields
            fields = _with(fields, CONTENT_TYPE, content_type.encode())
        return fields if message.is_tombstone and not body else _with(fields, DATA, body)

    def _partition_of(self, message: StoredMessage) -> str:
        partitions = self._settings.partitions
        assert partitions is not None  # noqa: S101 - or this is not called
        return partition_name(self._template.of(message), message.slot * partitions // SLOTS)

    # -- commands ----------------------------------------------------------------------------------------------------

    def options(self, now_ms: int) -> tuple[bytes, ...]:
        """The options of XADD between the stream and the id."""
        options = (b"NOMKSTREAM",) if self._settings.declare == "check" else ()
        if self._trims and self._settings.max_length is not None:
            return *options, b"MAXLEN", b"~", b"%d" % self._settings.max_length
        if self._trims and self._max_age is not None:
            return *options, b"MINID", b"~", b"%d" % max(0, now_ms - self._max_age)
        return options

    def entry_of(self, message: StoredMessage, stream: str) -> Entry:
        """The entry for a message. Raises CannotEncode."""
        count, fields = self.fields_of(message)
        return Entry(stream, message, fields, count)

    def command(self, entry: Entry, options: tuple[bytes, ...]) -> bytes:
        """The command that adds an entry, and those that follow it."""
        if entry.followers is None:
            return _start_of_xadd(entry.stream, options, entry.count) + entry.fields
        before = b"".join(map(bulk, (*options, b"*")))
        parts = [bulk(b"EVAL"), bulk(ADD), bulk(b"1"), bulk(entry.stream.encode())]
        for each in entry.all:
            parts += bulk(b"%d" % (len(options) + 1 + each.count)), before, each.fields
        arguments = 4 + sum(len(options) + 2 + each.count for each in entry.all)
        return b"*%d\r\n%b" % (arguments, b"".join(parts))

    @property
    def are_trimmed(self) -> bool:
        """Whether `trim_command` has to be sent from time to time."""
        return not self._trims and (self._settings.max_length is not None or self._max_age is not None)

    def trim_command(self, stream: str) -> bytes:
        """The command that deletes what is too old, or too much, and acked."""
        length, age = self._settings.max_length, self._max_age
        limits = ("" if length is None else length, "" if age is None else age, MOST_DELETED)
        return command("EVAL", TRIM, 1, stream, *limits)


def partition_name(stream: str, partition: int) -> str:
    """The name of one partition of a stream."""
    return f"{stream}.{partition}"


def _encoded(headers: dict[str, str]) -> Fields:
    pairs = {name: value for name, value in headers.items() if name != CONTENT_TYPE}
    if DATA in pairs:
        raise CannotEncode(f"it has a header {DATA!r}, which is the name of the field with the payload; rename it")
    if len(pairs) > MOST_FIELDS:
        raise CannotEncode(f"it has {len(pairs):,} headers, and at most {MOST_FIELDS:,} can be sent")
    return 2 * len(pairs), b"".join(bulk(each.encode()) for pair in pairs.items() for each in pair)


def _with(fields: Fields, name: str, value: bytes) -> Fields:
    count, encoded = fields
    return count + 2, b"".join((encoded, bulk(name.encode()), bulk(value)))


def _binary_fields(message: StoredMessage) -> Fields:
    """The fields that `wrap` makes, much faster: all that is the same for many messages is kept, encoded."""
    key, payload = message.key, message.payload
    count, template = _template(message.headers_json, message.type, message.content_type, key is not None)
    id, time = str(message.id).encode(), time_of(message)
    if key is None:
        return count, template % (id, time, len(payload), payload)
    subject = key.encode()
    return count, template % (id, time, len(subject), subject, len(subject), subject, len(payload), payload)


@lru_cache(maxsize=1024)
def _template(headers_json: str, type: str, content_type: str, has_key: bool) -> Fields:
    """The fields of all such messages, with gaps for id, time, key and payload."""
    gaps = {"id": b"$36\r\n%b\r\n", "time": b"$27\r\n%b\r\n"}
    if has_key:
        gaps |= {"subject": b"$%d\r\n%b\r\n", "partitionkey": b"$%d\r\n%b\r\n"}
    message = StoredMessage(0, UUID(int=0), "", "" if has_key else None, 0, type, b"", content_type, headers_json, 0)
    headers = wrap(message, "binary", PREFIX).headers
    for name in gaps:
        del headers[PREFIX + name]
    count, common = _with(_encoded(headers), CONTENT_TYPE, content_type.encode())
    parts = [bulk(f"{PREFIX}{name}".encode()) + gap for name, gap in gaps.items()]
    parts += common.replace(b"%", b"%%"), bulk(DATA.encode()), b"$%d\r\n%b\r\n"
    return count + 2 * len(gaps) + 2, b"".join(parts)


@lru_cache(maxsize=1024)
def _start_of_xadd(stream: str, options: tuple[bytes, ...], count: int) -> bytes:
    """All before the fields, of which there are so many names and values."""
    start = b"*%d\r\n$4\r\nXADD\r\n" % (3 + len(options) + count)
    return b"".join((start, bulk(stream.encode()), *map(bulk, options), bulk(b"*")))
