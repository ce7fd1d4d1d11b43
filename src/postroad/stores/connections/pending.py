"""What `add` returns on an async connection: something that must be awaited, and says so when it is not."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["NeverAwaited", "Pending"]

logger = logging.getLogger("postroad")

MYPY = False  # mypy, and only mypy, takes this name to be true

T_co = TypeVar("T_co", covariant=True)


class NeverAwaited(RuntimeWarning):
    """A message was never added, because what `add` returned was never awaited."""


class Pending(Generic[T_co]):
    """What `add` returns on an async connection: await it, once, to add the message.

    It can't be taken for a truth value, and it complains when it is dropped, because forgetting `await` would lose the
    message.
    """

    __slots__ = ("_result", "_started", "_work")

    def __init__(self, work: Callable[[], Awaitable[None]], result: T_co) -> None:
        self._work = work
        self._result = result
        self._started = False

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._started:
            raise RuntimeError("this was awaited already; call add again to add another message")
        self._started = True
        yield from self._work().__await__()
        return self._result

    # pyright reports a truth value that never returns. mypy would take all that follows it for unreachable, and check
    # none of it; without the method it reports the truth value, where its error code truthy-bool is on.
    if not MYPY:

        def __bool__(self) -> NoReturn:
            raise TypeError("an add on an async connection was used as a truth value; write: await outbox.add(...)")

    def __del__(self) -> None:
        if not self._started:
            text = f"nothing was added for {self._result}: outbox.add on an async connection was never awaited"
            logger.error(text)
            warnings.warn(text, NeverAwaited, stacklevel=2, source=self)
