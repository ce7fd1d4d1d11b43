"""The URL of a sink, checked when it is built: one endpoint, or a template whose path names one for each message. Pure.

`{topic}`, `{type}`, `{key}` and any header in the path are filled in for each message; the host is always the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from postroad.brokers.cloudevents import CannotEncode, decoded_headers
from postroad.brokers.http.networks import network, why_refused
from postroad.errors import InvalidSetting
from postroad.kinds import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.http.networks import Network
    from postroad.brokers.http.settings import PublisherSettings
    from postroad.message import StoredMessage

__all__ = ["Address"]

_EXAMPLE: Final = "it must look like https://partner.example/hooks or https://partner.example/{tenant}/hooks"
_FIELD: Final = re.compile(r"\{([^{}]+)\}")
_OWN_FIELDS: Final = ("topic", "type", "key")
_LONGEST_URL: Final = 8000


class Address:
    """A URL such as `https://partner.example/hooks/{type}`."""

    def __init__(self, url: str, settings: PublisherSettings) -> None:
        parts = _parsed(url)
        host = parts.hostname.lower()
        self.allowed: Sequence[Network] = tuple(
            found for each in settings.allow_networks or () if (found := network(each)) is not None
        )
        if parts.scheme == "http" and not settings.allow_plaintext:
            raise InvalidSetting(
                "to begins with http://, which every network in between can read and change; use https://, or set "
                "allow_plaintext to true",
                settings=("allow_plaintext",),
            )
        if network(host.partition("%")[0]) is not None and (why := why_refused(host, self.allowed)):
            raise InvalidSetting(
                f"to names the address {host}, which is {why}; use a public one, or add it to allow_networks",
                settings=("allow_networks",),
            )
        place = f"[{host}]" if ":" in host else host
        if parts.port is not None and parts.port != {"https": 443, "http": 80}[parts.scheme]:
            place = f"{place}:{parts.port}"
        self.origin = f"{parts.scheme}://{place}"
        """Scheme, host and port."""
        path = parts.path or "/"
        self.destination = f"{self.origin}{path}{_without_values(parts.query)}"
        self._literals = _FIELD.split(path)[::2]
        self._names = _FIELD.split(path)[1::2]
        self._query = f"?{parts.query}" if parts.query else ""
        self.is_template = bool(self._names)

    def __repr__(self) -> str:
        return f"Address({self.destination!r})"

    def path_of(self, message: StoredMessage) -> str:
        """The path for a message. Raises CannotEncode when the message lacks what the template names."""
        if not self._names:
            return self._literals[0]
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            parts += self._value(message, name), literal
        path = "".join(parts)
        if any(segment in {".", ".."} for segment in path.split("/")) or len(path) > _LONGEST_URL:
            raise CannotEncode("its URL would have a segment . or .. in its path, or be too long")
        return path

    def target(self, path: str) -> str:
        """The path and the query, which may hold secrets."""
        return f"{path}{self._query}"

    def _value(self, message: StoredMessage, name: str) -> str:
        value: str | None = getattr(message, name) if name in _OWN_FIELDS else decoded_headers(message).get(name)
        if not value:
            what = "key" if name == "key" else f"header {name!r}"
            raise CannotEncode(f"it has no {what}, and the URL is made of {self.destination!r}")
        return quote(value, safe="")


def _parsed(url: str) -> Any:
    """The URL's parts, if it is one. Errors do not quote it, because a secret may be in it."""
    if not is_url(url):
        raise InvalidSetting(
            f"to can't be split into its parts (it is not shown because it may hold a secret); {_EXAMPLE}"
        )
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise InvalidSetting(f"to has a user or a password before its host; requests are signed instead; {_EXAMPLE}")
    try:
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise InvalidSetting(f"to has a port that is not from 1 to 65535; {_EXAMPLE}") from None
    if port == 0 or not re.fullmatch(r"[a-z0-9._~%:-]+", host.lower()):
        raise InvalidSetting(
            f"to names no host, or one that is none; names in braces may be in the path only; {_EXAMPLE}"
        )
    if re.search(r"[{}]", _FIELD.sub("", parts.path)) or re.search(r"[{}]", parts.query):
        raise InvalidSetting(f"to has a brace without its other, or one in its query; {_EXAMPLE}")
    if any(segment in {".", ".."} for segment in parts.path.split("/")):
        raise InvalidSetting(f"to has a segment . or .. in its path; {_EXAMPLE}")
    if not re.fullmatch(r"(?:[!-~]|\{[^{}]+\})*", parts.path + parts.query):
        raise InvalidSetting(f"to has characters that must be percent-encoded; {_EXAMPLE}")
    return parts


def _without_values(query: str) -> str:
    """The names of the query's options, because their values may be secret."""
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    return f"?{'&'.join(f'{name}=…' for name in names)}" if names else ""
