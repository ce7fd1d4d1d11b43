"""Retries work that met a conflict with another transaction. The caller names the exceptions that are conflicts.

Work is retried a few times; after that the conflict is raised, or logged. Work that finds out that another transaction
has done it already raises AlreadyDone, which ends it without an error.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from postroad.causes import chain
from postroad.errors import InvalidSetting
from postroad.kinds import duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta

__all__ = ["AlreadyDone", "retry_on_conflict"]

logger = logging.getLogger("postroad.conflicts")

T = TypeVar("T")

Exceptions = type[Exception] | tuple[type[Exception], ...]


class AlreadyDone(Exception):
    """Raised by work that finds nothing left to do, because another transaction was faster. Its own transaction is
    rolled back, and `retry_on_conflict` returns None.
    """


@overload
def retry_on_conflict(
    work: Callable[[], Coroutine[Any, Any, T]],
    /,
    *,
    conflicts: Exceptions,
    attempts: int = ...,
    first_pause: timedelta | str = ...,
    give_up: Literal["raise", "log"] = ...,
    already_done: Exceptions = ...,
    pause: Callable[[float], Awaitable[object]] | None = ...,
) -> Coroutine[Any, Any, T | None]: ...


@overload
def retry_on_conflict(
    work: Callable[[], T],
    /,
    *,
    conflicts: Exceptions,
    attempts: int = ...,
    first_pause: timedelta | str = ...,
    give_up: Literal["raise", "log"] = ...,
    already_done: Exceptions = ...,
    pause: Callable[[float], object] | None = ...,
) -> T | None: ...


def retry_on_conflict(
    work: Callable[[], Any],
    /,
    *,
    conflicts: Exceptions,
    attempts: int = 5,
    first_pause: timedelta | str = "50ms",
    give_up: Literal["raise", "log"] = "raise",
    already_done: Exceptions = AlreadyDone,
    pause: Callable[[float], Any] | None = None,
) -> Any:
    """Call `work` until it meets no conflict, and return its result.

    `work` begins its own transaction and loads what it changes: a retry must see what the other transaction did. If it
    is async, await the result. `conflicts` names the exceptions that are conflicts, raised themselves or as the cause
    of another: SQLAlchemy and Django wrap those of their driver. Any other exception is raised at once.

    Pauses double, beginning with `first_pause`. After `attempts` conflicts the last one is raised; with `give_up="log"`
    it is logged, and None is returned. None is also returned when the work raises `already_done`. `pause` waits for so
    many seconds; by default it is `time.sleep` or `asyncio.sleep`.
    """
    if not callable(work):
        raise InvalidSetting(f"work is {work!r:.80}; it must be a function without arguments")
    tries = _Tries(conflicts, attempts, duration("first_pause", first_pause).total_seconds(), give_up, already_done)
    while True:
        try:
            outcome = work()
        except Exception as error:
            seconds = tries.pause_after(error)
            if seconds is None:
                return None
        else:
            return _retry_async(outcome, work, tries, pause) if inspect.isawaitable(outcome) else outcome
        (pause or time.sleep)(seconds)


async def _retry_async(
    begun: Awaitable[Any], work: Callable[[], Awaitable[Any]], tries: _Tries, pause: Callable[[float], Any] | None
) -> Any:
    while True:
        try:
            return await begun
        except Exception as error:
            seconds = tries.pause_after(error)
            if seconds is None:
                return None
        await (pause or asyncio.sleep)(seconds)
        begun = work()


@dataclass
class _Tries:
    conflicts: Exceptions
    attempts: int
    first_pause: float
    give_up: Literal["raise", "log"]
    already_done: Exceptions
    made: int = 0

    def __post_init__(self) -> None:
        self.conflicts = _checked_exceptions("conflicts", self.conflicts)
        self.already_done = _checked_exceptions("already_done", self.already_done)
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidSetting(f"attempts is {self.attempts!r:.80}; it must be a whole number from 1 on")
        if self.give_up not in {"raise", "log"}:
            raise InvalidSetting(f"give_up is {self.give_up!r:.80}; it must be 'raise' or 'log'")

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until the next try, or None when there is none. Raises the error where that is called for."""
        self.made += 1
        if isinstance(error, self.already_done):
            return None
        if not any(isinstance(each, self.conflicts) for each in chain(error)):
            raise error
        if self.made < self.attempts:
            jitter = random.uniform(0.75, 1)  # noqa: S311 - so that two that met don't meet again
            return self.first_pause * 2.0 ** min(self.made - 1, 62) * jitter
        if self.give_up == "raise":
            raise error
        logger.warning("gave up after %d attempts that met a conflict, the last one: %r", self.made, error)
        return None


def _checked_exceptions(name: str, given: Any) -> tuple[type[Exception], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    if not classes or not all(isinstance(each, type) and issubclass(each, Exception) for each in classes):
        raise InvalidSetting(f"{name} is {given!r:.80}; it must be a class of exceptions, or a tuple of them")
    if Exception in classes:
        raise InvalidSetting(f"{name} names Exception, which covers every bug; name those that mean it")
    return classes
