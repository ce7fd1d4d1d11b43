"""A message as a record of Kafka, by CloudEvents' Kafka binding: topic, value and headers; its key is the record's key.
Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.cloudevents import CannotEncode, time_of, wrap
from postroad.brokers.routing import RoutingKey
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.cloudevents import Mode
    from postroad.brokers.kafka.answers import Answers
    from postroad.message import StoredMessage

__all__ = ["CONTENT_TYPE", "Record", "Records", "check_topic", "next_run"]

PREFIX: Final = "ce_"
CONTENT_TYPE: Final = "content-type"
MOST_KNOWN: Final = 1024
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
        self._known: dict[object, dict[str, str]] = {}
        """The headers of an earlier message, by what all messages with these have in common."""

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
            return topic, message.payload, self._binary_headers(message, topic)
        if wrong := check_topic(topic):
            raise CannotEncode(wrong)
        if message.is_tombstone:
            # Nothing but a record without a value deletes a key from a compacted topic, so there is no document.
            return topic, None, wrap(message, "plain" if self._mode == "plain" else "binary", PREFIX).headers
        content_type, headers, body = wrap(message, self._mode, PREFIX)
        headers[CONTENT_TYPE] = content_type
        return topic, body, headers

    def _binary_headers(self, message: StoredMessage, topic: str) -> dict[str, str]:
        """The headers that `wrap` makes; in a fifth of the time when an earlier message was like this one. Messages
        with correlation ids are never alike, so a miss must cost next to nothing.
        """
        like = topic, message.headers_json, message.type, message.content_type, message.key is None
        known = self._known.get(like)
        if known is None:
            if wrong := check_topic(topic):
                raise CannotEncode(wrong)
            headers = wrap(message, "binary", PREFIX).headers
            headers[CONTENT_TYPE] = message.content_type
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[like] = headers.copy()
            return headers
        headers = known.copy()
        headers["ce_id"] = str(message.id)
        headers["ce_time"] = time_of(message).decode()
        if message.key is not None:
            headers["ce_subject"] = headers["ce_partitionkey"] = message.key
        return headers


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
