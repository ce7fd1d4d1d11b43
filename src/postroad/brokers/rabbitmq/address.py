"""The address of a RabbitMQ server and our user on it, checked when it is built. No text shows a password."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from aiormq.connection import Connection
from yarl import URL

from postroad.brokers.rabbitmq.channel import LinkLost, translated
from postroad.brokers.rabbitmq.settings import LONGEST_HEARTBEAT, url_warnings
from postroad.errors import InvalidSetting, LoginRefused
from postroad.events import PasswordFileReadable
from postroad.kinds import is_url
from postroad.permissions import all_may_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroad.brokers.rabbitmq.settings import ConnectionSettings
    from postroad.events import Event

__all__ = ["Address"]

C = TypeVar("C", bound=Connection)

DEFAULT_HEARTBEAT: Final = "10"  # seconds

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_FILES: Final = ("cafile", "certfile", "keyfile")
_OPTIONS: Final = (*_FILES, "capath", "cadata", "no_verify_ssl", "auth", "heartbeat", "name")


class Address:
    """A URL such as `amqps://relay@rabbit.example/orders?cafile=/etc/ssl/rabbit.pem`, with a password from elsewhere.

    It may name several hosts of a cluster, `amqp://user@rabbit-1,rabbit-2:5673/vhost`, which are tried in turn.

    `username`, `password` and `password_file` of the settings replace those of the URL. Each `urls()` reads the file
    again, so that a password can be changed while the process runs.
    """

    def __init__(self, url: str, settings: ConnectionSettings, *, connection_name: str = "postroad") -> None:
        parsed, self._hosts = _parsed(url)
        _check_options(parsed)
        if settings.username is not None:
            parsed = parsed.with_user(settings.username).with_password(parsed.password)
        if settings.password is not None:
            parsed = parsed.with_password(settings.password)
        options = {"name": connection_name, "heartbeat": DEFAULT_HEARTBEAT} | dict(parsed.query)
        if settings.heartbeat is not None:
            options["heartbeat"] = f"{settings.seconds('heartbeat'):.0f}"
        self._url = parsed.with_query(options)
        self._password_file = None if settings.password_file is None else Path(settings.password_file)
        self.user = parsed.user or "guest"
        self.name = self._with_hosts(str(parsed.with_user(None).with_query(None)))
        self._first = 0
        self.urls()  # a file that can't be read is an error now, not when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        if self._password_file is not None and all_may_read(self._password_file):
            yield PasswordFileReadable(setting="password_file", file=str(self._password_file))
        yield from url_warnings(self.name, str(self._url))

    def destination(self, cluster: str | None, **settings: str) -> str:
        """The destination that a sink keeps. The name of a cluster, if given, replaces scheme, hosts and ports."""
        url = self._url
        hosts = sorted(f"{host.host}:{host.port or _PORTS[url.scheme]}" for host in self._hosts)
        server = f"{url.scheme}://{','.join(hosts)}" if cluster is None else f"amqp://{quote(cluster, safe='')}"
        vhost = quote(url.path[1:].replace("%2F", "/") or "/", safe="")
        query = "&".join(f"{name}={quote(value, safe='{}.')}" for name, value in settings.items())
        return f"{server}/{vhost}?{query}"

    def urls(self) -> list[URL]:
        """The whole URL for each host, with the password: for the driver only. The one to try first comes first."""
        url = self._url
        if self._password_file is not None:
            try:
                password = self._password_file.read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(
                    f"password_file is {str(self._password_file)!r}, which can't be read: {error}"
                ) from None
            url = url.with_user(self.user).with_password(password)
        hosts = self._hosts[self._first :] + self._hosts[: self._first]
        return [url.with_host(str(host.host)).with_port(host.port) for host in hosts]

    async def connect(self, make: Callable[[URL], C], seconds: float) -> C:
        """Connect to the first host that answers within so many seconds. The next call begins with the host after it.

        Raises LinkLost, with the reasons of all hosts.
        """
        try:
            urls = self.urls()
        except InvalidSetting as error:
            raise LinkLost(str(error)) from error
        reasons: list[str] = []
        for url in urls:
            self._first = (self._first + 1) % len(urls)
            connection = make(url)
            try:
                async with asyncio.timeout(seconds):
                    with translated():
                        await connection.connect()
            except TimeoutError:
                reasons.append(f"no connection within {seconds:g} seconds")
            except LinkLost as lost:
                if len(urls) == 1 or lost.outage is LoginRefused:  # what one node of a cluster says of users, all do
                    raise
                reasons.append(str(lost))
            else:
                return connection
        raise LinkLost("; ".join(dict.fromkeys(reasons)))

    def _with_hosts(self, url: str) -> str:
        """A URL without a user, with all hosts in place of its own."""
        scheme, _, rest = url.partition("://")
        _, slash, path = rest.partition("/")
        return f"{scheme}://{','.join(host.raw_authority for host in self._hosts)}{slash}{path}"


def _parsed(url: str) -> tuple[URL, list[URL]]:
    """The URL with its first host, and a URL for each host. Errors do not quote it, because a password may be in the
    wrong place.
    """
    example = "it must look like amqp://user@host:5672/vhost or amqps://..."
    try:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        first, *_ = names = hosts.split(",")
        parsed = URL(urlunsplit(parts._replace(netloc=f"{user}{at}{first}")))
        each = [URL(f"{parts.scheme}://{name}") for name in names]
        scheme, found = parsed.scheme, [(one.host, one.port) for one in each]
        for one in each:
            if one.host:
                one.with_host(one.host)  # it is stricter about names than the parser
    except (ValueError, TypeError, AttributeError):
        raise InvalidSetting(f"url is not a URL (it is not shown because it may hold a password); {example}") from None
    if scheme not in {"amqp", "amqps"}:
        raise InvalidSetting(f"url does not begin with amqp:// or amqps://; {example}")
    if not all(host for host, _ in found):
        raise InvalidSetting(f"url names no host{' between commas' * (len(found) > 1)}; {example}")
    if not is_url(url):
        raise InvalidSetting(
            "url can't be split into its parts (it is not shown because it may hold a password); percent-encode "
            "special characters of user and password: / is %2F, @ is %40, : is %3A, # is %23, ? is %3F"
        )
    return parsed, each


def _check_options(url: URL) -> None:
    for option, value in url.query.items():
        if option not in _OPTIONS:
            raise InvalidSetting(f"url has the option {option!r}; it may have {', '.join(_OPTIONS)}")
        if option in _FILES and not Path(value).is_file():
            raise InvalidSetting(f"url has {option}={value!r}, which is not a file")
        if option == "no_verify_ssl" and value not in {"0", "1"}:
            raise InvalidSetting(f"url has no_verify_ssl={value!r}; it must be 0 or 1")
        if option == "heartbeat" and not (re.fullmatch("[0-9]{1,5}", value) and int(value) <= LONGEST_HEARTBEAT):
            raise InvalidSetting(
                f"url has heartbeat={value!r}; it must be whole seconds, at most {LONGEST_HEARTBEAT}, or 0 for none"
            )
