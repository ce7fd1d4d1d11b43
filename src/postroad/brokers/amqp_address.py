"""Where a RabbitMQ server is and who we are to it, checked when it is built. A password is never part of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from yarl import URL

from postroad.config import duration, is_url
from postroad.errors import InvalidSetting
from postroad.events import CertificateUnverified, PasswordFileReadable
from postroad.permissions import all_may_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.config import Duration
    from postroad.events import Event

__all__ = ["Address"]

DEFAULT_HEARTBEAT: Final = "10s"

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_FILES: Final = ("cafile", "certfile", "keyfile")
_OPTIONS: Final = (*_FILES, "capath", "cadata", "no_verify_ssl", "auth", "heartbeat", "name")
_LONGEST_HEARTBEAT: Final = 65534  # AMQP has two bytes for it, and aiormq takes the last value for "off"


class Address:
    """A URL such as `amqps://relay@rabbit.example/orders?cafile=/etc/ssl/rabbit.pem`, with a password from elsewhere.

    `username`, `password` and `password_file` replace what the URL says. The file is read again by each `url()`, so
    that a password can be changed while we run.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        password_file: str | Path | None = None,
        heartbeat: Duration | None = None,
        connection_name: str = "postroad",
    ) -> None:
        parsed = _parsed(url)
        _check_options(parsed)
        if username is not None:
            parsed = parsed.with_user(username).with_password(parsed.password)
        if password is not None and password_file is not None:
            raise InvalidSetting("password and password_file are both given; give one of them")
        if password is not None:
            parsed = parsed.with_password(password)
        options = {"name": connection_name, "heartbeat": DEFAULT_HEARTBEAT} | dict(parsed.query)
        if heartbeat is not None or "heartbeat" not in parsed.query:
            options["heartbeat"] = str(_heartbeat(DEFAULT_HEARTBEAT if heartbeat is None else heartbeat))
        self._url = parsed.with_query(options)
        self._password_file = None if password_file is None else Path(password_file)
        self.user = parsed.user or "guest"
        self.name = str(parsed.with_user(None).with_query(None))
        self.url()  # a file that cannot be read is better known now than when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        if self._password_file is not None and all_may_read(self._password_file):
            yield PasswordFileReadable(setting="password_file", file=str(self._password_file))
        if self._url.scheme == "amqps" and self._url.query.get("no_verify_ssl") == "1":
            yield CertificateUnverified(
                setting=self.name, option="no_verify_ssl=1", instead="cafile=FILE with the CA's certificate"
            )

    def destination(self, cluster: str | None, **settings: str) -> str:
        """Where messages go, for a sink to keep. A cluster's name, without a port, stands for scheme, host and port."""
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
        """The whole URL, with the password: for the driver and nobody else."""
        if self._password_file is None:
            return self._url
        try:
            password = self._password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"password_file is {str(self._password_file)!r}, which cannot be read: {error}"
            ) from None
        return self._url.with_user(self.user).with_password(password)


def _parsed(url: str) -> URL:
    """The URL, if it is one. What is wrong is said without showing it: a password may stand in the wrong place."""
    example = "it must look like amqp://user@host:5672/vhost or amqps://..."
    try:
        parsed = URL(url)
        scheme, host, _ = parsed.scheme, parsed.host, parsed.port
    except (ValueError, TypeError):
        raise InvalidSetting(f"url is no URL (it is not shown, for it may hold a password); {example}") from None
    if scheme not in {"amqp", "amqps"}:
        raise InvalidSetting(f"url does not begin with amqp:// or amqps://; {example}")
    if not host:
        raise InvalidSetting(f"url names no host; {example}")
    if not is_url(url):
        raise InvalidSetting(
            "url can't be taken apart (it is not shown, for it may hold a password); write special characters of user "
            "and password as %: / is %2F, @ is %40, : is %3A, # is %23, ? is %3F"
        )
    return parsed


def _check_options(url: URL) -> None:
    for option, value in url.query.items():
        if option not in _OPTIONS:
            raise InvalidSetting(f"url has the option {option!r}; it may have {', '.join(_OPTIONS)}")
        if option in _FILES and not Path(value).is_file():
            raise InvalidSetting(f"url has {option}={value!r}, which is no file")
        if option == "no_verify_ssl" and value not in {"0", "1"}:
            raise InvalidSetting(f"url has no_verify_ssl={value!r}; it must be 0 or 1")
        if option == "heartbeat":
            _heartbeat(f"{value}s")


def _heartbeat(value: Duration) -> int:
    seconds = duration("heartbeat", value).total_seconds()
    if not seconds.is_integer() or seconds > _LONGEST_HEARTBEAT:
        raise InvalidSetting(
            f"heartbeat is {value!r}; it must be whole seconds, at most {_LONGEST_HEARTBEAT}, or 0 for none"
        )
    return int(seconds)
