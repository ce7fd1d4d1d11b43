"""The address of a RabbitMQ server and our user on it, checked when it is built. No text shows a password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from yarl import URL

from postroad.brokers.rabbitmq.settings import LONGEST_HEARTBEAT, url_warnings
from postroad.errors import InvalidSetting
from postroad.events import PasswordFileReadable
from postroad.kinds import is_url
from postroad.permissions import all_may_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.brokers.rabbitmq.settings import ConnectionSettings
    from postroad.events import Event

__all__ = ["Address"]

DEFAULT_HEARTBEAT: Final = "10"  # seconds

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_FILES: Final = ("cafile", "certfile", "keyfile")
_OPTIONS: Final = (*_FILES, "capath", "cadata", "no_verify_ssl", "auth", "heartbeat", "name")


class Address:
    """A URL such as `amqps://relay@rabbit.example/orders?cafile=/etc/ssl/rabbit.pem`, with a password from elsewhere.

    `username`, `password` and `password_file` of the settings replace those of the URL. Each `url()` reads the file
    again, so that a password can be changed while the process runs.
    """

    def __init__(self, url: str, settings: ConnectionSettings, *, connection_name: str = "postroad") -> None:
        parsed = _parsed(url)
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
        self.name = str(parsed.with_user(None).with_query(None))
        self.url()  # a file that can't be read is an error now, not when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        if self._password_file is not None and all_may_read(self._password_file):
            yield PasswordFileReadable(setting="password_file", file=str(self._password_file))
        yield from url_warnings(self.name, str(self._url))

    def destination(self, cluster: str | None, **settings: str) -> str:
        """The destination that a sink keeps. The name of a cluster, if given, replaces scheme, host and port."""
        url = self._url
        server = (
            f"{url.scheme}://{url.host}:{url.port or _PORTS[url.scheme]}"
            if cluster is None
            else f"amqp://{quote(cluster, safe='')}"
        )
        vhost = quote(url.path[1:].replace("%2F", "/") or "/", safe="")
        query = "&".join(f"{name}={quote(value, safe='{}.')}" for name, value in settings.items())
        return f"{server}/{vhost}?{query}"

    def url(self) -> URL:
        """The whole URL, with the password: for the driver only."""
        if self._password_file is None:
            return self._url
        try:
            password = self._password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"password_file is {str(self._password_file)!r}, which can't be read: {error}"
            ) from None
        return self._url.with_user(self.user).with_password(password)


def _parsed(url: str) -> URL:
    """The URL, if it is one. Errors do not quote it, because a password may be in the wrong place."""
    example = "it must look like amqp://user@host:5672/vhost or amqps://..."
    try:
        parsed = URL(url)
        scheme, host, _ = parsed.scheme, parsed.host, parsed.port
    except (ValueError, TypeError):
        raise InvalidSetting(f"url is not a URL (it is not shown because it may hold a password); {example}") from None
    if scheme not in {"amqp", "amqps"}:
        raise InvalidSetting(f"url does not begin with amqp:// or amqps://; {example}")
    if not host:
        raise InvalidSetting(f"url names no host; {example}")
    if not is_url(url):
        raise InvalidSetting(
            "url can't be split into its parts (it is not shown because it may hold a password); percent-encode "
            "special characters of user and password: / is %2F, @ is %40, : is %3A, # is %23, ? is %3F"
        )
    return parsed


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
