"""What a call on an async connection returns: something that must be awaited, and says so when it is not."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

from postroad.safe_text import harmless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["Call", "NeverAwaited", "Pending"]

logger = logging.getLogger("postroad")

MYPY = False  # mypy, and only mypy, takes this name to be true

T_co = TypeVar("T_co", covariant=True)


class NeverAwaited(RuntimeWarning):
    """Nothing was done, because what `add` or another call returned was never awaited."""


class Call(NamedTuple):
    """What the user called, in the words of a complaint."""

    name: str
    undone: str
    """What has not happened to that for which it was called."""


class Pending(Generic[T_co]):
    """What `add` and its like return on an async connection: await it, once, to have it done and to get the answer.

    It can't be taken for a truth value, and it complains when it is dropped, because forgetting `await` would lose the
    message.
    """

    __slots__ = ("_about", "_call", "_started", "_work")

    def __init__(self, work: Callable[[], Awaitable[T_co]], call: Call, about: object) -> None:
        self._work = work
        self._call = call
        self._about = about
        self._started = False

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._started:
            raise RuntimeError(f"this was awaited already; call {self._call.name} again")
        self._started = True
        return self._work().__await__()

    # pyright reports a truth value that never returns. mypy would take all that follows it for unreachable, and check
    # none of it; without the method it reports the truth value, where its error code truthy-bool is on.
    if not MYPY:

        def __bool__(self) -> NoReturn:
            name = self._call.name
            raise TypeError(f"{name} on an async connection was used as a truth value; write: await {name}(...)")

    def __del__(self) -> None:
        if not self._started:
            text = f"{self._call.undone} {self._about}: {self._call.name} on an async connection was never awaited"
            logger.error(harmless(text))
            warnings.warn(text, NeverAwaited, stacklevel=2, source=self)
