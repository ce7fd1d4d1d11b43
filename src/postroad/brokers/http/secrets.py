"""The secrets of a sender or a receiver, from a setting or a file that can be changed while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postroad.errors import InvalidSetting, MissingExtra
from postroad.events import SecretsNotRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postroad.brokers.http.signatures import Key
    from postroad.events import Event

    Parse = Callable[[str, Iterable[str]], tuple[Key, ...]]

__all__ = ["SecretsFile"]


class SecretsFile:
    """A file with a secret in each line. Lines that are empty or begin with # are skipped."""

    def __init__(self, setting: str, file: Path | str, parse: Parse, emit: Callable[[Event], None]) -> None:
        """Raises InvalidSetting when it can't be read, or a secret has the wrong form, and MissingExtra."""
        self._setting = setting
        self._file = Path(file)
        self._parse = parse
        self._emit = emit
        self._state = self._reported = self._stat()
        self._keys = self._read()

    def keys(self) -> tuple[Key, ...]:
        """The secrets as they are now. A file that is wrong, such as one that is being written, changes nothing, and is
        reported once, until it changes again.
        """
        state = None
        try:
            state = self._stat()
            if state != self._state:
                self._keys = self._read()
                self._state = self._reported = state
        except (InvalidSetting, MissingExtra) as error:
            if state != self._reported:
                self._reported = state
                self._emit(SecretsNotRead(setting=self._setting, file=str(self._file), reason=str(error)))
        return self._keys

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Key, ...]:
        try:
            lines = [line.strip() for line in self._file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None
        return self._parse(self._setting, [line for line in lines if line and not line.startswith("#")])

    def _unreadable(self, error: Exception) -> InvalidSetting:
        return InvalidSetting(
            f"{self._setting} is {str(self._file)!r}, which can't be read: {error}", settings=(self._setting,)
        )
