"""What a consumer needs on the servers: a stream, a durable consumer of it, and a stream that takes dead letters.
Checks it, or creates it.

One process at a time is active: the server pins one, and gives all messages to it while it keeps asking. There is no
limit of deliveries, because a server that reaches one drops the message without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.nats.connection import LinkLost
from postroad.brokers.nats.jetstream import ApiError
from postroad.brokers.nats.streams import new_stream

if TYPE_CHECKING:
    from postroad.brokers.nats.jetstream import JetStream
    from postroad.brokers.nats.subscriber_settings import SubscriberSettings

__all__ = ["GROUP", "NS", "ensure", "not_pinned"]

GROUP: Final = "postroad"
"""The priority group that all processes of a consumer belong to."""
NS: Final = 1_000_000_000


async def ensure(jetstream: JetStream, settings: SubscriberSettings, *, in_order: bool) -> str:
    """Check or create all of it, as `declare` says. Returns the stream's name. Raises LinkLost."""
    create = settings.declare == "create"
    try:
        stream = await _stream(jetstream, settings, create=create)
        if settings.declare != "no":
            await _consumer(jetstream, settings, stream, in_order=in_order, create=create)
            await _dead_letters(jetstream, settings, create=create)
    except ApiError as error:
        raise LinkLost(f"{error}; see the setting declare") from error
    return stream


async def _stream(jetstream: JetStream, settings: SubscriberSettings, *, create: bool) -> str:
    subjects = list(settings.subjects or ())
    if settings.stream is not None:
        if settings.declare == "no":
            return settings.stream
        try:
            await jetstream.stream(settings.stream)
        except ApiError as error:
            if not error.is_missing:
                raise
            if not create:
                raise LinkLost(f"there is no stream {settings.stream!r}; create it, or set declare='create'") from error
            await _create(jetstream, settings.stream, subjects, settings)
        return settings.stream
    found = {name for subject in subjects for name in await jetstream.streams_for(subject)}
    if not found:
        raise LinkLost(
            f"no stream takes {' or '.join(map(repr, subjects))}; create one, or set stream to have it created"
        )
    if len(found) > 1:
        raise LinkLost(f"{', '.join(subjects)} are in several streams ({', '.join(sorted(found))}); set stream to one")
    return found.pop()


async def _consumer(
    jetstream: JetStream, settings: SubscriberSettings, stream: str, *, in_order: bool, create: bool
) -> None:
    durable = settings.durable or ""
    try:
        existing = (await jetstream.consumer(stream, durable)).config
    except ApiError as error:
        if not error.is_missing:
            raise
        if not create:
            raise LinkLost(
                f"the stream {stream!r} has no consumer {durable!r}; create it, or set declare='create'"
            ) from error
        existing = {}
    config = existing
    if create:
        wanted = _config(settings, in_order=in_order)
        if existing:
            del wanted["deliver_policy"]  # where it began can't be changed
            existing.pop("filter_subject", None)
        try:
            config = (await jetstream.create_consumer(stream, existing | wanted)).config
        except ApiError as error:
            raise LinkLost(
                f"the consumer {durable!r} of the stream {stream!r} can't be created or changed: {error}; delete it, "
                "or set durable to another name"
            ) from error
    _check(config, durable, in_order=in_order)


def _config(settings: SubscriberSettings, *, in_order: bool) -> dict[str, Any]:
    takeover_ns = int(settings.seconds("takeover_after") * NS)
    config: dict[str, Any] = {
        "durable_name": settings.durable,
        "name": settings.durable,
        "deliver_policy": "all" if settings.start == "first" else "new",
        "ack_policy": "explicit",
        "ack_wait": takeover_ns,
        "max_deliver": -1,
        "max_ack_pending": settings.prefetch if in_order else -1,
        "filter_subjects": list(settings.subjects or ()),
        "replay_policy": "instant",
    }
    if in_order:
        config |= {
            "priority_groups": [GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": takeover_ns,
        }
    return config


def _check(config: dict[str, Any], durable: str, *, in_order: bool) -> None:
    """Raise LinkLost for a configuration with which messages would be lost, or come in another order."""
    if config.get("ack_policy") != "explicit":
        raise LinkLost(f"the consumer {durable!r} has ack_policy {config.get('ack_policy')!r}; it must be 'explicit'")
    if config.get("max_deliver", -1) > 0:
        raise LinkLost(
            f"the consumer {durable!r} has max_deliver {config['max_deliver']}, after which the server drops a "
            "message; it must be -1"
        )
    if in_order and (
        config.get("priority_policy") != "pinned_client" or GROUP not in config.get("priority_groups", ())
    ):
        raise LinkLost(not_pinned(durable))


def not_pinned(durable: str) -> str:
    """Why a consumer can't be used that does not pin one process."""
    return (
        f"the consumer {durable!r} has no group {GROUP!r} with the policy 'pinned_client', without which two processes "
        "could have messages of one key at once; NATS has it since 2.11. Or set ordering='none'"
    )


async def _dead_letters(jetstream: JetStream, settings: SubscriberSettings, *, create: bool) -> None:
    subject = settings.dead_letter_subject or ""
    if not await jetstream.streams_for(subject):
        if not create:
            raise LinkLost(
                f"no stream takes the dead letters' subject {subject!r}; create one, or set declare='create'"
            )
        await _create(jetstream, f"{settings.durable}-dead", [subject], settings)


async def _create(jetstream: JetStream, name: str, subjects: list[str], settings: SubscriberSettings) -> None:
    try:
        await jetstream.create_stream(new_stream(name, subjects, settings.stream_config or {}))
    except ApiError as error:
        raise LinkLost(f"the stream {name!r} can't be created: {error}") from error
