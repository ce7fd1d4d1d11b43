"""A message as an entry of a stream: CloudEvents attributes as fields `ce_…`, and the payload as `data`. Pure.

There is no CloudEvents binding for Redis; the fields are named as Kafka's binding names its headers. A tombstone has no
field `data`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from postroad.brokers.cloudevents import CannotEncode, time_of, wrap
from postroad.brokers.redis.resp import bulk, command
from postroad.brokers.redis.scripts import ADD, TRIM
from postroad.brokers.routing import RoutingKey
from postroad.message import SLOTS, StoredMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.redis.settings import PublisherSettings

__all__ = ["CONTENT_TYPE", "DATA", "Batch", "Entries", "partition_name"]

PREFIX: Final = "ce_"
DATA: Final = "data"
CONTENT_TYPE: Final = "content-type"
MOST_FIELDS: Final = 1000
"""The script that adds several messages can't pass more than a few thousand arguments on to a command."""

_DATA: Final = bulk(DATA.encode())
_TYPE_NAME: Final = bulk(CONTENT_TYPE.encode())
_NAMES: Final = {name: bulk(f"{PREFIX}{name}".encode()) for name in ("id", "time", "type", "subject", "partitionkey")}
_ANY_ID: Final = bulk(b"*")

Fields = tuple[int, bytes]
"""How many names and values there are, and all of them, encoded."""


class Batch(NamedTuple):
    """Messages that one command adds: one, or several of one key, of which Redis takes none behind a refused one."""

    stream: str
    messages: list[StoredMessage]
    fields: list[Fields]


class Entries:
    """Makes entries, by the template of the stream and the form of messages."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._settings = settings
        self._mode = settings.envelope
        self._template = RoutingKey(settings.stream, "stream")
        self._trims = settings.trim == "all"
        self._max_age = None if settings.max_age is None else int(settings.seconds("max_age") * 1000)

    def stream_of(self, message: StoredMessage) -> str:
        """The stream of a message. Raises CannotEncode when the message lacks what the template names."""
        name = self._template.of(message)
        partitions = self._settings.partitions
        return name if partitions is None else partition_name(name, message.slot * partitions // SLOTS)

    def fields_of(self, message: StoredMessage) -> Fields:
        """The fields of a message. Raises CannotEncode."""
        if self._mode == "binary":
            return _binary_fields(message)
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        fields = _encoded(headers)
        if content_type or not fields[0]:  # Redis takes no entry without fields
            fields = _with(fields, CONTENT_TYPE, content_type.encode())
        return fields if message.is_tombstone and not body else _with(fields, DATA, body)

    # -- commands ----------------------------------------------------------------------------------------------------

    def options(self, now_ms: int) -> list[bytes]:
        """The options of XADD between the stream and the id."""
        options = [b"NOMKSTREAM"] if self._settings.declare == "check" else []
        if self._trims and self._settings.max_length is not None:
            options += b"MAXLEN", b"~", b"%d" % self._settings.max_length
        elif self._trims and self._max_age is not None:
            options += b"MINID", b"~", b"%d" % max(0, now_ms - self._max_age)
        return options

    def command(self, batch: Batch, options: Sequence[bytes]) -> bytes:
        """The command that adds a batch."""
        stream, encoded_options = bulk(batch.stream.encode()), b"".join(map(bulk, options))
        if len(batch.messages) == 1:
            ((count, fields),) = batch.fields
            start = b"*%d\r\n$4\r\nXADD\r\n" % (3 + len(options) + count)
            return b"".join((start, stream, encoded_options, _ANY_ID, fields))
        arguments = 5 + len(options) + sum(1 + count for count, _ in batch.fields)
        start = b"*%d\r\n$4\r\nEVAL\r\n%b$1\r\n1\r\n" % (arguments, bulk(ADD))
        parts = [start, stream, bulk(b"%d" % len(options)), encoded_options]
        for count, fields in batch.fields:
            parts += bulk(b"%d" % count), fields
        return b"".join(parts)

    @property
    def are_trimmed(self) -> bool:
        """Whether `trim_command` has to be sent from time to time."""
        return not self._trims and (self._settings.max_length is not None or self._max_age is not None)

    def trim_command(self, stream: str) -> bytes:
        """The command that deletes what is too old, or too much, and acked."""
        length, age = self._settings.max_length, self._max_age
        return command("EVAL", TRIM, 1, stream, "" if length is None else length, "" if age is None else age)


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
    """The fields that `wrap` makes, much faster: what is the same for many messages is kept, encoded."""
    count, own = _of_own_headers(message.headers_json)
    parts = [own, _constant("type", message.type), _NAMES["id"], b"$36\r\n%b\r\n" % str(message.id).encode()]
    parts += _NAMES["time"], bulk(time_of(message).encode())
    count += 6
    if message.key is not None:
        key = bulk(message.key.encode())
        parts += _NAMES["subject"], key, _NAMES["partitionkey"], key
        count += 4
    if message.payload or not message.is_tombstone:
        parts += _content_type(message.content_type), _DATA, bulk(message.payload)
        count += 4
    return count, b"".join(parts)


@lru_cache(maxsize=1024)
def _of_own_headers(headers_json: str) -> Fields:
    """What `wrap` makes of a message's headers alone."""
    nothing = StoredMessage(0, UUID(int=0), "", None, 0, "", b"", "", headers_json, 0)
    headers = wrap(nothing, "binary", PREFIX).headers
    of_message = {f"{PREFIX}{name}" for name in ("id", "type", "time")}
    return _encoded({name: value for name, value in headers.items() if name not in of_message})


@lru_cache(maxsize=1024)
def _constant(name: str, value: str) -> bytes:
    return _NAMES[name] + bulk(value.encode())


@lru_cache(maxsize=1024)
def _content_type(value: str) -> bytes:
    return _TYPE_NAME + bulk(value.encode())
