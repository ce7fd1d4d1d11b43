"""The settings of Redis, declared once: those of a connection, for publisher and subscriber, and the publisher's. This
module imports no driver.
"""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from postroad.brokers.cloudevents import MODES, Mode
from postroad.errors import InvalidSetting
from postroad.kinds import FILE, FLAG, NAME, PASSWORD_FILE, SECRET, TEMPLATE, choice, time_span, whole_number
from postroad.message import SLOTS
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.kinds import Duration

__all__ = ["PARTITIONS", "ConnectionSettings", "PublisherSettings"]

PARTITIONS: Final = whole_number(1, SLOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(SettingsGroup):
    """How to reach the server."""

    username: str | None = setting(None, NAME, "Replaces the user's name in the URL.")
    password: str | None = setting(None, SECRET, "Replaces the password in the URL.")
    password_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A file with the password, read anew for each connection, so that it can be changed."
    )
    ca_file: str | None = setting(
        None, FILE, "For rediss://: certificates of the authorities to trust. Unset: those of the system."
    )
    cert_file: str | None = setting(None, FILE, "For rediss://: this client's own certificate.")
    key_file: str | None = setting(None, FILE, "For rediss://: the key of cert_file, not encrypted.")
    connect_timeout: Duration = setting("10s", time_span(), "How long a new connection may take.")

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        if self.password is not None and self.password_file is not None:
            raise InvalidSetting(
                "password and password_file are both given; give one of them", settings=("password", "password_file")
            )
        if (self.cert_file is None) is not (self.key_file is None):
            raise InvalidSetting(
                "cert_file and key_file belong together; give both or none", settings=("cert_file", "key_file")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings(ConnectionSettings):
    """How messages go to streams."""

    stream: str = setting(
        "{topic}", TEMPLATE, "The template of the stream's name: {topic}, {type}, {key}, {source}, any header, or text."
    )
    partitions: int | None = setting(
        None,
        PARTITIONS,
        "Divide each stream into so many, named orders.0, orders.1, …, by the hash of the key. Consumers need the same "
        "number, and share them.",
    )
    declare: Literal["create", "check"] = setting(
        "create",
        choice("create", "check"),
        "Whether a message creates its stream. With 'check', the messages of a stream that is missing wait for it.",
    )
    envelope: Mode = setting(
        "binary",
        choice(*MODES),
        "The form of a message: CloudEvents attributes as fields, one JSON document, or no CloudEvents at all.",
    )
    max_length: int | None = setting(
        None, whole_number(1, 1 << 40), "Delete the oldest entries of a stream that has more than about so many."
    )
    max_age: Duration | None = setting(None, time_span(), "Delete entries that are older than about that.")
    trim: Literal["acked", "all"] = setting(
        "acked",
        choice("acked", "all"),
        "What max_length and max_age may delete: what all consumer groups of the stream have acked, or all, also what "
        "no consumer has read.",
    )
    replicas: int = setting(
        0,
        whole_number(0, 100),
        "A message counts as confirmed when so many replicas have it, too (WAIT).",
    )
    fsync: bool = setting(
        False,
        FLAG,
        "A message counts as confirmed when the server, and each of `replicas`, has written it to disk (WAITAOF: Redis "
        "7.2 or newer, Valkey).",
    )
    cluster: str | None = setting(
        None,
        NAME,
        "A name for the server that replaces host and port in the destination that a sink keeps. "
        "Set it where relays reach one server by different names.",
    )
    confirm_timeout: Duration = setting(
        "30s", time_span(), "The server counts as unavailable when it has answered nothing for this long."
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        ConnectionSettings.__post_init__(self)
        if self.trim == "all" and self.max_length is not None and self.max_age is not None:
            raise InvalidSetting(
                "trim is 'all', and max_length and max_age are both given, and Redis takes one of them; give one, or "
                "set trim='acked'",
                settings=("trim", "max_length", "max_age"),
            )
