"""The dead letters of consumers, as operators work with them: on both databases, and with every broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad import BrokerUnavailable, Consumer, InvalidSetting, NotFound, Received, StoredMessage
from postroad.admin import Admin, By, Count, DeadLetterFilter, Done, State, open_admin
from postroad.brokers import publisher_for
from postroad.brokers.memory import MemoryDeadLetters, MemoryQueue
from postroad.dead_letters import DeadLetter
from tests.consumers import Numbered, consumed, consumer, put
from tests.destinations import stored
from tests.logs import PostgreSQLLog
from tests.places import Place, on_sqlite, transactions

ME = By("anna", "the warehouse is back")
ALL = DeadLetterFilter(consumer="stock", all=True)


class Inboxes(NamedTuple):
    """A place with an inbox, and its URL."""

    place: Place
    url: str

    def admin(self) -> Admin:
        return open_admin(self.url)


@pytest.fixture(params=["sqlite", "postgresql15", "postgresql18"])
async def inboxes(request: pytest.FixtureRequest, tmp_path: Path) -> Inboxes:
    if request.param == "sqlite":
        return Inboxes(on_sqlite("aiosqlite", tmp_path / "shop.sqlite"), f"sqlite:///{tmp_path}/shop.sqlite")
    log = await PostgreSQLLog.fresh(request.getfixturevalue(request.param))
    await log.execute("drop table if exists effects")
    await log.execute("create table effects (at serial, number integer)")

    async def rows(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await log.execute(sql)]

    begin, insert, is_async = transactions("asyncpg", log.url)
    return Inboxes(Place(begin, insert, is_async, rows, "postroad."), log.url)


class Failing:
    """Handlers that fail for some numbers, until they are mended."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)

    def __call__(self, event: Numbered, message: Received) -> None:
        if event.number in self.numbers:
            raise LookupError(f"no shelf for {event.number}")


async def with_dead(inboxes: Inboxes, queue: MemoryQueue, *numbers: int) -> tuple[Consumer[Any], Failing]:
    """A consumer that has given up these numbers, one after the other."""
    failing = Failing(*numbers)
    it = consumer(inboxes.place, queue)
    it.on(Numbered)(inboxes.place.handler(failing))
    for number in numbers:
        put(queue, number)
        assert (await consumed(it)).dead == 1
    return it, failing


async def test_what_a_consumer_gave_up_is_listed(inboxes: Inboxes, queue: MemoryQueue) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await with_dead(inboxes, queue, 1, 2, 3)
    async with inboxes.admin() as admin:
        page = await admin.dead_letters(DeadLetterFilter())
        assert page.total == Count(3)
        assert [row.error for row in page.letters] == [f"LookupError: no shelf for {n}" for n in (3, 2, 1)]
        first = page.letters[-1]
        assert (first.consumer, first.type, first.attempts, first.crashes) == ("stock", "numbered", 3, 0)
        assert before < first.dead_at < datetime.now(UTC) + timedelta(seconds=1)
        assert first.id == f"/tests {first.message_id}"
        cut = await admin.dead_letters(DeadLetterFilter(), 2)
        assert (len(cut.letters), cut.total) == (2, Count(3))
        for which, number in [
            (DeadLetterFilter(consumer="other"), 0),
            (DeadLetterFilter(type="numbered"), 3),
            (DeadLetterFilter(error="SHELF FOR 2"), 1),
            (DeadLetterFilter(ids=(first.id,)), 1),
            (DeadLetterFilter(since=before), 3),
            (DeadLetterFilter(before=before), 0),
        ]:
            assert await admin.preview_dead_letters(which) == Count(number), which


async def test_one_is_found_by_the_end_of_its_id_and_read(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, _ = await with_dead(inboxes, queue, 1, 2)
    async with inboxes.admin() as admin:
        row = (await admin.dead_letters(DeadLetterFilter())).letters[0]
        assert await admin.find_dead_letter(row.message_id[-8:]) == row
        assert await admin.find_dead_letter(row.id, "stock") == row
        with pytest.raises(NotFound, match="no dead letter of consumer 'other'"):
            await admin.find_dead_letter(row.id, "other")
        with pytest.raises(InvalidSetting, match="ambiguous"):
            await admin.find_dead_letter("")
        letter = await admin.read_dead_letter(it.dead_letters(), row)
        assert letter is not None
        assert (letter.body, letter.headers["postroad-reason"]) == (b'{"number":2}', row.error)
        queue.dead.clear()
        assert await admin.read_dead_letter(it.dead_letters(), row) is None


async def test_a_letter_that_is_retried_is_handled_once_and_audited(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, failing = await with_dead(inboxes, queue, 1, 2)
    failing.numbers.clear()
    async with inboxes.admin() as admin:
        which = DeadLetterFilter(consumer="stock", error="for 2")
        seen: list[int] = []
        assert await admin.retry_dead_letters(it.dead_letters(), which, ME, on_progress=seen.append) == Done(1)
        assert seen == [1]
        assert [row.error for row in (await admin.dead_letters(ALL)).letters] == ["LookupError: no shelf for 1"]
        (line,) = await admin.audit()
        assert (line.command, line.who, line.reason, line.changed) == ("inbox dead retry", ME.who, ME.reason, 1)
        assert line.arguments == {"consumer": "stock", "error": "for 2"}
    assert (await consumed(it)).handled == 1
    assert await inboxes.place.effects() == [2]


async def test_attempts_begin_anew_after_a_retry(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, _ = await with_dead(inboxes, queue, 1)
    async with inboxes.admin() as admin:
        await admin.retry_dead_letters(it.dead_letters(), ALL, ME)
        summary = await consumed(it)
        assert (summary.failed, summary.dead) == (3, 1)
        assert [row.attempts for row in (await admin.dead_letters(ALL)).letters] == [3]


async def test_a_letter_that_is_dropped_is_gone_and_audited(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, _ = await with_dead(inboxes, queue, 1, 2)
    async with inboxes.admin() as admin:
        which = DeadLetterFilter(consumer="stock", error="for 1")
        assert await admin.drop_dead_letters(it.dead_letters(), which, ME) == Done(1)
        assert [row.error for row in (await admin.dead_letters(ALL)).letters] == ["LookupError: no shelf for 2"]
        assert [delivery.body for delivery, _ in queue.dead] == [b'{"number":2}']
        assert [line.command for line in await admin.audit()] == ["inbox dead drop"]


async def test_a_letter_that_its_broker_does_not_have(inboxes: Inboxes, queue: MemoryQueue) -> None:
    """It was purged there: it can't be retried, and can be dropped."""
    it, _ = await with_dead(inboxes, queue, 1)
    queue.dead.clear()
    async with inboxes.admin() as admin:
        assert await admin.retry_dead_letters(it.dead_letters(), ALL, ME) == Done(0, {State.DEAD: 1})
        assert (await admin.dead_letters(ALL)).total == Count(1)
        assert await admin.audit() == []
        assert await admin.drop_dead_letters(it.dead_letters(), ALL, ME) == Done(1)
        assert (await admin.dead_letters(ALL)).total == Count(0)


class Between(MemoryDeadLetters):
    """Something happens right after a letter was moved."""

    def __init__(self, queue: MemoryQueue, then: Callable[[], Any]) -> None:
        super().__init__(queue)
        self._then = then

    async def retry(self, letter: DeadLetter) -> None:
        await super().retry(letter)
        await self._then()


async def test_a_message_that_dies_again_at_once_keeps_its_record(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, _ = await with_dead(inboxes, queue, 1)
    async with inboxes.admin() as admin:
        first = (await admin.dead_letters(ALL)).letters[0]
        assert await admin.retry_dead_letters(Between(queue, lambda: consumed(it)), ALL, ME) == Done(1)
        (again,) = (await admin.dead_letters(ALL)).letters
        assert again.dead_at > first.dead_at


async def test_what_was_done_before_an_outage_is_recorded(inboxes: Inboxes, queue: MemoryQueue) -> None:
    it, _ = await with_dead(inboxes, queue, 1, 2, 3)
    moved: list[int] = []

    async def go_out() -> None:
        moved.append(1)
        if len(moved) == 2:
            raise BrokerUnavailable("gone")

    async with inboxes.admin() as admin:
        with pytest.raises(BrokerUnavailable, match="gone"):
            await admin.retry_dead_letters(Between(queue, go_out), ALL, ME)
        assert [line.changed for line in await admin.audit()] == [1]
        assert (await admin.dead_letters(ALL)).total == Count(2)
    assert it.name == "stock"


async def test_a_change_must_select(inboxes: Inboxes, queue: MemoryQueue) -> None:
    box = queue.dead_letters()
    async with inboxes.admin() as admin:
        with pytest.raises(InvalidSetting, match="the filter names no consumer"):
            await admin.drop_dead_letters(box, DeadLetterFilter(all=True), ME)
        with pytest.raises(InvalidSetting, match="selects no dead letters"):
            await admin.retry_dead_letters(box, DeadLetterFilter(consumer="stock"), ME)


# -- with every broker -----------------------------------------------------------------------------------------------


class AtBroker(NamedTuple):
    url: str
    settings: dict[str, Any]
    topic: str
    publisher: dict[str, Any]


@pytest.fixture(params=["rabbitmq", "rabbitmq with partitions", "kafka", "nats", "redis", "redis with partitions"])
def at_broker(request: pytest.FixtureRequest) -> AtBroker:
    name = f"test-{uuid.uuid4().hex[:10]}"
    partitions = {"partitions": 4} if "partitions" in request.param else {}
    match request.param.split()[0]:
        case "rabbitmq":
            publisher = {"partitioned": True} if partitions else {}
            return AtBroker(request.getfixturevalue("vhost"), {**partitions}, "numbered", publisher)
        case "kafka":
            kafka = request.getfixturevalue("kafka")
            topic = kafka.create_topic(partitions=3)
            return AtBroker(kafka.url(), {"topic": topic, "group": name, "session_timeout": "6s"}, topic, {})
        case "nats":
            nats = request.getfixturevalue("nats")
            settings = {"stream": name, "subject": f"{name}.orders", "durable": name}
            return AtBroker(nats.url(), settings, f"{name}.orders", {})
        case _:
            redis = request.getfixturevalue("redis")
            return AtBroker(redis.url, {"stream": name, **partitions}, name, {**partitions})


async def publish(at: AtBroker, *messages: StoredMessage) -> None:
    publisher = publisher_for(at.url, **at.publisher)
    await publisher.open()
    try:
        assert not await publisher.publish(messages)
    finally:
        await publisher.close()


async def test_dead_letters_are_retried_into_where_they_came_from(at_broker: AtBroker, one_place_url: Inboxes) -> None:
    failing = Failing(1, 3)
    inboxes = one_place_url
    it: Any = consumer(inboxes.place, at_broker.url, heartbeat=None, **at_broker.settings)  # type: ignore[arg-type]
    it.on(Numbered)(inboxes.place.handler(failing))
    await consumed(it)  # declares what it needs
    messages = [
        stored(n, type="numbered", topic=at_broker.topic, payload=b'{"number":%d}' % n, slot=n * 200) for n in range(5)
    ]
    await publish(at_broker, *messages)
    await _until(it, 5)
    assert sorted(await inboxes.place.effects()) == [0, 2, 4]
    failing.numbers.clear()
    async with inboxes.admin() as admin:
        for number in (1, 3):
            row = await admin.find_dead_letter(str(messages[number].id), "stock")
            letter = await admin.read_dead_letter(it.dead_letters(), row)
            assert letter is not None
            assert letter.body == b'{"number":%d}' % number
        assert await admin.retry_dead_letters(it.dead_letters(), ALL, ME) == Done(2)
        await _until(it, 2)
        assert sorted(await inboxes.place.effects()) == [0, 1, 2, 3, 4]
        assert await admin.retry_dead_letters(it.dead_letters(), ALL, ME) == Done(0)
        assert (await admin.dead_letters(ALL)).letters == []


@pytest.fixture
def one_place_url(tmp_path: Path) -> Inboxes:
    return Inboxes(on_sqlite("aiosqlite", tmp_path / "shop.sqlite"), f"sqlite:///{tmp_path}/shop.sqlite")


async def _until(it: Consumer[Any], number: int) -> None:
    """Until so many messages were handled or given up."""
    done = 0
    async with asyncio.timeout(120):
        while done < number:
            summary = await it.run_until_empty()
            done += summary.handled + summary.dead
