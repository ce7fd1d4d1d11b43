"""Streams: checks or creates the one that messages must go to, and says what a confirm of one means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.base import Durability
from postroad.brokers.nats.connection import Denied, LinkLost
from postroad.brokers.nats.jetstream import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from postroad.brokers.nats.jetstream import JetStream, StreamInfo

__all__ = ["durability", "ensure_stream", "new_stream", "warnings_of"]

UNKNOWN: Final = "stored by a stream; how safely is not known, because the user may not ask ($JS.API.STREAM.LIST)"
_FEW: Final = 3
_VALUES: Final = {"true": True, "false": False}


async def ensure_stream(
    jetstream: JetStream, name: str, subjects: Collection[str], config: dict[str, Any], *, create: bool
) -> None:
    """Check that the stream exists, or create it with this configuration. Raises LinkLost."""
    try:
        try:
            await jetstream.stream(name)
        except ApiError as error:
            if not (error.is_missing and create):
                raise
            await jetstream.create_stream(new_stream(name, subjects, config))
    except ApiError as error:
        if error.is_missing:
            raise LinkLost(f"there is no stream {name!r}; create it, or set declare='create' ({error})") from error
        raise LinkLost(f"the stream {name!r} can't be created: {error}; see stream_config") from error


def new_stream(name: str, subjects: Collection[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a stream that is created. From the environment and the command line, values are texts."""
    typed = {each: _VALUES.get(value, value) if isinstance(value, str) else value for each, value in config.items()}
    typed = {each: int(value) if isinstance(value, str) and value.isdigit() else value for each, value in typed.items()}
    return {"storage": "file", "discard": "new"} | typed | {"name": name, "subjects": list(subjects)}


async def durability(jetstream: JetStream, subject: str, stream: str | None) -> Durability:
    """What a confirm means for messages with a subject that this one matches, as far as the user may know it."""
    try:
        found = await jetstream.streams(subject) if stream is None else [await jetstream.stream(stream)]
    except Denied:
        return Durability(UNKNOWN)
    except ApiError as error:
        if not error.is_missing:
            raise LinkLost(str(error)) from error
        found = []
    if not found:
        return Durability(
            "stored by a stream", (f"no stream takes {subject!r} yet: messages wait until one is created",)
        )
    replicas = {each.config.num_replicas for each in found}
    copies = "one server" if replicas == {1} else f"a majority of {' or '.join(map(str, sorted(replicas)))} servers"
    names = ", ".join(each.config.name for each in found[:_FEW]) + (", …" if len(found) > _FEW else "")
    meaning = f"stored by {copies} (stream {names}), and synced to disk as their sync_interval says"
    return Durability(meaning, tuple(warning for each in found for warning in warnings_of(each)))


def warnings_of(stream: StreamInfo) -> Iterator[str]:
    """What makes a confirm of this stream worth less."""
    config = stream.config
    whose = f"stream {config.name!r}"
    limits = [name for name in ("max_msgs", "max_bytes", "max_msgs_per_subject") if getattr(config, name) > 0]
    if config.discard == "old" and limits:
        yield (
            f"{whose}: discard is 'old', so when it reaches {' or '.join(limits)} it drops its oldest messages, also "
            "those that no consumer had; set discard to 'new'"
        )
    if config.storage != "file":
        yield f"{whose}: storage is {config.storage!r}, so a restart loses its messages; use file storage"
    if config.num_replicas == 1:
        yield f"{whose}: num_replicas is 1, so a server that is lost takes confirmed messages with it; use 3"
    if config.no_ack:
        yield f"{whose}: no_ack is true, so it confirms nothing and no message counts as published; set it to false"
