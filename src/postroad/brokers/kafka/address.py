"""The address of a Kafka cluster and our user on it, checked when it is built, as configuration of librdkafka.

No text shows a password.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote

from postroad.brokers.kafka.settings import MECHANISMS
from postroad.brokers.kafka.tokens import token_from
from postroad.brokers.urls import check_hosts, split_url, with_port
from postroad.errors import InvalidSetting
from postroad.events import PasswordFileReadable
from postroad.permissions import all_may_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.brokers.kafka.settings import ConnectionSettings
    from postroad.events import Event

__all__ = ["Address"]

DEFAULT_PORT: Final = 9092
_FILES: Final = ("ca_file", "cert_file", "key_file")
_OPTIONS: Final = (*_FILES, "mechanism")
_EXAMPLE: Final = "it must look like kafka://user@host1:9092,host2:9092 or kafkas://..."

# Settings decide these; a second way to say the same would win or lose without a word.
_TAKEN: Final = {
    "bootstrap.servers": "the URL's hosts",
    "metadata.broker.list": "the URL's hosts",
    "security.protocol": "kafka:// or kafkas:// in the URL",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "cert_file",
    "ssl.key.location": "key_file",
    "enable.ssl.certificate.verification": "ca_file",
    "ssl.endpoint.identification.algorithm": "ca_file, and certificates that have the names of the brokers' hosts",
    "log_level": "logging",
}
_SECRET: Final = re.compile(r"(?i)sasl\.|password|secret|\.pem$|_cb$|^logger$")


class Address:
    """A URL such as `kafkas://relay@kafka1.example,kafka2.example`, with a password from elsewhere.

    `username`, `password`, `password_file` and the others of the settings replace what the URL says.
    """

    def __init__(self, url: str, settings: ConnectionSettings, *, client_id: str = "postroad") -> None:
        parts = split_url(url, ("kafka", "kafkas"), _OPTIONS, _EXAMPLE)
        check_hosts(parts, _EXAMPLE, destination="topic")
        self._settings = settings
        self._client_id = client_id
        self._secure = parts.scheme == "kafkas"
        user, at, hosts = parts.netloc.rpartition("@")
        name, _, password = user.partition(":")
        self._hosts = [with_port(host, DEFAULT_PORT) for host in hosts.split(",")]
        self._url_options = dict(parse_qsl(parts.query))
        self.user = settings.username or (unquote(name) if at else None) or None
        self._password = settings.password if settings.password is not None else unquote(password)
        self.name = f"{parts.scheme}://{','.join(self._hosts)}"
        self._mechanism = self._checked_mechanism()
        self._check_files()
        self.password()  # a file that can't be read is an error now, not when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        for setting in ("password_file", "token_file"):
            file = getattr(self._settings, setting)
            if file is not None and all_may_read(file):
                yield PasswordFileReadable(setting=setting, file=str(file))

    def destination(self, cluster: str | None, **settings: str) -> str:
        """The destination that a sink keeps: the hosts in one order, whatever the URL's. The name of a cluster, if
        given, replaces them.
        """
        place = ",".join(sorted(self._hosts)) if cluster is None else quote(cluster, safe="")
        query = "&".join(f"{name}={quote(value, safe='{}.')}" for name, value in settings.items())
        return f"kafka://{place}/?{query}"

    def password(self) -> str:
        """The password as it is now."""
        return _content("password_file", self._settings.password_file) or self._password

    def config(self, taken: dict[str, str]) -> dict[str, Any]:
        """The configuration for librdkafka, with passwords. `taken` are the options that the caller sets itself, with
        what to use instead; the user's own `options` are checked against them.
        """
        sasl, tls = self._mechanism is not None, self._secure
        protocol = {(False, False): "PLAINTEXT", (False, True): "SSL", (True, False): "SASL_PLAINTEXT"}
        config: dict[str, Any] = {
            "client.id": self._client_id,
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2_000,
            "log_level": 0,  # what goes wrong comes through error_cb
            **self._checked_options(taken),
            "bootstrap.servers": ",".join(self._hosts),
            "security.protocol": protocol.get((sasl, tls), "SASL_SSL"),
        }
        names = {"ca_file": "ssl.ca.location", "cert_file": "ssl.certificate.location", "key_file": "ssl.key.location"}
        config |= {names[name]: file for name, file in self._files().items()}
        return config | self._sasl()

    # -- parts of it -------------------------------------------------------------------------------------------------

    def _sasl(self) -> dict[str, Any]:
        if self._mechanism is None:
            return {}
        if self._mechanism != "OAUTHBEARER":
            user = {"sasl.username": self.user, "sasl.password": self.password()}
            return {"sasl.mechanisms": self._mechanism, **user}
        if self._settings.token_file is not None:
            _, expires_at = self._token("")  # without a token, a new client blocks for ten seconds
            if expires_at <= time.time():
                raise InvalidSetting(f"the token in token_file {str(self._settings.token_file)!r} has expired")
            return {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": self._token}
        config = {
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self._settings.token_url,
            "sasl.oauthbearer.client.id": self.user,
            "sasl.oauthbearer.client.secret": self.password(),
        }
        if self._settings.token_scope is not None:
            config["sasl.oauthbearer.scope"] = self._settings.token_scope
        return config

    def _token(self, _: str) -> tuple[str, float]:
        """Librdkafka asks for a token before the last one expires."""
        return token_from(_content("token_file", self._settings.token_file) or "")

    def _files(self) -> dict[str, str]:
        given = {name: getattr(self._settings, name) or self._url_options.get(name) for name in _FILES}
        return {name: file for name, file in given.items() if file is not None}

    def _checked_mechanism(self) -> str | None:
        given = self._settings.mechanism or self._url_options.get("mechanism")
        if given is not None and given not in MECHANISMS:
            raise InvalidSetting(f"url has mechanism={given!r}; it must be one of {', '.join(MECHANISMS)}")
        if given == "OAUTHBEARER":
            token_url, token_file = self._settings.token_url, self._settings.token_file
            if token_file is None and (token_url is None or self.user is None):
                raise InvalidSetting(
                    "mechanism is 'OAUTHBEARER', which needs token_file, or token_url with username and password",
                    settings=("mechanism",),
                )
        elif given is not None and self.user is None:
            raise InvalidSetting(f"mechanism is {given!r}, and there is no username", settings=("mechanism",))
        return given or (None if self.user is None else "SCRAM-SHA-512")

    def _check_files(self) -> None:
        files = self._files()
        if files and not self._secure:
            raise InvalidSetting(f"{next(iter(files))} is given, and url does not begin with kafkas://")
        for name, file in files.items():
            if not Path(file).is_file():
                raise InvalidSetting(f"{name} is {file!r}, which is not a file", settings=(name,))

    def _checked_options(self, taken: dict[str, str]) -> dict[str, Any]:
        options = dict(self._settings.options or {})
        for name in options:
            instead = (_TAKEN | taken).get(name)
            if instead is None and _SECRET.search(name):
                instead = "the settings for users, passwords and certificates"
            if instead is not None:
                raise InvalidSetting(
                    f"options has {name!r}, which is not yours to set; use {instead}", settings=("options",)
                )
        return options


def _content(setting: str, file: Path | str | None) -> str | None:
    """The text in a file, as it is now."""
    if file is None:
        return None
    try:
        return Path(file).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{setting} is {str(file)!r}, which can't be read: {error}") from None
