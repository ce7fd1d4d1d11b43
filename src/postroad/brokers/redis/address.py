"""The address of a Redis server and our user on it, checked when it is built. No text shows a password."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote

from postroad.brokers.redis.connection import Connection, LinkLost
from postroad.brokers.redis.sentinel import SENTINEL_PORT, Place, check_master, find_master
from postroad.brokers.urls import split_url, with_port
from postroad.errors import InvalidSetting
from postroad.events import PasswordFileReadable
from postroad.permissions import all_may_read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from urllib.parse import SplitResult

    from postroad.brokers.redis.settings import ConnectionSettings
    from postroad.events import Event

__all__ = ["Address"]

DEFAULT_PORT: Final = 6379
_FILES: Final = ("ca_file", "cert_file", "key_file")
_SENTINEL: Final = "+sentinel"
_SCHEMES: Final = ("redis", "rediss", f"redis{_SENTINEL}", f"rediss{_SENTINEL}")
_EXAMPLE: Final = (
    "it must look like redis://user@host:6379/0, rediss://..., or redis+sentinel://user@host:26379,host2/NAME/0, where "
    "NAME is what the sentinels call the master"
)


class Address:
    """A URL such as `rediss://relay@redis.example/0?ca_file=/etc/ssl/redis.pem`, with a password from elsewhere; or one
    that names sentinels, such as `redis+sentinel://relay@a.example,b.example/main/0`.

    `username`, `password` and `password_file` of the settings replace those of the URL. Each `connect` reads the file
    again, so that a password can be changed while the process runs.
    """

    def __init__(self, url: str, settings: ConnectionSettings, *, client_name: str = "postroad") -> None:
        parts = _parsed(url)
        self._settings = settings
        self._client_name = re.sub(r"[^!-~]", "-", client_name)  # Redis takes no blanks there
        self.follows_master = parts.scheme.endswith(_SENTINEL)
        """Sentinels say where to connect to, anew for each connection."""
        default = SENTINEL_PORT if self.follows_master else DEFAULT_PORT
        self._places = [_place(each, default) for each in parts.netloc.rpartition("@")[2].split(",")]
        path = parts.path.strip("/")
        self._master, _, database = path.partition("/") if self.follows_master else ("", "", path)
        self._database = database or "0"
        self._options = dict(parse_qsl(parts.query))
        self._secure = parts.scheme.startswith("rediss")
        self.user = settings.username or unquote(parts.username or "") or None
        self._password = settings.password if settings.password is not None else unquote(parts.password or "")
        where = f"{self._master}/{self._database}" if self.follows_master else self._database
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{where}"
        self._tls = self._tls_context()
        self.password()  # a file that can't be read is an error now, not when the first message is published

    def __repr__(self) -> str:
        return f"Address({self.name!r}, username={self.user!r})"

    def warnings(self) -> Iterator[Event]:
        """What is not wrong, but unwise."""
        file = self._settings.password_file
        if file is not None and all_may_read(file):
            yield PasswordFileReadable(setting="password_file", file=str(file))

    def destination(self, cluster: str | None, **settings: str) -> str:
        """The destination that a sink keeps. The name of a cluster, if given, replaces host and port; with sentinels,
        the master's name does.
        """
        host, port = self._places[0]
        scheme, place = "redis", f"{host}:{port}" if cluster is None else quote(cluster, safe="")
        if cluster is None and self.follows_master:
            scheme, place = f"redis{_SENTINEL}", quote(self._master, safe="")
        query = "&".join(f"{name}={quote(value, safe='{}.')}" for name, value in settings.items())
        return f"{scheme}://{place}/{self._database}?{query}"

    def password(self) -> str:
        """The password as it is now."""
        file = self._settings.password_file
        if file is None:
            return self._password
        try:
            return Path(file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"password_file is {str(file)!r}, which can't be read: {error}", settings=("password_file",)
            ) from None

    async def connect(self) -> Connection:
        """A new connection, with our user and database. Raises LinkLost."""
        seconds, place = self._settings.seconds("connect_timeout"), self._places[0]
        if self.follows_master:
            place = await find_master(self._places, self._master, self._reach, seconds)
        connection = await self._reach(place)
        try:
            await self._log_in(connection, seconds)
            if self.follows_master:
                await check_master(connection, seconds)
        except BaseException:
            connection.abort("the connection was not used")
            raise
        return connection

    async def _reach(self, place: Place) -> Connection:
        seconds = self._settings.seconds("connect_timeout")
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(Connection, *place, ssl=self._tls)
        except TimeoutError:
            raise LinkLost(f"no connection within {seconds:g} seconds") from None
        except OSError as error:  # of TLS, too
            raise LinkLost(str(error)) from error
        return connection

    async def _log_in(self, connection: Connection, seconds: float) -> None:
        try:
            password = self.password()
        except InvalidSetting as error:  # a file that could be read when the address was built
            raise LinkLost(str(error)) from error
        if password or self.user:
            await connection.ask("AUTH", *([self.user] if self.user else []), password, seconds=seconds)
        if self._database != "0":
            await connection.ask("SELECT", self._database, seconds=seconds)
        await connection.ask("CLIENT", "SETNAME", self._client_name, seconds=seconds)

    def _tls_context(self) -> ssl.SSLContext | None:
        files: dict[str, str | None] = {
            name: getattr(self._settings, name) or self._options.get(name) for name in _FILES
        }
        given = [name for name, file in files.items() if file is not None]
        if given and not self._secure:
            raise InvalidSetting(f"{given[0]} is given, and url does not begin with rediss://", settings=(given[0],))
        for name in given:
            if not Path(files[name] or "").is_file():
                raise InvalidSetting(f"{name} is {files[name]!r}, which is not a file", settings=(name,))
        if not self._secure:
            return None
        try:
            context = ssl.create_default_context(cafile=files["ca_file"])
            if files["cert_file"] is not None:
                context.load_cert_chain(files["cert_file"], files["key_file"], password="")  # so that it does not ask
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"{', '.join(given)}: can't be used for TLS: {error}", settings=given) from None
        return context


def _parsed(url: str) -> SplitResult:
    parts = split_url(url, _SCHEMES, _FILES, _EXAMPLE)
    sentinels = parts.scheme.endswith(_SENTINEL)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not all(re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:[0-9]+)?", host) for host in hosts) or (
        len(hosts) > 1 and not sentinels
    ):
        raise InvalidSetting(f"url must name one host, or one or more sentinels; {_EXAMPLE}")
    if not all(0 < _place(host, DEFAULT_PORT)[1] < 65_536 for host in hosts):
        raise InvalidSetting(f"url has a port that is not from 1 to 65535; {_EXAMPLE}")
    if sentinels and not re.fullmatch(r"/[^/]+(/|/[0-9]{1,5})?", parts.path):
        raise InvalidSetting(f"url must name the master behind the sentinels, and a database if any; {_EXAMPLE}")
    if not sentinels and not re.fullmatch(r"/?|/[0-9]{1,5}", parts.path):
        raise InvalidSetting(f"url has a path behind its host that is no number of a database; {_EXAMPLE}")
    return parts


def _place(host: str, default: int) -> Place:
    name, _, port = with_port(host, default).rpartition(":")
    return name.strip("[]").lower(), int(port)
