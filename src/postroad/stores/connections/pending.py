"""What a call on an async connection returns: a coroutine that must be awaited, and warns when it is not."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from postroad.safe_text import harmless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["Call", "NeverAwaited", "Pending"]

logger = logging.getLogger("postroad")

T_co = TypeVar("T_co", covariant=True)


class NeverAwaited(RuntimeWarning):
    """Nothing was done, because what `add` or another call returned was never awaited."""


class Call(NamedTuple):
    """What the user called, for a warning."""

    name: str
    undone: str
    """The beginning of the warning, such as "nothing was added for"; the message's id follows."""


class Pending(Coroutine[Any, Any, T_co]):
    """What `add` and its like return on an async connection: await it, once, to run it and to get the result.

    Public signatures call it a Coroutine, because that is the one type whose forgotten `await` type checkers report. At
    run time it can't be used as a truth value, and it warns when it is dropped: forgetting `await` would lose the
    message.
    """

    __slots__ = ("_about", "_call", "_started", "_steps", "_work")

    def __init__(self, work: Callable[[], Awaitable[T_co]], call: Call, about: object) -> None:
        self._work = work
        self._call = call
        self._about = about
        self._started = False
        self._steps: Generator[Any, Any, T_co] | None = None

    def __await__(self) -> Generator[Any, Any, T_co]:
        if self._started:
            raise RuntimeError(f"this was awaited already; call {self._call.name} again")
        self._started = True
        return self._work().__await__()

    # For those that run a coroutine step by step, such as asyncio's tasks.

    def send(self, value: Any, /) -> Any:
        """Run until the next suspension."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it is suspended. Before it has begun, nothing is run."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self) -> None:
        """End it where it is suspended. Before it has begun, nothing is run, and that counts as never awaited."""
        if self._steps is not None:
            self._steps.close()

    def __bool__(self) -> NoReturn:
        name = self._call.name
        raise TypeError(f"{name} on an async connection was used as a truth value; write: await {name}(...)")

    def __del__(self) -> None:
        if not self._started:
            text = f"{self._call.undone} {self._about}: {self._call.name} on an async connection was never awaited"
            logger.error(harmless(text))
            warnings.warn(text, NeverAwaited, stacklevel=2, source=self)
