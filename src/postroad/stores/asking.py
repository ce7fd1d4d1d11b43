"""How operators' questions and commands reach a database: named queries with plain values, in a session.

`Looking` and `Changing` are written once, on this; a database says only how its session asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

__all__ = ["Ask", "Asking", "Rows"]


class Rows(NamedTuple):
    """Several rows, at least one, as values of a query: a list per column in PostgreSQL, one JSON text in SQLite."""

    rows: Sequence[tuple[Any, ...]]


class Ask(Protocol):
    """Run a named query, and give its rows. Times are microseconds since 1970."""

    async def __call__(self, query: str, *values: Any) -> Sequence[Sequence[Any]]: ...


class Asking(ABC):
    """A database that can be asked; to be entered with `async with`."""

    @abstractmethod
    def session(self, *, changes: bool = False) -> AbstractAsyncContextManager[Ask]:
        """Somebody's turn to ask. With `changes`, all of it is one transaction, on disk when it is over."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Let go."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
