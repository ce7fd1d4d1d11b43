"""Whatever the database holds can be looked at: nothing of it moves a cursor, hides, or fills the screen. Pure.

Keys, types, headers, errors and payloads were written by applications and brokers, and any of them may be hostile or
broken. What can't be printed is shown as an escape, what is no text as hexadecimal, what is too long is cut, and how
long it was is said.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LARGEST_SHOWN", "PayloadView", "age", "bars", "count", "one_line", "payload_view", "said", "when"]

LARGEST_SHOWN: Final = 4096
"""So many bytes of a payload are shown."""

_BYTES_PER_LINE: Final = 16
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS: Final = ".:-=+*%#"


# -- texts -----------------------------------------------------------------------------------------------------------


def one_line(text: str, most: int | None = None) -> str:
    """The text as one harmless line; one with more than `most` characters ends in three dots."""
    line = harmless(text)
    return line if most is None or len(line) <= most else f"{line[: most - 3]}..."


def said(text: str, most: int | None = None) -> str:
    """What a broker or a person said, as one line. It may quote a URL, so it is shown without passwords."""
    return one_line(without_passwords(text), most)


# -- payloads --------------------------------------------------------------------------------------------------------


class PayloadView(msgspec.Struct, frozen=True):
    """A payload as it may be looked at."""

    kind: Literal["json", "text", "binary"]
    size: int
    shown: int
    """How many bytes of it the lines show."""
    lines: Sequence[str]


def payload_view(
    payload: bytes, content_type: str, *, size: int | None = None, most: int = LARGEST_SHOWN
) -> PayloadView:
    """JSON laid out, text as it is, all else as hexadecimal beside what is readable in it; the first `most` bytes.

    `size` is that of the whole, if this is only its beginning. What the content type promises is not trusted.
    """
    size = len(payload) if size is None else size
    beginning = payload[:most]
    text = _text(beginning, whole=size == len(beginning))
    if text is None:
        return PayloadView("binary", size, len(beginning), _hexadecimal(beginning))
    if "json" in content_type.lower() and size == len(beginning) and (laid_out := _laid_out(payload)) is not None:
        return PayloadView("json", size, size, _lines(laid_out))
    return PayloadView("text", size, len(text.encode()), _lines(text))


def _text(beginning: bytes, *, whole: bool) -> str | None:
    """The text, cut between two characters if it is not whole; None if it is no text. A NUL never stands in one."""
    for missing in range(1 if whole else 4):
        try:
            text = beginning[: len(beginning) - missing].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _laid_out(payload: bytes) -> str | None:
    """JSON on lines of its own, digit by digit as it was written. None if it is none, or so deep that it
    would be mostly blanks.
    """
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
        laid_out = msgspec.json.format(payload, indent=2).decode()
    except (msgspec.DecodeError, RecursionError):
        return None
    return laid_out if len(laid_out) <= 4 * LARGEST_SHOWN else None


def _lines(text: str) -> list[str]:
    """Only what every system ends a line with begins a new one."""
    return [harmless(line) for line in text.replace("\r\n", "\n").split("\n")]


def _hexadecimal(data: bytes) -> list[str]:
    lines = []
    for at in range(0, len(data), _BYTES_PER_LINE):
        part = data[at : at + _BYTES_PER_LINE]
        readable = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _BYTES_PER_LINE - 1}}  {readable}")
    return lines


# -- times and numbers -----------------------------------------------------------------------------------------------


def when(moment: datetime | None) -> str:
    """A moment, always in UTC."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(span: timedelta | float) -> str:
    """How long, in two units at most: what counts at night is whether it is seconds or days."""
    seconds = int(span.total_seconds() if isinstance(span, timedelta) else span)
    for at, (size, unit) in enumerate(_UNITS):
        if abs(seconds) >= size:
            whole, rest = divmod(abs(seconds), size)
            smaller, small_unit = _UNITS[min(at + 1, len(_UNITS) - 1)]
            second = f" {rest // smaller}{small_unit}" if rest // smaller and size != smaller else ""
            return f"{'-' if seconds < 0 else ''}{whole}{unit}{second}"
    return "0s"


def count(number: int, thing: str) -> str:
    """So many things: `1 message`, `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def bars(values: Sequence[float], *, plain: bool = False) -> str:
    """A chart of one line. Nothing at all is a blank, and anything above it is at least the lowest bar."""
    blocks = _PLAIN_BLOCKS if plain else _BLOCKS
    highest = max(values, default=0) or 1
    return "".join(" " if not value else blocks[round(value / highest * (len(blocks) - 1))] for value in values)
