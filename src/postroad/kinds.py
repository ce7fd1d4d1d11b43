"""The kinds of values that a setting can have: how a text is read, what is accepted, and what an error says. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FILE",
    "FLAG",
    "NAME",
    "PASSWORD_FILE",
    "SECRET",
    "TEMPLATE",
    "TEXTS",
    "VALUES",
    "Duration",
    "Kind",
    "Size",
    "choice",
    "duration",
    "duration_text",
    "identifier",
    "is_url",
    "size",
    "text",
    "time_span",
    "url",
    "whole_number",
]

# -- durations -------------------------------------------------------------------------------------------------------

Duration = timedelta | str
"""A timedelta, or a number with its unit: "50ms", "5s", "10m", "12h", "7d"."""

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_LONGEST: Final = timedelta(days=36_500)
_A_DURATION: Final = "a number with its unit, such as '50ms', '5s', '10m', '12h', '7d'"


def duration(name: str, value: Any) -> timedelta:
    """Read a duration; 0 needs no unit, every other number does. Raises InvalidSetting, which names the setting."""
    found = _duration(value)
    if found is None:
        raise _wrong(name, value, _A_DURATION)
    return found


def duration_text(value: timedelta) -> str:
    """A duration as a person would write it. `duration` reads it back."""
    for unit, name in reversed(_UNITS.items()):
        count, rest = divmod(value, timedelta(**{name: 1}))
        if count and not rest:
            return f"{count}{unit}"
    return f"{value / timedelta(milliseconds=1):.3f}".rstrip("0").rstrip(".") + "ms" if value else "0"


def _duration(value: Any) -> timedelta | None:
    found = None
    if isinstance(value, timedelta):
        found = value
    elif not isinstance(value, bool) and value in (0, "0"):
        found = timedelta(0)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        try:
            found = timedelta(**{_UNITS[match[2]]: float(match[1])})
        except OverflowError:
            return None
    return found if found is not None and timedelta(0) <= found <= _LONGEST else None


# -- sizes -----------------------------------------------------------------------------------------------------------

Size = int | str
"""A number of bytes, or a number with its unit: "4KB", "1MB". 1 KB is 1,024 bytes, as in PostgreSQL's settings."""

_SIZE: Final = re.compile(r"([0-9]{1,12})\s*(B|KB|MB|GB)")
_FACTORS: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def size(name: str, value: Any) -> int:
    """Read a number of bytes. Raises InvalidSetting, which names the setting."""
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip().upper())):
        return int(match[1]) * _FACTORS[match[2]]
    raise _wrong(name, value, "a number of bytes, or a number with its unit, such as '512B', '4KB', '1MB'")


# -- kinds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a setting accepts: a description and a check."""

    expected: str
    """What follows "it must be" in an error."""
    validate: Callable[[Any], Any]
    """Returns the value in its final form, or None if it is not accepted."""
    parse: Callable[[str], Any] = str
    """Turns a text from the environment or the command line into a value, which is not validated yet."""
    metavar: str = "TEXT"
    """What the help of an option calls the value."""
    secrecy: Literal["none", "password", "all", "file"] = "none"
    """What is secret: nothing, a password inside the value (a URL), the whole value, or the file that it names."""

    @property
    def shows_value(self) -> bool:
        """Whether errors and reprs may quote the value."""
        return self.secrecy in {"none", "file"}

    def check(self, name: str, value: Any) -> Any:
        """Return the value in its final form. Raises InvalidSetting, which names the setting."""
        valid = self.validate(value)
        if valid is not None:
            return valid
        if self.shows_value:
            raise _wrong(name, value, self.expected)
        raise InvalidSetting(f"{name} is wrong (it is not shown because it may be secret); it must be {self.expected}")


def _wrong(name: str, value: Any, expected: str) -> InvalidSetting:
    shown = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return InvalidSetting(f"{name} is {shown}; it must be {expected}")


def whole_number(least: int, most: int) -> Kind:
    """A whole number within these bounds."""
    return Kind(
        expected=f"a whole number from {least:,} to {most:,}",
        validate=lambda value: value if type(value) is int and least <= value <= most else None,
        parse=lambda text: int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else text,
        metavar="N",
    )


def time_span(*, zero: bool = False, seconds_up_to: int | None = None) -> Kind:
    """A duration that may be 0, or not; `seconds_up_to` is for a protocol that counts in whole seconds."""

    def validate(value: Any) -> timedelta | None:
        found = _duration(value)
        if found is None or (seconds_up_to and (found.total_seconds() > seconds_up_to or found.microseconds)):
            return None
        return found if found or zero else None

    limits = f", whole seconds up to {seconds_up_to}s" if seconds_up_to else ""
    expected = f"{_A_DURATION}{limits}, {'or' if zero else 'but not'} 0"
    return Kind(expected=expected, validate=validate, metavar="TIME")


def choice(*words: str, any_case: bool = False) -> Kind:
    """One of these words."""

    def validate(value: Any) -> str | None:
        word = value.lower() if any_case and isinstance(value, str) else value
        return word if word in words else None

    return Kind(expected=f"one of {', '.join(map(repr, words))}", validate=validate, metavar="|".join(words))


def text(expected: str, pattern: str, *, metavar: str = "TEXT", most: int = 255) -> Kind:
    """A printable text that matches the pattern and has at most so many bytes."""
    matches = re.compile(pattern).fullmatch

    def validate(value: Any) -> str | None:
        fine = isinstance(value, str) and value.isprintable() and len(value.encode()) <= most and matches(value)
        return value if fine else None

    return Kind(expected=expected, validate=validate, metavar=metavar)


def identifier(most: int) -> Kind:
    """A name that SQL needs no quotes for."""
    expected = f"a lower-case name of letters, digits and underscores (at most {most})"
    return text(expected, r"[a-z_][a-z0-9_]*", metavar="NAME", most=most)


def url(example: str) -> Kind:
    """A URL that may hold a password."""
    expected = (
        f"a URL such as {example}, with special characters in a password percent-encoded: "
        "/ is %2F, @ is %40, : is %3A, # is %23, ? is %3F, a space is %20, ' is %27"
    )
    return Kind(
        expected=expected,
        validate=lambda value: value if is_url(value) else None,
        metavar="URL",
        secrecy="password",
    )


NAME: Final = text("a text of 1 to 255 bytes, without control characters", r".+", metavar="NAME")
FILE: Final = text("the name of a file", r".+", metavar="FILE", most=4096)
PASSWORD_FILE: Final = Kind(
    expected=FILE.expected,
    validate=lambda value: FILE.validate(str(value) if isinstance(value, PathLike) else value),
    metavar="FILE",
    secrecy="file",
)
SECRET: Final = Kind(expected="a text", validate=lambda value: value if isinstance(value, str) else None, secrecy="all")
TEMPLATE: Final = text(
    "a text with names in braces, for example '{topic}' or '{tenant}.{type}', where tenant is a header",
    r"(?:[^{}]|\{[^{}]+\})+",
    most=1000,
)
FLAG: Final = Kind(
    expected="true or false",
    validate=lambda value: value if isinstance(value, bool) else None,
    parse=lambda text: {"true": True, "false": False}.get(text.lower(), text),
    metavar="true|false",
)


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) or not isinstance(value, Collection):
        return None
    return tuple(value) if all(NAME.validate(each) for each in value) else None


TEXTS: Final = Kind(
    expected="a list of texts of 1 to 255 bytes, even if it is only one",
    validate=_texts,
    parse=lambda text: text.split(","),
    metavar="TEXT,...",
)


def _pairs(text: str) -> dict[str, str] | str:
    pairs = [pair.partition("=") for pair in text.split(",")]
    return {name: value for name, _, value in pairs} if all(equals for _, equals, _ in pairs) else text


VALUES: Final = Kind(
    expected="a mapping of names to values",
    validate=lambda value: dict(value) if isinstance(value, Mapping) and all(map(NAME.validate, value)) else None,
    parse=_pairs,
    metavar="TABLE",
)

# -- URLs ------------------------------------------------------------------------------------------------------------


def is_url(value: Any) -> bool:
    """Whether drivers will split the URL at the right places: otherwise their errors quote parts of a password.

    Several hosts, as PostgreSQL allows them, are accepted. Blanks and quotes in a password are not, because
    `without_passwords` could not find such a password in a text that quotes it; nor is an @ behind the host (except in
    the options `user` and `password`), because what looks like a port or a database may be the beginning of a password.
    """
    if not isinstance(value, str) or not value.isprintable() or not re.match(r"[a-z][a-z0-9+.-]*://", value):
        return False
    try:
        _, place, path, query, fragment = urlsplit(value)
    except ValueError:
        return False
    user, _, hosts = place.rpartition("@")
    options = query.split("&") if query else []
    return not (
        fragment
        or value.endswith("#")
        or re.search(r"[\s'\"]", user)
        or (place and "@" in path)
        or not all(re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", host) for host in hosts.split(","))
        or not all(map(_is_option, options))
    )


def _is_option(text: str) -> bool:
    name, _, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z][\w.-]*=[^\s'\"]*", text):
        return False
    return "@" not in value or name in {"user", "password", "sslpassword"}
