"""Commands as Redis' protocol (RESP) has them on the wire. Pure."""

from __future__ import annotations

__all__ = ["bulk", "command"]


def bulk(value: bytes) -> bytes:
    """One argument."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*arguments: str | int | bytes) -> bytes:
    """A whole command."""
    encoded = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
    return b"*%d\r\n%b" % (len(encoded), b"".join(map(bulk, encoded)))
