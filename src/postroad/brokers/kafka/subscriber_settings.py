"""The settings of a Kafka subscriber, declared once. This module imports no driver."""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.brokers.kafka.settings import ConnectionSettings
from postroad.errors import InvalidSetting
from postroad.kinds import NAME, Kind, choice, text, time_span, whole_number
from postroad.setting import setting

if TYPE_CHECKING:
    from postroad.brokers.registry import Subscription
    from postroad.kinds import Duration

__all__ = ["DEFAULT_PREFETCH", "SubscriberSettings"]

DEFAULT_PREFETCH: Final = 200

TOPIC: Final = text(
    "the name of a Kafka topic: 1 to 249 letters, digits, dots, dashes and underscores",
    r"(?!\.{1,2}$)[A-Za-z0-9._-]+",
    metavar="NAME",
    most=249,
)


def _topics(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) or not isinstance(value, Collection):
        return None
    return tuple(value) if value and all(map(TOPIC.validate, value)) else None


TOPICS: Final = Kind(
    expected=f"a list, each of it {TOPIC.expected}",
    validate=_topics,
    parse=lambda text: text.split(","),
    metavar="NAME,...",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings(ConnectionSettings):
    """How messages come from topics."""

    topic: str | None = setting(None, TOPIC, "The topic to receive from.")
    topics: Collection[str] | None = setting(
        None, TOPICS, "The topics to receive from, if several. Without topic and topics: the types of the handlers."
    )
    group: str | None = setting(
        None,
        NAME,
        "The consumer group, whose members share the partitions. Unset: the consumer's name.",
    )
    instance: str | None = setting(
        None,
        NAME,
        "A name for this process within the group, for static membership: its partitions wait for it, up to "
        "session_timeout, while it is restarted. No other process may have it.",
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest",
        choice("earliest", "latest"),
        "Where a group that has committed nothing yet begins: at the first record of a topic, or behind the last.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = setting(
        "read_committed",
        choice("read_committed", "read_uncommitted"),
        "Whether records of transactions are received only after those were committed.",
    )
    declare: Literal["create", "check", "no"] = setting(
        "create",
        choice("create", "check", "no"),
        "At the start: create the topics and the dead-letter topic if they are missing; check that they exist; or "
        "neither.",
    )
    partitions: int | None = setting(
        None,
        whole_number(1, 100_000),
        "The partitions of a topic that is created: at most so many processes share it. Unset: the brokers' default.",
    )
    dead_letter_topic: str | None = setting(
        None, TOPIC, "The topic for dead letters. Unset: the group's name and '.dead'."
    )
    foreign: Literal["deliver", "dead_letter"] = setting(
        "deliver",
        choice("deliver", "dead_letter"),
        "Records that are no CloudEvents: deliver them, with an id made of topic, partition and offset, and as type "
        "the header 'type' or the topic; or send them to the dead letters.",
    )
    other_types: Literal["skip", "dead_letter"] = setting(
        "skip",
        choice("skip", "dead_letter"),
        "Messages of a type that no handler takes: skip them, because a topic may have messages for others; or send "
        "them to the dead letters.",
    )
    prefetch: int | None = setting(
        None,
        whole_number(1, 100_000),
        "The most messages of a partition that are received and not acked yet. Unset: 200, or twice the largest group.",
    )
    max_held_bytes: int = setting(
        134_217_728,
        whole_number(1, 1 << 40),
        "Nothing more is received while the messages that are not acked have this many bytes or more.",
    )
    commit_interval: Duration = setting("500ms", time_span(), "How often acks are sent to the brokers, at most.")
    session_timeout: Duration = setting(
        "15s",
        time_span(),
        "After this long without a heartbeat, a process loses its partitions to others. Brokers allow 6s to 30m by "
        "default.",
    )
    max_poll_interval: Duration = setting(
        "5m",
        time_span(),
        "How long a rebalance of the group waits for a process that hands over partitions. Not a limit for handlers.",
    )
    drain_timeout: Duration = setting(
        "30s",
        time_span(zero=True),
        "How long partitions that go to another process wait for handlers of their messages; then they go without.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        ConnectionSettings.__post_init__(self)
        if self.topic is not None and self.topics is not None:
            raise InvalidSetting("topic and topics are both given; give one of them", settings=("topic", "topics"))
        for shorter in ("session_timeout", "drain_timeout"):
            if self.seconds(shorter) >= self.seconds("max_poll_interval"):
                raise InvalidSetting(
                    f"{shorter} is {self.seconds(shorter):g} s and max_poll_interval is "
                    f"{self.seconds('max_poll_interval'):g} s; {shorter} must be less",
                    settings=(shorter, "max_poll_interval"),
                )

    def completed(self, subscription: Subscription) -> SubscriberSettings:
        """Derive what was left unset from what the consumer asks. Raises InvalidSetting for what can't be derived."""
        group = self.group or subscription.consumer
        topics = self.topics or ((self.topic,) if self.topic else None)
        return replace(
            self,
            topic=None,
            topics=TOPICS.check("topics", subscription.types) if topics is None else topics,
            group=group,
            dead_letter_topic=TOPIC.check("dead_letter_topic", self.dead_letter_topic or f"{group}.dead"),
            prefetch=self.prefetch or max(DEFAULT_PREFETCH, 2 * subscription.batch_size),
        )
