"""Hides the values of fields by their names, in what the console shows of payloads and headers. Pure.

Names are compared without case, `-` and `_`, at any depth: `password` hides `Password` and `pass_word`. A `*` in a name
stands for any characters. A whole JSON text is redacted by its fields. Of all else, such as other text, binary formats
and JSON of which only the beginning was read, everything after the first name is hidden: where a value ends, only the
format says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

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
_ESCAPE: Final = re.compile(r"\\u(?![dD][89a-fA-F])([0-9a-fA-F]{4})")
"""Of a character of JSON, but for the halves of surrogate pairs."""
_ALNUM: Final = r"[^\W_]"
_BETWEEN: Final = r"[-_\s\0]*"
"""What may stand between the characters of a name in a text; NUL in UTF-16."""
_DEEPEST: Final = 200


class Redaction:
    """Which fields are hidden."""

    def __init__(self, names: Iterable[str] = DEFAULT_NAMES) -> None:
        plain = [_plain(name) for name in names]
        self._names = re.compile("|".join(".*".join(map(re.escape, name.split("*"))) for name in plain) or "(?!)")
        self._in_text = re.compile("|".join(map(_in_text, plain)) or "(?!)", re.IGNORECASE)

    def hides(self, name: str) -> bool:
        """Whether the value of a field with this name is hidden."""
        return self._names.fullmatch(_plain(name)) is not None

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers, without the values that are hidden."""
        return {name: HIDDEN if self.hides(name) else value for name, value in headers.items()}

    def payload(self, payload: bytes) -> bytes:
        """A payload, or the beginning of one, without the values that are hidden."""
        try:
            value = json.loads(payload.decode(), object_pairs_hook=_without_duplicates)
            hidden = self.value(value)
        except (ValueError, RecursionError):
            return self._beginning(payload)
        return payload if hidden == value else _encoded(hidden)

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

    def _beginning(self, payload: bytes) -> bytes:
        """Everything up to the first name."""
        text = payload.decode(errors="surrogateescape")
        unescaped = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
        found = self._in_text.search(unescaped)
        return payload if found is None else f"{unescaped[: found.end()]} {HIDDEN}".encode(errors="surrogateescape")


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name).lower()


def _in_text(plain: str) -> str:
    """The pattern of a name in a text. It may find more than the name alone."""
    parts = [_BETWEEN.join(map(re.escape, part)) for part in plain.split("*")]
    before = "" if plain.startswith("*") else f"(?<!{_ALNUM})"
    after = "" if plain.endswith("*") else f"(?!{_ALNUM})"
    return before + r"[\w-]*".join(part for part in parts if part) + after


def _encoded(value: Any) -> bytes:
    """JSON, in which half a surrogate pair stays an escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object. Raises ValueError if two have one name: only one of their values could be looked at."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("two fields have one name")
    return fields
