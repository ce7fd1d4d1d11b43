"""Hides the values of fields by their names, in what the console shows of payloads and headers. Pure.

Names are compared without case, `-` and `_`, at any depth: `password` hides `Password` and `pass_word`. A `*` in a name
stands for any characters. JSON is redacted by its fields; any other text by what looks like
`name=value` or `name: value`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEFAULT_NAMES", "HIDDEN", "Redaction"]

HIDDEN: Final = "[hidden]"
DEFAULT_NAMES: Final = (
    "*password*", "passwd", "pwd", "pin", "*secret*", "*token*", "authorization", "proxy-authorization", "cookie",
    "set-cookie", "*api-key*", "*private-key*", "credentials", "credit-card*", "card-number", "cvc", "cvv",
    "iban", "ssn",
)  # fmt: skip

_SEPARATORS: Final = re.compile(r"[-_\s]")
_PAIR: Final = re.compile(r"""(?P<name>[\w.-]+)(?P<sign>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s&,;"']+)""")
_DEEPEST: Final = 200


class Redaction:
    """Which fields are hidden."""

    def __init__(self, names: Iterable[str] = DEFAULT_NAMES) -> None:
        self._patterns = tuple(_plain(name) for name in names)

    def hides(self, name: str) -> bool:
        """Whether the value of a field with this name is hidden."""
        plain = _plain(name)
        return any(fnmatchcase(plain, pattern) for pattern in self._patterns)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers, without the values that are hidden."""
        return {name: HIDDEN if self.hides(name) else value for name, value in headers.items()}

    def payload(self, payload: bytes) -> bytes:
        """JSON or text, without the values that are hidden. Other bytes stay as they are."""
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._text(payload)
        hidden = self.value(value)
        return payload if hidden == value else msgspec.json.encode(hidden)

    def value(self, value: Any, depth: int = 0) -> Any:
        """A decoded value, without the fields that are hidden. What is nested too deeply is hidden, too."""
        if depth > _DEEPEST:
            return HIDDEN
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if self.hides(str(name)) else self.value(each, depth + 1) for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(each, depth + 1) for each in value]
        return value

    def _text(self, payload: bytes) -> bytes:
        def pair(found: re.Match[str]) -> str:
            hidden = self.hides(found["name"].rpartition(".")[2])
            return f"{found['name']}{found['sign']}{HIDDEN}" if hidden else found[0]

        try:
            return _PAIR.sub(pair, payload.decode()).encode()
        except UnicodeDecodeError:
            return payload


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name).lower()
