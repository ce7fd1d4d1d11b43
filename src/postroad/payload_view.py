"""A payload made safe to show: no control characters, bounded length. Pure.

A payload comes from an application, and may be hostile or broken. Unprintable characters are shown as escapes, binary
data as hexadecimal; a long payload is cut, with its full size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.safe_text import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LARGEST_SHOWN", "PayloadView", "payload_view"]

LARGEST_SHOWN: Final = 4096
"""At most this many bytes of a payload are shown."""

_BYTES_PER_LINE: Final = 16


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
