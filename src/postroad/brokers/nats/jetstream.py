"""JetStream's API: requests as JSON over a connection, with typed answers. Raises LinkLost or ApiError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from postroad.brokers.nats.answers import Problem  # noqa: TC001 - msgspec reads the types of fields
from postroad.brokers.nats.connection import LinkLost, NoResponders

if TYPE_CHECKING:
    from postroad.brokers.nats.connection import Connection

__all__ = ["ApiError", "ConsumerInfo", "JetStream", "StoredMessage", "StreamInfo"]

NOT_FOUND: Final = frozenset({10014, 10037, 10059})  # consumer, message, stream
_MOST_STREAMS: Final = 1024


class ApiError(Exception):
    """JetStream refuses a request."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.description} ({problem.err_code})")
        self.problem = problem

    @property
    def is_missing(self) -> bool:
        """The stream, the consumer or the message does not exist."""
        return self.problem.err_code in NOT_FOUND


class StreamConfig(msgspec.Struct, frozen=True):
    """What is used of a stream's configuration."""

    name: str = ""
    subjects: tuple[str, ...] = ()
    discard: str = "old"
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    storage: str = "file"
    num_replicas: int = 1
    no_ack: bool = False


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream."""

    config: StreamConfig = StreamConfig()


class Sequences(msgspec.Struct, frozen=True):
    """A place in a stream."""

    stream_seq: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer, and how far it has come."""

    config: dict[str, Any] = {}
    ack_floor: Sequences = Sequences()
    num_ack_pending: int = 0
    """Delivered, and not acked."""
    num_pending: int = 0
    """Not delivered yet."""


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of a stream."""

    subject: str = ""
    seq: int = 0
    hdrs: bytes = b""
    """The whole block of headers."""
    data: bytes = b""


class _Found(msgspec.Struct, frozen=True):
    message: StoredMessage = StoredMessage()


class _Answer(msgspec.Struct, frozen=True):
    error: Problem | None = None


class _Streams(msgspec.Struct, frozen=True):
    total: int = 0
    streams: tuple[StreamInfo, ...] | None = None


class _Names(msgspec.Struct, frozen=True):
    streams: tuple[str, ...] | None = None


T = TypeVar("T")


class JetStream:
    """The API on one connection."""

    def __init__(self, connection: Connection, domain: str | None) -> None:
        self._connection = connection
        self.prefix = "$JS.API" if domain is None else f"$JS.{domain}.API"

    async def streams_for(self, subject: str) -> tuple[str, ...]:
        """The names of the streams that take a subject, or one of those that it matches."""
        return (await self._ask("STREAM.NAMES", {"subject": subject}, _Names)).streams or ()

    async def streams(self, subject: str) -> list[StreamInfo]:
        """The same with their configuration."""
        found: list[StreamInfo] = []
        while len(found) < _MOST_STREAMS:
            page = await self._ask("STREAM.LIST", {"subject": subject, "offset": len(found)}, _Streams)
            found += page.streams or ()
            if not page.streams or len(found) >= page.total:
                break
        return found

    async def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return await self._ask(f"STREAM.INFO.{name}", {}, StreamInfo)

    async def create_stream(self, config: dict[str, Any]) -> StreamInfo:
        """Create a stream, or return it if it exists just so."""
        return await self._ask(f"STREAM.CREATE.{config['name']}", config, StreamInfo)

    async def create_consumer(self, stream: str, config: dict[str, Any]) -> ConsumerInfo:
        """Create a durable consumer, or change it to this configuration."""
        name = config["durable_name"]
        return await self._ask(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}, ConsumerInfo
        )

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """A consumer, and how far it has come."""
        return await self._ask(f"CONSUMER.INFO.{stream}.{name}", {}, ConsumerInfo)

    async def next_message(self, stream: str, number: int, subject: str) -> StoredMessage | None:
        """The first message of a subject with this number or a higher one; None if there is none."""
        try:
            found = await self._ask(f"STREAM.MSG.GET.{stream}", {"seq": number, "next_by_subj": subject}, _Found)
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        return found.message

    async def delete_message(self, stream: str, number: int) -> None:
        """Delete a message, if it is there."""
        try:
            await self._ask(f"STREAM.MSG.DELETE.{stream}", {"seq": number, "no_erase": True}, _Answer)
        except ApiError as error:
            if not error.is_missing:
                raise

    async def unpin(self, stream: str, name: str, group: str) -> None:
        """Let another process become the active one."""
        await self._ask(f"CONSUMER.UNPIN.{stream}.{name}", {"group": group}, _Answer)

    async def _ask(self, what: str, request: dict[str, Any], type: type[T]) -> T:
        body = msgspec.json.encode(request) if request else b""
        try:
            answer = await self._connection.request(f"{self.prefix}.{what}", body)
        except NoResponders:
            raise LinkLost("there is no JetStream for this account and domain, or it has no leader") from None
        try:
            problem = msgspec.json.decode(answer.body, type=_Answer).error
            if problem is None:
                return msgspec.json.decode(answer.body, type=type)
        except ValueError as error:
            raise LinkLost(f"its answer to {what} can't be read: {error}") from error
        if problem.code == 503:
            raise LinkLost(f"{problem.description} ({problem.err_code})")
        raise ApiError(problem)
