"""Waiting for a database that does not answer: what is reported, and when it is given up."""

from __future__ import annotations

import asyncio

import pytest

from postroad import waiting
from postroad.errors import StoreUnavailable
from postroad.waiting import connect_or_wait


async def silent() -> None:
    await asyncio.Event().wait()


async def test_a_database_that_never_answers_is_given_up_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 0.01)
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match=r"waiting 0\.05 s \(until_empty_timeout\) .* has not answered yet"):
            await connect_or_wait(silent, lambda *_: None, stopping=asyncio.Event(), limit=0.05)


async def test_that_it_does_not_answer_is_reported_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_REPORT", 0.01)
    stopping = asyncio.Event()
    reports: list[tuple[str, float]] = []

    def report(reason: str, waited: float) -> None:
        reports.append((reason, waited))
        if len(reports) == 3:
            stopping.set()

    async with asyncio.timeout(60):
        assert not await connect_or_wait(silent, report, stopping=stopping)
    assert {reason for reason, _ in reports} == {"the database has not answered yet"}
    assert 0.01 <= reports[0][1] < reports[1][1] < reports[2][1]


async def test_a_call_has_some_seconds_to_answer_whatever_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 60.0)

    async def slow() -> None:
        await asyncio.sleep(0.1)

    async with asyncio.timeout(60):
        assert await connect_or_wait(slow, lambda *_: None, stopping=asyncio.Event(), limit=0)


async def test_an_answer_after_a_failure_ends_the_wait() -> None:
    reports: list[str] = []

    async def connect() -> None:
        if not reports:
            raise StoreUnavailable("starting up", transient=True)

    async with asyncio.timeout(60):
        assert await connect_or_wait(
            connect, lambda reason, _: reports.append(reason), stopping=asyncio.Event(), limit=600
        )
    assert reports == ["starting up"], "the first failure is reported at once"
