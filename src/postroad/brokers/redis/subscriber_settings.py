"""The settings of a Redis subscriber, declared once. This module imports no driver."""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from postroad.brokers.redis.settings import PARTITIONS, ConnectionSettings
from postroad.errors import InvalidSetting
from postroad.kinds import NAME, TEXTS, choice, time_span, whole_number
from postroad.setting import setting

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroad.brokers.registry import Subscription
    from postroad.kinds import Duration

__all__ = ["DEFAULT_PREFETCH", "SubscriberSettings"]

DEFAULT_PREFETCH: Final = 200
SHORTEST_LEASE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings(ConnectionSettings):
    """How messages come from streams."""

    stream: str | None = setting(None, NAME, "The stream to receive from.")
    streams: Collection[str] | None = setting(
        None, TEXTS, "The streams to receive from, if several. Without stream and streams: the types of the handlers."
    )
    partitions: int | None = setting(
        None,
        PARTITIONS,
        "Each stream is divided into so many, named orders.0, orders.1, …, as the relay's `partitions` says: processes "
        "share them, and keep the order of each key.",
    )
    group: str | None = setting(None, NAME, "The consumer group. Unset: the consumer's name.")
    start: Literal["earliest", "latest"] = setting(
        "earliest",
        choice("earliest", "latest"),
        "Where a group that is created begins: at the first entry of a stream, or behind the last.",
    )
    declare: Literal["create", "check"] = setting(
        "create",
        choice("create", "check"),
        "At the start: create the streams and the group if they are missing; or check that they exist.",
    )
    lease: Duration = setting(
        "10s",
        time_span(),
        "A process that does not renew its leases for so long loses its streams to others. 3s or more.",
    )
    dead_letter_stream: str | None = setting(
        None, NAME, "The stream for dead letters. Unset: the group's name and '.dead'."
    )
    foreign: Literal["deliver", "dead_letter"] = setting(
        "deliver",
        choice("deliver", "dead_letter"),
        "Entries that are no CloudEvents: deliver them, with an id made of stream and entry, and as type the field "
        "'type' or the stream; or send them to the dead letters.",
    )
    other_types: Literal["skip", "dead_letter"] = setting(
        "skip",
        choice("skip", "dead_letter"),
        "Messages of a type that no handler takes: skip them, because a stream may have messages for others; or send "
        "them to the dead letters.",
    )
    prefetch: int | None = setting(
        None,
        whole_number(1, 100_000),
        "The most messages of a stream that are received and not acked yet. Unset: 200, or twice the largest group.",
    )
    max_held_bytes: int = setting(
        134_217_728,
        whole_number(1, 1 << 40),
        "Nothing more is received while the messages that are not acked have this many bytes or more.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        ConnectionSettings.__post_init__(self)
        if self.stream is not None and self.streams is not None:
            raise InvalidSetting("stream and streams are both given; give one of them", settings=("stream", "streams"))
        if self.seconds("lease") < SHORTEST_LEASE:
            raise InvalidSetting(
                f"lease is {self.seconds('lease'):g} s; it must be {SHORTEST_LEASE:g} s or more", settings=("lease",)
            )

    def completed(self, subscription: Subscription) -> SubscriberSettings:
        """Derive what was left unset from what the consumer asks. Raises InvalidSetting for what can't be derived."""
        group = self.group or subscription.consumer
        streams = self.streams or ((self.stream,) if self.stream else subscription.types)
        if not streams:
            raise InvalidSetting("stream is not set; it must be the name of the stream to receive from")
        return replace(
            self,
            stream=None,
            streams=tuple(streams),
            group=group,
            dead_letter_stream=NAME.check("dead_letter_stream", self.dead_letter_stream or f"{group}.dead"),
            prefetch=self.prefetch or max(DEFAULT_PREFETCH, 2 * subscription.batch_size),
        )
