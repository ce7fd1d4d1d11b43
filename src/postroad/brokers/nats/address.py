"""The address of NATS servers and our user on them, checked when it is built. No text shows a password."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from postroad.brokers.nats.connection import Connection, LinkLost
from postroad.brokers.nats.nkeys import Signer, parse_credentials
from postroad.brokers.urls import check_hosts, split_url, with_port
from postroad.errors import InvalidSetting, LoginRefused
from postroad.events import PasswordFileReadable
from postroad.permissions import all_may_read
from postroad.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroad.brokers.nats.settings import ConnectionSettings
    from postroad.events import Event

__all__ = ["Address"]

T = TypeVar("T")

DEFAULT_PORT: Final = 4222
_FILES: Final = ("ca_file", "cert_file", "key_file")
_SECRETS: Final = ("password_file", "token_file", "credentials_file", "nkey_file")
_EXAMPLE: Final = "it must look like nats://user@host1:4222,host2:4222 or tls://..."


class Address:
    """A URL such as `tls://relay@nats1.example,nats2.example`, with a password or a key from elsewhere.

    Settings replace what the URL says. Files with secrets are read again for each connection, so that they can change.
    """

    def __init__(self, url: str, settings: ConnectionSettings, *, client_name: str = "postroad") -> None:
        parts = split_url(url, ("nats", "tls"), _FILES, _EXAMPLE)
        check_hosts(parts, _EXAMPLE, destination="subject")
        self._settings = settings
        self._client_name = client_name
        self._secure = parts.scheme == "tls"
        user, at, hosts = parts.netloc.rpartition("@")
        name, _, password = user.partition(":")
        self._hosts = [with_port(host, DEFAULT_PORT) for host in hosts.split(",")]
        self._first = 0
        self._url_options = dict(parse_qsl(parts.query))
        self.user = settings.username or (unquote(name) if at else None) or None
        self._password = settings.password if settings.password is not None else unquote(password)
        self.name = f"{parts.scheme}://{','.join(self._hosts)}"
        self._check_files()
        for secret in ("password", "password_file"):
            if getattr(settings, secret) is not None and self.user is None:
                raise InvalidSetting(f"{secret} is given, and there is no username", settings=(secret, "username"))
        self._login("")  # a file that can't be read is an error now, not when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        for setting in _SECRETS:
            file = getattr(self._settings, setting)
            if file is not None and all_may_read(file):
                yield PasswordFileReadable(setting=setting, file=str(file))

    def destination(self, cluster: str | None, **settings: str | None) -> str:
        """The destination that a sink keeps: the hosts in one order, whatever the URL's. The name of a cluster, if
        given, replaces them.
        """
        place = ",".join(sorted(self._hosts)) if cluster is None else quote(cluster, safe="")
        query = "&".join(f"{name}={quote(value, safe='{}.')}" for name, value in settings.items() if value)
        return f"nats://{place}/?{query}"

    async def connect(self) -> Connection:
        """Connect to the first host that answers. The next call begins with the host after it. Raises LinkLost, with
        the reasons of all hosts.
        """
        try:
            tls = self._tls() if self._secure or self._files() else ssl.create_default_context()
            login = self._login
            login("")
        except InvalidSetting as error:
            raise LinkLost(str(error), suspicious=False) from error
        hosts = self._hosts[self._first :] + self._hosts[: self._first]
        reasons: list[str] = []
        for place in hosts:
            self._first = (self._first + 1) % len(hosts)
            host, _, port = place.rpartition(":")
            connection = Connection(
                inbox_prefix=self._settings.inbox_prefix,
                seconds=self._settings.seconds("connect_timeout"),
                heartbeat=self._settings.seconds("heartbeat"),
            )
            try:
                await connection.connect(
                    host.strip("[]"),
                    int(port),
                    options=lambda nonce: self._options() | login(nonce),
                    tls=tls,
                    secure=self._secure,
                    tls_first=self._secure and self._settings.tls_first,
                )
            except LinkLost as lost:
                if len(hosts) == 1 or lost.outage is LoginRefused:  # what one server of a cluster says of users, all do
                    raise
                reasons.append(str(lost))
            else:
                return connection
        raise LinkLost("; ".join(dict.fromkeys(reasons)), suspicious=False)

    # -- parts of it -------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        """What a client says of itself when it connects."""
        return {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": False,
            "protocol": 1,
            "lang": "postroad",
            "version": __version__,
            "name": self._client_name,
        }

    def _login(self, nonce: str) -> dict[str, str]:
        """Who this client is, as the server wants to be told; `nonce` is what a key has to sign."""
        settings = self._settings
        if settings.credentials_file is not None:
            jwt, signer = _read("credentials_file", settings.credentials_file, parse_credentials)
            return {"jwt": jwt, "sig": signer.sign(nonce)}
        if settings.nkey_file is not None:
            signer = _read("nkey_file", settings.nkey_file, Signer)
            return {"nkey": signer.public, "sig": signer.sign(nonce)}
        token = settings.token if settings.token_file is None else _content("token_file", settings.token_file)
        if token is not None:
            return {"auth_token": token}
        if self.user is None:
            return {}
        file = settings.password_file
        return {"user": self.user, "pass": self._password if file is None else _content("password_file", file)}

    def _tls(self) -> ssl.SSLContext:
        files = self._files()
        try:
            context = ssl.create_default_context(cafile=files.get("ca_file"))
            if "cert_file" in files:
                context.load_cert_chain(files["cert_file"], files["key_file"])
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(f"{' and '.join(files)} can't be used for TLS: {error}") from None
        return context

    def _files(self) -> dict[str, str]:
        given = {name: getattr(self._settings, name) or self._url_options.get(name) for name in _FILES}
        return {name: file for name, file in given.items() if file is not None}

    def _check_files(self) -> None:
        files = self._files()
        for name, file in files.items():
            if not Path(file).is_file():
                raise InvalidSetting(f"{name} is {file!r}, which is not a file", settings=(name,))
        if files:
            self._tls()
        if self._settings.tls_first and not self._secure:
            raise InvalidSetting("tls_first is true, and url does not begin with tls://", settings=("tls_first",))


def _read(setting: str, file: Path | str, parse: Callable[[str], T]) -> T:
    """What a file with a key has; an error names the setting and the file, and never the text."""
    text = _content(setting, file)
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidSetting(f"{setting} is {str(file)!r}; {error}", settings=(setting,)) from None


def _content(setting: str, file: Path | str) -> str:
    """The text in a file, as it is now."""
    try:
        return Path(file).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{setting} is {str(file)!r}, which can't be read: {error}", settings=(setting,)) from None
