"""Checks of a user's `begin` that need no call: its name for error messages, and whether it is sync or async."""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from typing import Any, get_origin, get_type_hints

from postroad.errors import InvalidSetting

__all__ = ["checked_begin", "described", "is_async_begin"]


def checked_begin(begin: Any) -> Any:
    """Refuse a `begin` that can't return context managers. Raises InvalidSetting."""
    if not callable(begin):
        what = "None" if begin is None else described(begin)
        raise InvalidSetting(f"begin is {what}; it must be a function that gives a context manager, as Session.begin")
    if inspect.iscoroutinefunction(begin):
        raise InvalidSetting(
            f"begin is {described(begin)}, which is `async def` and gives a coroutine, no context manager; write "
            "@asynccontextmanager above it, and `yield` the connection"
        )
    for has_yield, decorator in (
        (inspect.isgeneratorfunction, "@contextmanager"),
        (inspect.isasyncgenfunction, "@asynccontextmanager"),
    ):
        if has_yield(begin):
            raise InvalidSetting(f"begin is {described(begin)}, which has a yield and no {decorator} above it")
    return begin


def described(begin: Any) -> str:
    """Its name, without its arguments: they may hold a password."""
    if isinstance(begin, partial):
        return f"a partial of {described(begin.func)}"
    name = getattr(begin, "__qualname__", None)
    if name is not None:
        return f"{getattr(begin, '__module__', None) or 'builtins'}.{name}"
    kind = type(begin).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def is_async_begin(begin: Any) -> bool | None:
    """Whether it returns async context managers; None when only a call could tell."""
    while isinstance(begin, partial):
        begin = begin.func
    if inspect.isclass(begin):
        return _kind_of(begin)
    wrapped = inspect.unwrap(begin)
    if wrapped is not begin:  # by @contextmanager or @asynccontextmanager
        if inspect.isasyncgenfunction(wrapped):
            return True
        return False if inspect.isgeneratorfunction(wrapped) else None
    with suppress(Exception):  # annotations may name what is there for type checkers only
        given = get_type_hints(begin).get("return")
        return _kind_of(get_origin(given) or given)
    return None


def _kind_of(cls: Any) -> bool | None:
    is_sync, is_async = hasattr(cls, "__enter__"), hasattr(cls, "__aenter__")
    return None if is_sync == is_async else is_async
