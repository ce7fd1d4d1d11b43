"""The settings of Kafka, declared once: those of a connection, for publisher and subscriber, and the publisher's. This
module imports no driver.
"""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.brokers.cloudevents import MODES, Mode
from postroad.errors import InvalidSetting
from postroad.kinds import (
    FILE,
    NAME,
    PASSWORD_FILE,
    SECRET,
    TEMPLATE,
    VALUES,
    choice,
    text,
    time_span,
    whole_number,
)
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from postroad.kinds import Duration

__all__ = ["MECHANISMS", "ConnectionSettings", "Mechanism", "PublisherSettings"]

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_MESSAGE_SIZE: Final = 1_048_576  # what Kafka accepts in its default configuration, but for a few bytes
_LARGEST_MESSAGE: Final = 1_000_000_000  # librdkafka's limit
_HTTP_URL: Final = text("a URL that begins with https:// or http://", r"https?://\S+", metavar="URL", most=2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(SettingsGroup):
    """How to reach the brokers."""

    username: str | None = setting(
        None, NAME, "Replaces the user's name in the URL; for OAUTHBEARER with token_url, the client's id."
    )
    password: str | None = setting(
        None, SECRET, "Replaces the password in the URL; for OAUTHBEARER with token_url, the client's secret."
    )
    password_file: str | Path | None = setting(
        None,
        PASSWORD_FILE,
        "A file with the password. It is read anew when the brokers refuse it, so that it can be changed.",
    )
    mechanism: Mechanism | None = setting(
        None, choice(*MECHANISMS), "The SASL mechanism. Unset: SCRAM-SHA-512 if there is a user, otherwise none."
    )
    token_url: str | None = setting(
        None, _HTTP_URL, "For OAUTHBEARER: the URL that issues tokens for the client's id and secret."
    )
    token_scope: str | None = setting(None, NAME, "For OAUTHBEARER: the scope that is asked for at token_url.")
    token_file: str | Path | None = setting(
        None, PASSWORD_FILE, "For OAUTHBEARER: a file with a token, which another program keeps fresh."
    )
    ca_file: str | None = setting(
        None, FILE, "For kafkas://: certificates of the authorities to trust. Unset: those of the system."
    )
    cert_file: str | None = setting(None, FILE, "For kafkas://: this client's own certificate.")
    key_file: str | None = setting(None, FILE, "For kafkas://: the key of cert_file, not encrypted.")
    connect_timeout: Duration = setting("10s", time_span(), "How long the brokers may take to answer at the start.")
    options: Mapping[str, Any] | None = setting(
        None,
        VALUES,
        "Further options of librdkafka, such as {'client.rack': 'a'}. Those on which guarantees rest are refused.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        for first, second in (("password", "password_file"), ("token_url", "token_file")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise InvalidSetting(f"{first} and {second} are both given; give one of them", settings=(first, second))
        if (self.cert_file is None) is not (self.key_file is None):
            raise InvalidSetting(
                "cert_file and key_file belong together; give both or none", settings=("cert_file", "key_file")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings(ConnectionSettings):
    """How messages go to topics."""

    topic: str = setting(
        "{topic}", TEMPLATE, "The template of the Kafka topic: {topic}, {type}, {key}, {source}, any header, or a name."
    )
    envelope: Mode = setting(
        "binary",
        choice(*MODES),
        "The form of a message: CloudEvents attributes as headers, one JSON document, or no CloudEvents at all.",
    )
    compression: Compression = setting("none", choice(*_COMPRESSIONS), "How batches of messages are compressed.")
    cluster: str | None = setting(
        None,
        NAME,
        "A name for the cluster that replaces the hosts in the destination that a sink keeps. "
        "Set it where relays reach one cluster by different hosts.",
    )
    linger: Duration = setting(
        "2ms", time_span(zero=True), "How long a message waits for others of its partition, to be sent together."
    )
    confirm_timeout: Duration = setting(
        "30s",
        time_span(),
        "The brokers count as unavailable when they have confirmed nothing for this long. "
        "Use more than 15s: it can take that long until another broker leads the partitions of one that died.",
    )
    max_message_size: int = setting(
        _MAX_MESSAGE_SIZE,
        whole_number(1_000, _LARGEST_MESSAGE),
        "A message that is larger, with key and headers, is refused without asking the brokers.",
    )
    transactional_id: str | None = setting(
        None,
        NAME,
        "Publish each page of a lane in a Kafka transaction, which fences relays that have lost the lane. "
        "A name that no other outbox of the cluster has; sink and lane are added to it.",
    )
