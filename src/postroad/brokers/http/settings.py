"""The settings of webhooks, declared once. This module imports no driver."""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from postroad.brokers.http.networks import network
from postroad.errors import InvalidSetting
from postroad.kinds import FILE, FLAG, PASSWORD_FILE, SECRET, TEXTS, Kind, choice, time_span, url, whole_number
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from postroad.kinds import Duration

__all__ = ["LARGEST_BODY", "HTTPMode", "PublisherSettings"]

HTTPMode = Literal["structured", "binary", "batched", "plain"]

LARGEST_BODY: Final = 4 * 1024 * 1024
"""What a receiver of postroad's takes in one request, unless it is told otherwise."""


def _networks(value: Any) -> tuple[str, ...] | None:
    texts = TEXTS.validate(value)
    return texts if texts is not None and all(map(network, texts)) else None


_NETWORKS: Final = Kind(
    expected="a list of networks or addresses, such as ['10.0.0.0/8', '127.0.0.1']",
    validate=_networks,
    parse=TEXTS.parse,
    metavar=TEXTS.metavar,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings(SettingsGroup):
    """How messages go to endpoints."""

    envelope: HTTPMode = setting(
        "structured",
        choice(*get_args(HTTPMode)),
        "The form of a request: one JSON document, CloudEvents attributes as headers, a JSON array of many messages, "
        "or no CloudEvents at all.",
    )
    batch_messages: int = setting(
        100, whole_number(1, 10_000), "With envelope batched: the most messages in one request."
    )
    secrets: str | None = setting(
        None, SECRET, "The secrets that requests are signed with, separated by spaces: whsec_… or whsk_…."
    )
    secrets_file: str | Path | None = setting(
        None, PASSWORD_FILE, "A file with these secrets, one in a line. It is read anew when it changes."
    )
    concurrency: int = setting(
        10,
        whole_number(1, 1000),
        "The most requests of the sink that are under way at once. With a template, one URL has at most half of them.",
    )
    connect_timeout: Duration = setting(
        "10s", time_span(), "How long a new connection may take: to find the address, to connect, and for TLS."
    )
    answer_timeout: Duration = setting("30s", time_span(), "How long a request may take, until it is answered.")
    max_message_size: int = setting(
        LARGEST_BODY,
        whole_number(1, 1 << 30),
        "A message whose request would have a larger body is refused without being sent.",
    )
    max_answer_size: int = setting(
        65_536,
        whole_number(0, 1 << 30),
        "The connection is closed when the body of an answer is larger. The answer counts.",
    )
    allow_plaintext: bool = setting(False, FLAG, "Allow http://, where every network in between can read and change.")
    allow_networks: Collection[str] | None = setting(
        None,
        _NETWORKS,
        "Networks to which connections are allowed although they are private or special: '10.0.0.0/8', '127.0.0.1'.",
    )
    proxy: str | None = setting(
        None,
        url("http://user@proxy:3128"),
        "A proxy that connects to the endpoint. It has to check the addresses then. Variables of the environment such "
        "as HTTPS_PROXY are not used.",
    )
    ca_file: str | None = setting(None, FILE, "Certificates of the authorities to trust. Unset: those of the system.")
    cert_file: str | None = setting(None, FILE, "This client's own certificate.")
    key_file: str | None = setting(None, FILE, "The key of cert_file, not encrypted.")

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        if self.secrets is not None and self.secrets_file is not None:
            raise InvalidSetting(
                "secrets and secrets_file are both given; give one of them", settings=("secrets", "secrets_file")
            )
        if (self.cert_file is None) is not (self.key_file is None):
            raise InvalidSetting(
                "cert_file and key_file belong together; give both or none", settings=("cert_file", "key_file")
            )
        if self.proxy is not None and not self.proxy.startswith(("http://", "https://")):
            raise InvalidSetting(
                "proxy does not begin with http:// or https:// (it is not shown because it may hold a password)",
                settings=("proxy",),
            )
