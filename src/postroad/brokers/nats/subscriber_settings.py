"""The settings of a NATS subscriber, declared once. This module imports no driver."""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.brokers.nats.settings import STREAM, SUBJECT, SUBJECTS, ConnectionSettings
from postroad.errors import InvalidSetting
from postroad.kinds import VALUES, choice, time_span, whole_number
from postroad.setting import setting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from postroad.brokers.registry import Subscription
    from postroad.kinds import Duration

__all__ = ["DEFAULT_PREFETCH", "SubscriberSettings", "matches"]

DEFAULT_PREFETCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings(ConnectionSettings):
    """How messages come from a stream."""

    stream: str | None = setting(
        None, STREAM, "The stream to receive from. Unset: the one that takes the subjects of `subjects`."
    )
    subject: str | None = setting(None, SUBJECT, "The subject to receive.")
    subjects: Collection[str] | None = setting(
        None, SUBJECTS, "The subjects to receive, if several. Without subject and subjects: the types of the handlers."
    )
    durable: str | None = setting(
        None, STREAM, "The name of the stream's durable consumer. Unset: the consumer's name, with dashes for dots."
    )
    start: Literal["first", "new"] = setting(
        "first",
        choice("first", "new"),
        "Where a durable consumer that is created begins: at the stream's first message, or behind its last.",
    )
    declare: Literal["create", "check", "no"] = setting(
        "create",
        choice("create", "check", "no"),
        "At the start: create what is missing of the stream, the durable consumer and the stream for dead letters, "
        "and bring the durable consumer up to date; check that they exist; or neither.",
    )
    stream_config: Mapping[str, Any] | None = setting(
        None, VALUES, "More of the configuration of streams that are created, such as {'num_replicas': 3}."
    )
    dead_letter_subject: str | None = setting(
        None, SUBJECT, "The subject for dead letters, which a stream must take. Unset: 'dead.' and the durable's name."
    )
    foreign: Literal["deliver", "dead_letter"] = setting(
        "deliver",
        choice("deliver", "dead_letter"),
        "Messages that are no CloudEvents: deliver them, with their Nats-Msg-Id or their place in the stream as id, "
        "and as type the header 'type' or the subject; or send them to the dead letters.",
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
        "The most messages that are received and not acked yet. Unset: 200, or twice the largest group.",
    )
    max_held_bytes: int = setting(
        134_217_728,
        whole_number(1, 1 << 40),
        "Nothing more is asked for while the messages that are not acked have this many bytes or more.",
    )
    takeover_after: Duration = setting(
        "10s",
        time_span(),
        "When a process has given no sign of life for this long, another one gets its place and its messages.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        ConnectionSettings.__post_init__(self)
        if self.subject is not None and self.subjects is not None:
            raise InvalidSetting(
                "subject and subjects are both given; give one of them", settings=("subject", "subjects")
            )
        if self.dead_letter_subject is not None and re.search(r"[*>]", self.dead_letter_subject):
            raise InvalidSetting(
                f"dead_letter_subject is {self.dead_letter_subject!r}; it must not have wildcards",
                settings=("dead_letter_subject",),
            )
        if self.seconds("takeover_after") < 1:
            raise InvalidSetting(
                f"takeover_after is {self.seconds('takeover_after'):g} s; it must be 1s at least",
                settings=("takeover_after",),
            )

    def completed(self, subscription: Subscription) -> SubscriberSettings:
        """Derive what was left unset from what the consumer asks. Raises InvalidSetting for what can't be derived."""
        durable = STREAM.check("durable", self.durable or subscription.consumer.replace(".", "-"))
        subjects = self.subjects or ((self.subject,) if self.subject else None)
        subjects = SUBJECTS.check("subjects", subscription.types) if subjects is None else subjects
        dead = SUBJECT.check("dead_letter_subject", self.dead_letter_subject or f"dead.{durable}")
        for subject in subjects:
            if matches(subject, dead):
                raise InvalidSetting(
                    f"dead_letter_subject is {dead!r}, which the subject {subject!r} matches: dead letters would be "
                    "received again; choose another one",
                    settings=("dead_letter_subject",),
                )
        return replace(
            self,
            subject=None,
            subjects=subjects,
            durable=durable,
            dead_letter_subject=dead,
            prefetch=self.prefetch or max(DEFAULT_PREFETCH, 2 * subscription.batch_size),
        )


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject with wildcards matches one without."""
    words, given = pattern.split("."), subject.split(".")
    if words[-1] == ">":
        if len(given) < len(words):
            return False
        words, given = words[:-1], given[: len(words) - 1]
    return len(words) == len(given) and all(word in {"*", each} for word, each in zip(words, given, strict=True))
