"""The pytest plugin: the fixtures `memory_sink` and `deliver`, and a test fails if what it added was never awaited.

A message that was never added complains while Python throws it away, where an error can't stop anything: it is caught
here, and the test is failed in its place.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from postroad.stores.connections import NeverAwaited
from postroad.testing import delivering
from postroad.testing.arriving import MemorySink

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["deliver", "memory_sink", "pytest_runtest_call", "pytest_runtest_setup", "pytest_runtest_teardown"]


@pytest.fixture
def memory_sink() -> MemorySink:
    """A broker in memory, for `run_relay_until_empty`."""
    return MemorySink()


@pytest.fixture
def deliver() -> Any:
    """`postroad.testing.deliver`: hand events to a consumer's handlers without a broker."""
    return delivering.deliver


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A fixture may forget to await, too."""
    with _nothing_dropped():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The test itself."""
    with _nothing_dropped():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """And the end of a fixture."""
    with _nothing_dropped():
        return (yield)


@contextmanager
def _nothing_dropped() -> Iterator[None]:
    dropped: list[str] = []
    others = sys.unraisablehook

    def keep(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, NeverAwaited):
            dropped.append(str(what.exc_value))
        else:
            others(what)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=NeverAwaited)
        sys.unraisablehook = keep
        try:
            yield
        finally:
            sys.unraisablehook = others
    if dropped:
        pytest.fail("\n".join(dropped), pytrace=False)
