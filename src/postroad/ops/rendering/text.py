"""Text of the database made safe to print: no terminal control sequences, no passwords, bounded length. Pure.

Keys, types, headers, errors and payloads come from applications and brokers, and any of them may be hostile or broken.
Unprintable characters are shown as escapes, binary data as hexadecimal; long text is cut, with its full size.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import Count

__all__ = [
    "LARGEST_SHOWN",
    "PayloadView",
    "age",
    "bars",
    "count",
    "number_text",
    "one_line",
    "payload_view",
    "time_text",
    "without_secrets",
]

LARGEST_SHOWN: Final = 4096
"""At most this many bytes of a payload are shown."""

_BYTES_PER_LINE: Final = 16
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS: Final = ".:-=+*%#"


# -- texts -----------------------------------------------------------------------------------------------------------


def one_line(text: str, most: int | None = None) -> str:
    """The text as one line without control characters; a text longer than `most` is cut and ends in three dots."""
    line = harmless(text)
    return line if most is None or len(line) <= most else f"{line[: most - 3]}..."


def without_secrets(text: str, most: int | None = None) -> str:
    """An error or a reason as one line. It may quote a URL, so passwords in it are masked."""
    return one_line(without_passwords(text), most)


# -- payloads --------------------------------------------------------------------------------------------------------


class PayloadView(msgspec.Struct, frozen=True):
    """A payload, ready to print."""

    kind: Literal["json", "text", "binary"]
    size: int
    shown: int
    """How many bytes of it are in the lines."""
    lines: Sequence[str]


def payload_view(
    payload: bytes, content_type: str, *, size: int | None = None, most: int = LARGEST_SHOWN
) -> PayloadView:
    """Format JSON indented, text as it is, and all else as a hex dump; the first `most` bytes.

    `size` is the size of the whole payload, if `payload` is only its beginning. The content type is not trusted.
    """
    size = len(payload) if size is None else size
    beginning = payload[:most]
    text = _text(beginning, whole=size == len(beginning))
    if text is None:
        return PayloadView("binary", size, len(beginning), _hex_dump(beginning))
    if "json" in content_type.lower() and size == len(beginning) and (indented := _indented(payload)) is not None:
        return PayloadView("json", size, size, _lines(indented))
    return PayloadView("text", size, len(text.encode()), _lines(text))


def _text(beginning: bytes, *, whole: bool) -> str | None:
    """Decode UTF-8, cut at a character boundary if this is only the beginning. None if it is not text or has a NUL."""
    for missing in range(1 if whole else 4):
        try:
            text = beginning[: len(beginning) - missing].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _indented(payload: bytes) -> str | None:
    """Indent JSON without changing any number's digits. None if it is not JSON, or nested so deeply that the result
    would be mostly blanks.
    """
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
        indented = msgspec.json.format(payload, indent=2).decode()
    except (msgspec.DecodeError, RecursionError):
        return None
    return indented if len(indented) <= 4 * LARGEST_SHOWN else None


def _lines(text: str) -> list[str]:
    """Split only at newlines, not at the other characters that Unicode calls line ends."""
    return [harmless(line) for line in text.replace("\r\n", "\n").split("\n")]


def _hex_dump(data: bytes) -> list[str]:
    lines = []
    for at in range(0, len(data), _BYTES_PER_LINE):
        part = data[at : at + _BYTES_PER_LINE]
        readable = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _BYTES_PER_LINE - 1}}  {readable}")
    return lines


# -- times and numbers -----------------------------------------------------------------------------------------------


def time_text(time: datetime | None) -> str:
    """A time, always in UTC."""
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(span: timedelta | float) -> str:
    """A length of time, in at most two units."""
    seconds = int(span.total_seconds() if isinstance(span, timedelta) else span)
    for at, (size, unit) in enumerate(_UNITS):
        if abs(seconds) >= size:
            whole, rest = divmod(abs(seconds), size)
            smaller, small_unit = _UNITS[min(at + 1, len(_UNITS) - 1)]
            second = f" {rest // smaller}{small_unit}" if rest // smaller and size != smaller else ""
            return f"{'-' if seconds < 0 else ''}{whole}{unit}{second}"
    return "0s"


def number_text(number: Count) -> str:
    """A number; an estimate begins with "~"."""
    return f"{'' if number.exact else '~'}{number.number:,}"


def count(number: int, thing: str) -> str:
    """A number of things: `1 message`, `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def bars(values: Sequence[float], *, plain: bool = False) -> str:
    """A bar chart in one line. 0 is a blank; anything above it is at least the lowest bar."""
    blocks = _PLAIN_BLOCKS if plain else _BLOCKS
    highest = max(values, default=0) or 1
    return "".join(" " if not value else blocks[round(value / highest * (len(blocks) - 1))] for value in values)
