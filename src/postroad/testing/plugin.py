"""The pytest plugin: the fixtures `memory_sink` and `deliver`; and a test that forgot to await `add` fails.

The object that `add` returns on an async connection warns when it is destroyed without having been awaited. Python
can't raise an error at that point, so the plugin collects these warnings and fails the test.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from postroad.stores.connections import NeverAwaited
from postroad.testing import delivery
from postroad.testing.sink import MemorySink

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
    return delivery.deliver


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A test fails if one of its fixtures forgot to await."""
    with _all_awaited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A test fails if it forgot to await."""
    with _all_awaited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """The end of a fixture may forget to await, too."""
    with _all_awaited():
        return (yield)


@contextmanager
def _all_awaited() -> Iterator[None]:
    forgotten: list[str] = []
    previous = sys.unraisablehook

    def collect(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, NeverAwaited):
            forgotten.append(str(unraisable.exc_value))
        else:
            previous(unraisable)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=NeverAwaited)
        sys.unraisablehook = collect
        try:
            yield
        finally:
            sys.unraisablehook = previous
    if forgotten:
        pytest.fail("\n".join(forgotten), pytrace=False)
