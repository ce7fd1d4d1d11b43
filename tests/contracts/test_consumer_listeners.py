"""What a consumer tells its listeners, and that a listener that fails costs no message."""

from __future__ import annotations

from typing import Any

import pytest

from postroad import Received, events
from postroad.brokers.memory import MemoryQueue
from postroad.events import Event
from tests.consumers import Numbered, consumed, consumer, put
from tests.destinations import stored
from tests.places import Place


class Kept:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.name() for event in self.events]


class Failing:
    """Fails on every event."""

    def on_event(self, event: Event) -> None:
        raise LookupError(event.name())


class FailingToChoose(Failing):
    """Fails already when it is asked whether it wants an event."""

    def wants(self, event_type: type[Event]) -> bool:
        raise LookupError(event_type.__name__)


def fail_once(failed: set[int]) -> Any:
    def fail(event: Numbered, message: Received) -> None:
        if event.number == 2 and not failed:
            failed.add(2)
            raise LookupError("not yet")

    return fail


async def test_listeners_get_the_events_of_a_run(
    one_place: Place, queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept()
    it = consumer(one_place, queue, listeners=[kept])
    it.on(Numbered)(one_place.handler(fail_once(set())))
    put(queue, 1)
    put(queue, 2)
    queue.put(b"no message")
    await consumed(it)
    assert (kept.names[:2], kept.names[-1]) == (["consumer_started", "receiving"], "consumer_ended")
    assert sorted(kept.names[2:-1]) == ["handler_failed", "message_dead_lettered", *["message_handled"] * 2]
    assert caplog.text == "", "logging is a listener, and was not asked for"


@pytest.mark.parametrize("failing", [Failing(), FailingToChoose()])
async def test_a_listener_that_fails_costs_no_message(
    each_sqlite_place: Place, queue: MemoryQueue, failing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place, kept = each_sqlite_place, Kept()
    it = consumer(place, queue, listeners=[failing, kept])
    it.on(Numbered)(place.handler(fail_once(set())))
    put(queue, 1, 2, 3)
    queue.put(b"no message")
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (3, 1, 1)
    assert sorted(await place.effects()) == [1, 2, 3]
    assert (len(queue.dead), len(queue.queue)) == (1, 0)
    assert kept.names.count("message_handled") == 3, "the other listener gets every event"
    assert "failed on handler_failed" in caplog.text


async def test_a_listener_that_fails_costs_no_batch(each_sqlite_place: Place, queue: MemoryQueue) -> None:
    it = consumer(each_sqlite_place, queue, listeners=[Failing()])
    sizes: list[int] = []

    def fail_together(batch: Any) -> None:
        sizes.append(len(batch))
        if len(batch) > 1:
            raise LookupError("too many")

    it.on_batch(Numbered)(each_sqlite_place.batch_handler(fail_together))
    put(queue, 1, 2)
    assert ((await consumed(it)).handled, sizes) == (2, [2, 1, 1])


async def test_nor_one_in_a_relay(one_place: Place) -> None:
    it = consumer(one_place, MemoryQueue(), listeners=[Failing()])
    it.on(Numbered)(one_place.handler())
    publisher = it.publisher()
    await publisher.open()
    assert await publisher.publish([stored(1, type="numbered", payload=b'{"number":1}')]) == []
    assert await one_place.effects() == [1]
    await publisher.close()


async def test_the_warnings_of_a_subscriber_come_first(one_place: Place) -> None:
    class Warns(MemoryQueue):
        warnings = (events.PasswordFileReadable(setting="password_file", file="secret"),)

    kept = Kept()
    it = consumer(one_place, Warns(), listeners=[kept])
    it.on(Numbered)(one_place.handler())
    await consumed(it)
    assert kept.names == ["password_file_readable", "consumer_started", "receiving", "consumer_ended"]
