"""`deliver`: a consumer's handlers in a user's tests, with the consumer's own transactions and no broker."""

from __future__ import annotations

import inspect
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroad import Consumer, InvalidSetting, Message, Received
from postroad.retry import Backoff
from postroad.stores.connections import NeverAwaited
from postroad.testing import Delivered, deliver
from tests.consumers import Numbered
from tests.places import Place, on_sqlite

SLOW = Backoff(max_attempts=3, first=timedelta(days=1), max_backoff=timedelta(days=1))


def consumer(place: Place, **settings: Any) -> Consumer[Any]:
    """As a service has it: with a broker, which is not there, and pauses that no test would wait for."""
    return Consumer("amqp://localhost:1", name="stock", begin=place.begin, retry=SLOW, **settings)


async def delivered(it: Consumer[Any], *events: Any, **more: Any) -> Delivered:
    given: Any = deliver(it, *events, **more)
    found: Delivered = await given if inspect.isawaitable(given) else given
    return found


async def test_an_event_is_handled_and_what_follows_is_seen(place: Place) -> None:
    it = consumer(place)
    it.on(Numbered)(place.handler(adds=True))
    done = await delivered(it, Numbered(7))
    assert (done.handled, done.attempts, done.failed, done.dead) == (1, 1, 0, [])
    done.added.assert_added("followed", key=7, times=1)
    assert await place.effects() == [7]
    again = await delivered(it, Numbered(8))
    assert [each.key for each in again.added] == ["8"], "only what was added since"


async def test_a_handler_that_fails_is_tried_again_at_once_and_then_dead(place: Place) -> None:
    seen: list[int] = []

    def fail(event: Any, message: Received) -> None:
        seen.append(message.attempt)
        raise ValueError(f"no stock for {event.number}")

    it = consumer(place)
    it.on(Numbered)(place.handler(fail, adds=True))
    done = await delivered(it, Message(Numbered(7), key="k", headers={"tenant": "a"}))
    assert (done.handled, done.failed, done.attempts) == (0, 3, 3)
    [dead] = done.dead
    assert dead.reason == "ValueError: no stock for 7"
    assert (dead.message.type, dead.message.key, dead.message.headers["tenant"]) == ("numbered", "k", "a")
    assert done.added == []
    assert seen == [1, 2, 3]
    assert await place.effects() == []


async def test_a_handler_that_works_the_second_time(place: Place) -> None:
    def fail_once(event: Any, message: Received) -> None:
        if message.attempt == 1:
            raise LookupError("not yet")

    it = consumer(place)
    it.on(Numbered)(place.handler(fail_once))
    done = await delivered(it, Numbered(7))
    assert (done.handled, done.failed, done.attempts, done.dead) == (1, 1, 2, [])


async def test_batches_and_duplicates(place: Place) -> None:
    sizes: list[int] = []
    it = consumer(place)
    it.on_batch(Numbered)(place.batch_handler(lambda batch: sizes.append(len(batch))))
    same = Message(Numbered(1), id=uuid4())
    done = await delivered(it, same, Numbered(2), Numbered(3))
    assert (done.handled, done.duplicates) == (3, 0)
    assert sizes == [3]
    assert (await delivered(it, same)).duplicates == 1
    assert await place.effects() == [1, 2, 3]


async def test_what_one_service_added_is_delivered_to_the_next(place: Place) -> None:
    it = consumer(place)
    it.on(Numbered)(place.handler(adds=True))
    first = await delivered(it, Message(Numbered(7), correlation_id="request-1"))
    seen: list[Received] = []
    other = Consumer(None, name="mail", begin=place.begin)
    other.on(Numbered, type="followed")(place.handler(lambda event, message: seen.append(message)))
    assert (await delivered(other, *first.added)).handled == 1
    assert (seen[0].correlation_id, seen[0].key, seen[0].source) == ("request-1", "7", "/effects")


async def test_what_no_handler_takes_is_dead(one_place: Place) -> None:
    it = consumer(one_place)
    it.on(Numbered)(one_place.handler())
    done = await delivered(it, Message({"a": 1}, type="other"))
    assert "other" in done.dead[0].reason


async def test_a_consumer_without_handlers_says_so(one_place: Place) -> None:
    with pytest.raises(InvalidSetting, match="has no handler"):
        await delivered(consumer(one_place), Numbered(1))


async def test_where_handlers_are_async_it_must_be_awaited(one_place: Place) -> None:
    it = consumer(one_place)
    it.on(Numbered)(one_place.handler())
    with pytest.warns(NeverAwaited):
        deliver(it, Numbered(1))


@pytest.mark.parametrize("kind", ["sqlite3"])
def test_plain_functions_in_a_plain_test(kind: str, tmp_path: Path, deliver: Any) -> None:
    place = on_sqlite(kind, tmp_path / "shop.sqlite")
    it = consumer(place)
    it.on(Numbered)(place.handler(adds=True))
    assert deliver(it, Numbered(1)).handled == 1
    assert deliver(it, Numbered(2)).added[0].key == "2"


def test_a_database_that_the_test_has_locked_is_no_endless_wait(tmp_path: Path) -> None:
    place = on_sqlite("sqlite3", tmp_path / "shop.sqlite")
    it = consumer(place)
    it.on(Numbered)(place.handler())
    with closing(sqlite3.connect(tmp_path / "shop.sqlite", isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(TimeoutError, match="does the test hold a transaction open"):
            deliver(it, Numbered(1), within=0.1)
