"""Which letters are among what a keyboard sends."""

from __future__ import annotations

import pytest

from postroad.ops.top.screen import letters


@pytest.mark.parametrize(
    ("pressed", "found"),
    [
        (b"q", "q"), (b"12", "12"), (b"\x1b[Ap", "p"), (b"\x1bOPq", "q"), (b"\x1b", ""), (b"\x1b[3~4\x1b[1;5C", "4"),
        (b"\xffq", "q"), ("ä".encode(), "ä"), (b"", ""),
    ],
)  # fmt: skip
def test_letters(pressed: bytes, found: str) -> None:
    assert letters(pressed) == found
