"""What `postroad doctor` asks a database: facts by name, each asked alone, without changing anything.

Unlike a store, a reader accepts a database whose log must not be read: a standby, a schema of another version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

__all__ = ["FactReader"]


class FactReader(Protocol):
    """A database that facts are read from. Entering it connects; StoreUnavailable or InvalidSetting if that fails."""

    @property
    def names(self) -> Collection[str]:
        """The facts that such a database has."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def read(self, name: str) -> Any:
        """One fact: for a query, its rows as dicts. Raises NotKnown with the reason if it can't be read."""
        ...
