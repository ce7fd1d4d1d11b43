"""Runs a coroutine that uses no connection from a test's plain function, whether or not an event loop is running."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_in_thread"]

T = TypeVar("T")


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, in a loop of its own: the test may have one that is running."""
    with ThreadPoolExecutor(1, thread_name_prefix="postroad-testing") as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()
