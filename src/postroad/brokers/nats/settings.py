"""The settings of NATS, declared once: those of a connection, for publisher and subscriber, and the publisher's. This
module imports no driver.
"""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.brokers.cloudevents import MODES, Mode
from postroad.errors import InvalidSetting
from postroad.kinds import FILE, FLAG, NAME, PASSWORD_FILE, SECRET, TEMPLATE, VALUES, Kind, choice, text, time_span
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from postroad.kinds import Duration

__all__ = ["STREAM", "SUBJECT", "SUBJECTS", "ConnectionSettings", "PublisherSettings"]

STREAM: Final = text(
    "the name of a stream: 1 to 255 characters without spaces, dots, slashes, '*' and '>'",
    r"[^\s.*>/\\]+",
    metavar="NAME",
)
SUBJECT: Final = text(
    "a subject: words with dots between them, such as 'orders.created', or with wildcards 'orders.*' and 'orders.>'",
    r"(?!\$)(?:[^\s.>]+\.)*(?:[^\s.>]+|>)",
    metavar="SUBJECT",
)


def _subjects(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) or not isinstance(value, Collection):
        return None
    return tuple(value) if value and all(map(SUBJECT.validate, value)) else None


SUBJECTS: Final = Kind(
    expected=f"a list, each of it {SUBJECT.expected}",
    validate=_subjects,
    parse=lambda text: text.split(","),
    metavar="SUBJECT,...",
)
_WORDS: Final = text("a subject without wildcards", r"[^\s.*>$]+(?:\.[^\s.*>]+)*", metavar="SUBJECT")

# One user, in one of these ways.
_USERS: Final = ("password", "password_file", "token", "token_file", "credentials_file", "nkey_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(SettingsGroup):
    """How to reach the servers."""

    username: str | None = setting(None, NAME, "Replaces the user's name in the URL.")
    password: str | None = setting(None, SECRET, "Replaces the password in the URL.")
    password_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A file with the password, read anew for each connection, so that it can be changed."
    )
    token: str | None = setting(None, SECRET, "A token, instead of a user and a password.")
    token_file: str | Path | None = setting(None, PASSWORD_FILE, "A file with the token, read for each connection.")
    credentials_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A .creds file, with a user's JWT and seed, read for each connection."
    )
    nkey_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A file with the seed of a user's nkey, read for each connection."
    )
    ca_file: str | None = setting(
        None, FILE, "For TLS: certificates of the authorities to trust. Unset: those of the system."
    )
    cert_file: str | None = setting(None, FILE, "For TLS: this client's own certificate.")
    key_file: str | None = setting(None, FILE, "For TLS: the key of cert_file, not encrypted.")
    tls_first: bool = setting(
        False, FLAG, "For tls://: begin with the TLS handshake, for servers with handshake_first."
    )
    connect_timeout: Duration = setting("10s", time_span(), "How long a new connection, or a request, may take.")
    heartbeat: Duration = setting(
        "10s", time_span(), "How often a connection is tested; it counts as lost after two tests without an answer."
    )
    domain: str | None = setting(
        None, STREAM, "The JetStream domain, where the streams are in another one than the server that is connected."
    )
    inbox_prefix: str = setting(
        "_INBOX", _WORDS, "How the subjects begin on which answers come; the user must be allowed to subscribe to them."
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        given = [name for name in _USERS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidSetting(f"{given[0]} and {given[1]} are both given; give one of them", settings=given)
        if (self.cert_file is None) is not (self.key_file is None):
            raise InvalidSetting(
                "cert_file and key_file belong together; give both or none", settings=("cert_file", "key_file")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings(ConnectionSettings):
    """How messages go to streams."""

    subject: str = setting(
        "{topic}", TEMPLATE, "The template of the subject: {topic}, {type}, {key}, {source}, any header, or words."
    )
    envelope: Mode = setting(
        "binary",
        choice(*MODES),
        "The form of a message: CloudEvents attributes as headers, one JSON document, or no CloudEvents at all.",
    )
    stream: str | None = setting(
        None, STREAM, "The stream that all messages must go to. Unset: whichever streams take their subjects."
    )
    declare: Literal["create", "check", "no"] = setting(
        "no",
        choice("create", "check", "no"),
        "On a new connection: create the stream if it is missing; check that it exists; or neither.",
    )
    subjects: Collection[str] | None = setting(
        None, SUBJECTS, "The subjects of a stream that is created. Unset: all that begin as the template does."
    )
    stream_config: Mapping[str, Any] | None = setting(
        None,
        VALUES,
        "More of the configuration of a stream that is created, such as {'num_replicas': 3}. Unset: in files, one "
        "replica, no limits.",
    )
    cluster: str | None = setting(
        None,
        NAME,
        "A name for the cluster that replaces the hosts in the destination that a sink keeps. "
        "Set it where relays reach one cluster by different hosts.",
    )
    confirm_timeout: Duration = setting(
        "10s",
        time_span(),
        "The servers count as unavailable when they have confirmed nothing for this long. "
        "Use more than 6s: it can take that long until another server leads a stream.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        ConnectionSettings.__post_init__(self)
        if self.declare != "no" and self.stream is None:
            raise InvalidSetting(f"declare is {self.declare!r}, and no stream is given", settings=("declare", "stream"))
        for name in ("subjects", "stream_config"):
            if getattr(self, name) is not None and self.declare != "create":
                raise InvalidSetting(
                    f"{name} is given, and declare is {self.declare!r}; it is for declare='create'",
                    settings=(name, "declare"),
                )
        if self.declare == "create" and self.subjects is None and self.subject.startswith("{"):
            raise InvalidSetting(
                f"declare is 'create' and subject is {self.subject!r}: a stream can't take all subjects that there "
                "are; give subjects, such as ['order.>'], or begin subject with a word, as in 'shop.{topic}'",
                settings=("subjects", "subject"),
            )
