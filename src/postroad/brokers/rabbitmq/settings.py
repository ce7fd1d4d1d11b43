"""The settings of RabbitMQ, declared once for publisher and subscriber. This module imports no driver."""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from postroad.brokers.cloudevents import MODES, PREFIXES, Mode
from postroad.brokers.rabbitmq.partitions import PORTIONS
from postroad.errors import InvalidSetting
from postroad.events import CertificateUnverified
from postroad.kinds import (
    FLAG,
    NAME,
    PASSWORD_FILE,
    SECRET,
    TEMPLATE,
    TEXTS,
    VALUES,
    choice,
    time_span,
    whole_number,
)
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from postroad.brokers.registry import Subscription
    from postroad.events import Event
    from postroad.kinds import Duration

__all__ = [
    "DEFAULT_PREFETCH",
    "LARGEST_BODY",
    "LONGEST_HEARTBEAT",
    "ConnectionSettings",
    "PublisherSettings",
    "SubscriberSettings",
    "url_warnings",
]

DEFAULT_EXCHANGE: Final = "postroad"
DEFAULT_PREFETCH: Final = 200
LARGEST_BODY: Final = 1 << 30
"""No broker sends more: RabbitMQ accepts half of it at most. A subscriber closes a connection that announces more."""
LONGEST_HEARTBEAT: Final = 65_534  # seconds: AMQP has two bytes for it, and aiormq takes the last value for "off"
_MOST_PREFETCH: Final = 65_535  # AMQP has two bytes for it
_MAX_MESSAGE_SIZE: Final = 134_217_728  # what RabbitMQ 3 accepts in its default configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(SettingsGroup):
    """How to reach the server."""

    username: str | None = setting(None, NAME, "Replaces the user's name in the URL.")
    password: str | None = setting(None, SECRET, "Replaces the password in the URL.")
    password_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A file with the password, read anew for each connection, so that it can be changed."
    )
    connect_timeout: Duration = setting("10s", time_span(), "How long a new connection may take.")
    heartbeat: Duration | None = setting(
        None,
        time_span(zero=True, seconds_up_to=LONGEST_HEARTBEAT),
        "How often a silent connection is tested, 0 for never. Unset: the URL's value, or 10s.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        if self.password is not None and self.password_file is not None:
            raise InvalidSetting(
                "password and password_file are both given; give one of them", settings=("password", "password_file")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings(ConnectionSettings):
    """How messages go to an exchange."""

    exchange: str = setting(DEFAULT_EXCHANGE, NAME, "The exchange to publish to: durable, of type topic.")
    declare: Literal["create", "check", "no"] = setting(
        "create",
        choice("create", "check", "no"),
        "On a new connection: declare the exchange, check that it exists, or neither.",
    )
    envelope: Mode = setting(
        "binary",
        choice(*MODES),
        "The form of a message: CloudEvents attributes as headers, one JSON document, or no CloudEvents at all.",
    )
    envelope_prefix: str = setting(
        "ce-", choice(*PREFIXES), "How the names of headers with CloudEvents attributes begin."
    )
    routing_key: str = setting(
        "{topic}", TEMPLATE, "The template of the routing key: {topic}, {type}, {key}, {source}, or any header."
    )
    partitioned: bool = setting(
        False,
        FLAG,
        "Send each message with a second routing key that is made of the hash of its key, and removed by the broker: "
        "consumers with `partitions` divide messages by it.",
    )
    cluster: str | None = setting(
        None,
        NAME,
        "A name for the broker that replaces scheme, host and port in the destination that a sink keeps. "
        "Set it where relays reach one cluster by different hosts.",
    )
    confirm_timeout: Duration = setting(
        "30s", time_span(), "The broker counts as unavailable when it has confirmed nothing for this long."
    )
    max_message_size: int = setting(
        _MAX_MESSAGE_SIZE,
        whole_number(1, 1 << 40),
        "A message with a larger body is refused without asking the broker.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings(ConnectionSettings):
    """How messages come from a queue."""

    queue: str | None = setting(None, NAME, "The queue to receive from. Unset: the consumer's name.")
    exchange: str = setting(DEFAULT_EXCHANGE, NAME, "The exchange that the queue is bound to: durable, of type topic.")
    bindings: Collection[str] | None = setting(
        None, TEXTS, "The routing keys that the queue is bound with. Unset: the types of the consumer's handlers."
    )
    declare: Literal["create", "check", "no"] = setting(
        "create",
        choice("create", "check", "no"),
        "On a new connection: declare exchange, queues and bindings; check that both queues exist; or neither.",
    )
    partitions: int | None = setting(
        None,
        whole_number(1, PORTIONS),
        "Divide the queue into so many, by the hash of the key, each with one active consumer: several processes share "
        "them, and keep the order of each key. Publishers must be `partitioned`.",
    )
    single_active: bool | None = setting(
        None,
        FLAG,
        "The queue has one active consumer at a time, the others stand by: without it, two processes could have "
        "messages of one key at once. Unset: true when the consumer keeps order.",
    )
    arguments: Mapping[str, Any] | None = setting(
        None, VALUES, "Further arguments of the queue's declaration, such as {'x-queue-type': 'quorum'}."
    )
    dead_letter_queue: str | None = setting(
        None, NAME, "The queue for dead letters. Unset: the queue's name and '.dead'."
    )
    prefetch: int | None = setting(
        None,
        whole_number(1, _MOST_PREFETCH),
        "The most messages that are received and not acked yet, for each queue. Unset: 200, or twice the largest "
        "group.",
    )
    max_message_size: int = setting(
        _MAX_MESSAGE_SIZE,
        whole_number(1, LARGEST_BODY),
        "A message with a larger body goes to the dead letters, by way of a temporary file.",
    )
    max_held_bytes: int = setting(
        134_217_728,
        whole_number(1, 1 << 40),
        "Nothing is read from the connection while the messages that are not acked have this many bytes or more.",
    )

    def completed(self, subscription: Subscription) -> SubscriberSettings:
        """Derive what was left unset from what the consumer asks. Raises InvalidSetting for what contradicts it."""
        if subscription.in_order and self.single_active is False:
            raise InvalidSetting(
                "ordering is 'key' and single_active is False, so two processes could have messages of one key at "
                "once; set ordering='none', or leave single_active out"
            )
        if self.partitions is not None and not subscription.in_order:
            raise InvalidSetting(
                f"partitions is {self.partitions} and ordering is 'none'; without order, processes share one queue, so "
                "leave partitions out"
            )
        ttl = subscription.message_ttl
        expiry = {} if ttl is None else {"x-message-ttl": int(ttl / timedelta(milliseconds=1))}
        return replace(
            self,
            queue=self.queue or subscription.consumer,
            bindings=subscription.types if self.bindings is None else self.bindings,
            single_active=subscription.in_order if self.single_active is None else self.single_active,
            arguments=expiry | dict(self.arguments or {}),
            prefetch=self.prefetch or max(DEFAULT_PREFETCH, 2 * subscription.batch_size),
        )


def url_warnings(name: str, url: str) -> Iterator[Event]:
    """Warn of a URL that turns off the check of the server's certificate; `name` is what the warning calls the URL."""
    parts = urlsplit(url)
    if parts.scheme == "amqps" and dict(parse_qsl(parts.query)).get("no_verify_ssl") == "1":
        yield CertificateUnverified(
            setting=name, option="no_verify_ssl=1", instead="cafile=FILE with the CA's certificate"
        )
