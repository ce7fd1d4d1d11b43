"""Reaches the brokers, and checks or creates the topics that a consumer needs. All of it blocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from postroad.brokers.kafka.outages import error_of, outage
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin._metadata import TopicMetadata

    from postroad.brokers.kafka.subscriber_settings import SubscriberSettings

__all__ = ["Topics"]

ASK_SECONDS: Final = 1.0
SERVE_SECONDS: Final = 0.05
NOTES_BYTES: Final = 16_384
"""What a dead letter may be larger than its record: our notes about it."""
_MISSING: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_NOT_YET: Final = _MISSING | {KafkaError.LEADER_NOT_AVAILABLE}


class Topics:
    """The topics of a cluster, as one client sees them."""

    def __init__(
        self,
        name: str,
        client: Any,
        *,
        user: str | None,
        seconds: float,
        serve: Callable[[float], None],
        check: Callable[[], None],
        last_error: Callable[[], KafkaError | None] = lambda: None,
    ) -> None:
        """`client` is a Consumer. `serve` polls it for so many seconds, which reports errors, and keeps the records
        that it gets. `check` raises when it is known that the brokers will not answer. `last_error` is what went wrong
        with a connection: what a question fails with is only that there was no answer.
        """
        self._name = name
        self._client = client
        self._serve = serve
        self._user = user
        self._check = check
        self._last_error = last_error
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def find(self, topic: str, *, until_there: bool = False) -> TopicMetadata | None:
        """The topic; None if it is missing. Raises BrokerUnavailable."""
        while True:
            answer = self.ask(lambda seconds: self._client.list_topics(topic, timeout=seconds))
            found: TopicMetadata = answer.topics[topic]
            if found.error is None:
                return found
            code = found.error.code()
            if code in _MISSING and not until_there:
                return None
            if code not in _NOT_YET:
                raise outage(self._name, found.error, topic=topic, user=self._user)
            self._wait()
            self._end_in_time(f"the topic {topic!r} has no leader")

    def ask(self, question: Callable[[float], Any]) -> Any:
        """The answer to a question, which gets seconds to wait. Asks again until the time is over."""
        while True:
            try:
                return question(ASK_SECONDS)
            except KafkaException as failure:
                self._wait()
                error = self._last_error() or error_of(failure)
                self._end_in_time(f"no answer within {self._seconds:g} seconds ({error.name()}: {error.str()})")

    def _wait(self) -> None:
        self._serve(SERVE_SECONDS)
        self._check()

    def _end_in_time(self, reason: str) -> None:
        if time.monotonic() > self._deadline:
            raise BrokerUnavailable(f"{self._name}: {reason}", suspicious=False)

    def ensure(self, settings: SubscriberSettings, config: dict[str, Any]) -> None:
        """Check or create the topics, as `declare` says. `config` is for the client that creates them."""
        topics, dead = tuple(settings.topics or ()), settings.dead_letter_topic or ""
        for topic in () if settings.declare == "no" else (*topics, dead):
            if self.find(topic) is not None:
                continue
            if settings.declare == "check":
                missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "declare is 'check'")
                raise outage(self._name, missing, topic=topic, user=self._user)
            if topic == dead:
                self._create_dead(config, dead, topics[0])
            else:
                self._create(AdminClient(config), NewTopic(topic, settings.partitions or -1, -1))
            self.find(topic, until_there=True)

    # -- creating ----------------------------------------------------------------------------------------------------

    def _create_dead(self, config: dict[str, Any], topic: str, source: str) -> None:
        """Create the topic for dead letters: nothing there expires, and what was in the source has room."""
        admin = AdminClient(config)
        settings = {"retention.ms": "-1", "cleanup.policy": "delete"}
        resource = ConfigResource(ConfigResource.Type.TOPIC, source)
        try:
            found = admin.describe_configs([resource])[resource].result(self._seconds)
            settings["max.message.bytes"] = str(int(found["max.message.bytes"].value) + NOTES_BYTES)
        except (KafkaException, KeyError, ValueError, TimeoutError):
            pass  # a right may be missing; dead letters that are too large wait until the topic has room
        self._create(admin, NewTopic(topic, 1, -1, config=settings))

    def _create(self, admin: AdminClient, topic: NewTopic) -> None:
        try:
            admin.create_topics([topic], request_timeout=self._seconds)[topic.topic].result(self._seconds)
        except (KafkaException, TimeoutError) as failure:
            error = error_of(failure) if isinstance(failure, KafkaException) else None
            if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            reason = "no answer" if error is None else f"{error.name()}: {error.str()}"
            who = "this client" if self._user is None else f"user {self._user!r}"
            raise BrokerUnavailable(
                f"{self._name}: the topic {topic.topic!r} is missing, and {who} can't create it ({reason}); create it, "
                "or grant Create on it",
                suspicious=False,
            ) from failure
