"""A message as a record of Kafka, by CloudEvents' Kafka binding: topic, value and headers; its key is the record's key.
Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.brokers.cloudevents import CannotEncode, time_of, wrap
from postroad.brokers.routing import RoutingKey
from postroad.errors import InvalidSetting
from postroad.message import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.cloudevents import Mode
    from postroad.brokers.kafka.answers import Answers

__all__ = ["CONTENT_TYPE", "Record", "Records", "check_topic", "next_run"]

PREFIX: Final = "ce_"
CONTENT_TYPE: Final = "content-type"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


Record = tuple[str, bytes | None, dict[str, Any]]
"""What is given to a producer, but for the key: topic, value and headers."""


class Records:
    """Makes records, by the template of the topic and the form of messages."""

    def __init__(self, topic: str, mode: Mode, max_message_size: int) -> None:
        self.max_message_size = max_message_size
        self._mode: Mode = mode
        template = RoutingKey(topic, "topic")
        _check_template(topic)
        self.only_topic = None if "{" in topic else topic
        """The topic, if the template names the same one for all messages."""
        self.topic_of: Callable[[StoredMessage], str] = template.of
        """The topic of a message. Raises CannotEncode when the message lacks what the template names."""
        self._may_lack = topic != "{topic}" and self.only_topic is None

    def refuse_topicless(self, messages: Sequence[StoredMessage], answers: Answers) -> None:
        """Refuse the messages that lack what the topic's template names."""
        if not self._may_lack:
            return
        for message in messages:
            try:
                self.topic_of(message)
            except CannotEncode as error:
                answers.refuse(message, str(error), permanent=True)

    def of(self, message: StoredMessage) -> Record:
        """The record of a message. Raises CannotEncode."""
        topic = self.topic_of(message)
        if self._mode == "binary" and (message.payload or not message.is_tombstone):
            return topic, message.payload, _binary_headers(message, topic)
        if wrong := check_topic(topic):
            raise CannotEncode(wrong)
        if message.is_tombstone:
            # Nothing but a record without a value deletes a key from a compacted topic, so there is no document.
            return topic, None, wrap(message, "plain" if self._mode == "plain" else "binary", PREFIX).headers
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        headers[CONTENT_TYPE] = content_type
        return topic, body, headers


def _binary_headers(message: StoredMessage, topic: str) -> dict[str, str]:
    """The headers that `wrap` makes, in a third of the time: what they have in common with other messages is kept."""
    headers = _common_headers(topic, message.headers_json, message.type, message.content_type).copy()
    headers["ce_id"] = str(message.id)
    headers["ce_time"] = time_of(message).decode()
    if message.key is not None:
        headers["ce_subject"] = headers["ce_partitionkey"] = message.key
    return headers


@lru_cache(maxsize=1024)
def _common_headers(topic: str, headers_json: str, type: str, content_type: str) -> dict[str, str]:
    """The headers of all messages with these fields. Raises CannotEncode, also for the topic: a second cache for that
    would have to be asked for each message.
    """
    if wrong := check_topic(topic):
        raise CannotEncode(wrong)
    message = StoredMessage(0, UUID(int=0), "", None, 0, type, b"", content_type, headers_json, 0)
    headers = wrap(message, "binary", PREFIX).headers
    headers[CONTENT_TYPE] = content_type
    return {name: value for name, value in headers.items() if name not in {"ce_id", "ce_time"}}


@lru_cache(maxsize=10_000)
def check_topic(name: str) -> str | None:
    """Why Kafka would not accept a topic of this name."""
    if _TOPIC.fullmatch(name) and name not in {".", ".."}:
        return None
    return (
        f"its topic would be {name!r:.80}; Kafka accepts 1 to 249 letters, digits, dots, dashes and underscores: "
        "see the setting 'topic'"
    )


def _check_template(topic: str) -> None:
    """A part that Kafka never accepts would make every message a dead one."""
    fixed = re.sub(r"\{[^{}]+\}", "", topic)
    wrong = check_topic(topic) if fixed == topic else re.search(r"[^A-Za-z0-9._-]", fixed)
    if wrong:
        raise InvalidSetting(
            f"topic is {topic!r:.80}; Kafka accepts 1 to 249 letters, digits, dots, dashes and underscores, beside "
            "names in braces",
            settings=("topic",),
        )


def next_run(messages: Sequence[StoredMessage], topic_of: Callable[[StoredMessage], str]) -> Sequence[StoredMessage]:
    """The messages that can be sent at once; the others have to wait until these are confirmed.

    Kafka keeps the order of a key within a topic, and none between topics. So a key's messages are sent up to the first
    one that goes to another topic.
    """
    topics = list(map(topic_of, messages))
    if len(set(topics)) <= 1:
        return messages
    now = []
    topic_by_key: dict[str, str | None] = {}
    for message, topic in zip(messages, topics, strict=True):
        if message.key is None or topic_by_key.setdefault(message.key, topic) == topic:
            now.append(message)
        else:
            topic_by_key[message.key] = None
    return now
