"""Trying again after a conflict: what is retried, how long it waits, and the ways to end. No test sleeps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from postroad import InvalidSetting, retry_on_conflict
from postroad.conflicts import AlreadyDone


class Stale(Exception):
    pass


class Deadlock(Exception):
    pass


class Wrapped(Exception):
    """As SQLAlchemy and Django wrap what their driver raises."""


class Work:
    """Raises these errors, one after the other, and then returns."""

    def __init__(self, *raises: Exception) -> None:
        self.raises = list(raises)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.raises:
            raise self.raises.pop(0)
        return "done"


def sync(work: Work, pauses: list[float], **options: Any) -> Any:
    return retry_on_conflict(work, pause=pauses.append, **options)


def asynchronous(work: Work, pauses: list[float], **options: Any) -> Any:
    async def in_a_loop() -> str:
        await asyncio.sleep(0)
        return work()

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0)
        pauses.append(seconds)

    return asyncio.run(retry_on_conflict(in_a_loop, pause=pause, **options))


@pytest.fixture(params=[sync, asynchronous], ids=["sync", "async"])
def retry(request: pytest.FixtureRequest) -> Callable[..., Any]:
    way: Callable[..., Any] = request.param
    return way


def test_work_that_meets_no_conflict_is_done_once(retry: Callable[..., Any]) -> None:
    pauses: list[float] = []
    assert retry(work := Work(), pauses, conflicts=Stale) == "done"
    assert (work.calls, pauses) == (1, [])


def test_conflicts_are_tried_again_with_a_growing_pause(retry: Callable[..., Any]) -> None:
    pauses: list[float] = []
    work = Work(Stale(), Deadlock(), Stale(), Deadlock())
    assert retry(work, pauses, conflicts=(Stale, Deadlock), first_pause="1s") == "done"
    assert work.calls == 5
    for pause, longest in zip(pauses, (1, 2, 4, 8), strict=True):
        assert 0.75 * longest <= pause <= longest
    assert pauses == sorted(pauses)


def test_the_last_conflict_is_raised(retry: Callable[..., Any]) -> None:
    pauses: list[float] = []
    work = Work(Stale("1"), Stale("2"), Stale("3"), Stale("4"))
    with pytest.raises(Stale, match="3"):
        retry(work, pauses, conflicts=Stale, attempts=3)
    assert (work.calls, len(pauses)) == (3, 2)


def test_one_attempt_is_none_again(retry: Callable[..., Any]) -> None:
    pauses: list[float] = []
    with pytest.raises(Stale):
        retry(Work(Stale()), pauses, conflicts=Stale, attempts=1)
    assert pauses == []


def test_or_it_is_logged(retry: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    work = Work(Stale("1"), Stale("the other won"))
    assert retry(work, [], conflicts=Stale, attempts=2, give_up="log") is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == "gave up after 2 attempts that met a conflict, the last one: Stale('the other won')"


def test_what_is_already_done_is_quietly_fine(retry: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    work = Work(Stale(), AlreadyDone())
    assert retry(work, pauses, conflicts=Stale) is None
    assert (work.calls, len(pauses), caplog.text) == (2, 1, "")


def test_a_signal_of_ones_own_says_so_too(retry: Callable[..., Any]) -> None:
    assert retry(Work(LookupError()), [], conflicts=Stale, already_done=LookupError) is None


def test_any_other_exception_ends_it_at_once(retry: Callable[..., Any]) -> None:
    pauses: list[float] = []
    with pytest.raises(ZeroDivisionError):
        retry(work := Work(Stale(), ZeroDivisionError()), pauses, conflicts=Stale, give_up="log")
    assert (work.calls, len(pauses)) == (2, 1)


def test_a_conflict_that_was_wrapped_is_one(retry: Callable[..., Any]) -> None:
    wrapped, other = Wrapped(), Wrapped("for another reason")
    wrapped.__cause__ = Deadlock()
    other.__cause__ = ZeroDivisionError()
    assert retry(Work(wrapped), [], conflicts=Deadlock) == "done"
    with pytest.raises(Wrapped, match="another reason"):
        retry(Work(other), [], conflicts=Deadlock)


async def test_async_work_is_begun_when_it_is_awaited_and_may_be_any_callable() -> None:
    began = []

    async def work(number: int) -> int:
        began.append(number)
        return number

    made = retry_on_conflict(partial(work, 1), conflicts=Stale)
    assert inspect.isawaitable(made)
    assert began == []
    assert await made == 1
    assert await retry_on_conflict(lambda: work(2), conflicts=Stale) == 2


async def test_without_a_pause_of_its_own_nothing_blocks() -> None:
    """While one waits for its next try, the loop goes on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    work = Work(Stale(), Stale())

    async def in_a_loop() -> str:
        return work()

    ticking = asyncio.create_task(tick())
    assert await retry_on_conflict(in_a_loop, conflicts=Stale, first_pause="10ms") == "done"
    ticking.cancel()
    assert ticks > 10


def test_without_a_pause_of_its_own_a_thread_sleeps() -> None:
    assert retry_on_conflict(Work(Stale()), conflicts=Stale, first_pause=timedelta(0)) == "done"


async def test_being_cancelled_is_no_conflict() -> None:
    waiting = asyncio.Event()

    async def work() -> None:
        waiting.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(retry_on_conflict(work, conflicts=Stale))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conflicts": ()}, r"conflicts is \(\); it must be a class of exceptions, or a tuple of them"),
        ({"conflicts": "Stale"}, "conflicts is 'Stale'; it must be a class"),
        ({"conflicts": Stale()}, "conflicts is Stale"),
        ({"conflicts": (Stale, 1)}, "conflicts is"),
        ({"conflicts": KeyboardInterrupt}, "conflicts is <class 'KeyboardInterrupt'>"),
        ({"conflicts": Exception}, "conflicts names Exception, which covers every bug"),
        ({"conflicts": Stale, "already_done": None}, "already_done is None"),
        ({"conflicts": Stale, "attempts": 0}, "attempts is 0; it must be a whole number from 1 on"),
        ({"conflicts": Stale, "attempts": True}, "attempts is True"),
        ({"conflicts": Stale, "attempts": 2.5}, "attempts is 2.5"),
        ({"conflicts": Stale, "first_pause": 5}, "first_pause is 5; it must be a number with its unit"),
        ({"conflicts": Stale, "give_up": "ignore"}, "give_up is 'ignore'; it must be 'raise' or 'log'"),
    ],
)
def test_what_is_wrong_is_named_before_any_work(options: dict[str, Any], words: str) -> None:
    work = Work()
    with pytest.raises(InvalidSetting, match=words):
        retry_on_conflict(work, **options)
    assert work.calls == 0


def test_work_must_be_something_to_do() -> None:
    work: Any = "work"
    with pytest.raises(InvalidSetting, match="work is 'work'; it must be a function without arguments"):
        retry_on_conflict(work, conflicts=Stale)
