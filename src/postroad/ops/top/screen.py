"""The terminal of a live view: the alternate screen, single keys, and both given back whatever happens."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import ConsoleDimensions, Group
from rich.live import Live

from postroad.ops.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.text import Text

HAS_KEYS: Final = sys.platform != "win32"
"""On Windows the view is drawn, and Ctrl-C ends it."""

__all__ = ["Screen", "letters", "screen"]


# An arrow, or another key that is more than a letter; Escape alone.
_SEQUENCE: Final = re.compile(rb"\x1b(?:\[[0-9;<?]*[ -/]*[@-~]|O[@-~]|.)?", re.DOTALL)


def letters(pressed: bytes) -> str:
    """The letters among what the keyboard has sent."""
    return _SEQUENCE.sub(b"", pressed).decode(errors="ignore")


class Screen:
    """Draws lines, and knows the size of the terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        return max(1, width), max(1, height)

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the picture, in one write: the old one is not erased first, so nothing flickers."""
        width, height = self.size
        self._live.console.size = ConsoleDimensions(width, height)
        for line in lines:
            line.no_wrap = True
        self._live.update(Group(*lines), refresh=True)


@contextmanager
def screen(on_key: Callable[[str], None], on_resize: Callable[[], None], stop: Callable[[], None]) -> Iterator[Screen]:
    """The alternate screen, until the block ends. Keys and changes of the size are told to the callbacks; Ctrl-C and
    SIGTERM call `stop`. Call it in a running event loop.
    """
    console = output()
    with (
        _single_keys(on_key),
        _signals(on_resize, stop),
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        yield Screen(live)


@contextmanager
def _signals(on_resize: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop}
    if hasattr(signal, "SIGWINCH"):
        handlers[signal.SIGWINCH] = on_resize
    for number, handler in handlers.items():
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)


@contextmanager
def _single_keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Read keys without waiting for a line, and without showing them. Ctrl-Z is ignored: it would leave the terminal
    in this state.
    """
    if not HAS_KEYS or not sys.stdin.isatty():
        yield
        return
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed: list[Any] = termios.tcgetattr(keyboard)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VSUSP] = b"\x00"
    termios.tcsetattr(keyboard, termios.TCSADRAIN, changed)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            pressed = os.read(keyboard, 64)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal is gone
            loop.remove_reader(keyboard)
            on_key("q")
        for each in letters(pressed):
            on_key(each)

    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
