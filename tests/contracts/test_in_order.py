"""A relay and a publisher that keeps the order of a key by itself: a page in one call, and what that leaves, in waves.

The order of arrivals through every kind of trouble is in tests/properties/test_order.py, the publishers' own promise in
test_publishers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from postroad import BrokerUnavailable, Outbox, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.retry import Backoff
from tests.logs import MemoryLog, numbered


class Calls(MemoryBroker):
    """Keeps each call, and what it brought."""

    def __init__(self, *, in_order: bool = True) -> None:
        super().__init__(in_order=in_order)
        self.calls: list[list[int]] = []

    @property
    def numbers(self) -> list[int]:
        return [int(message.payload) for message in self.messages]

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.calls.append([int(message.payload or b"-1") for message in messages])
        return await super().publish(messages)

    def refuse_once(self, *numbers: int, permanent: bool = False) -> None:
        left = set(numbers)

        def reason_for(message: StoredMessage) -> Refusal | None:
            number = int(message.payload)
            if number not in left:
                return None
            left.remove(number)
            return Refusal(message.position, "not now", permanent)

        self.refuse(reason_for)


class Bare:
    """A publisher without `in_order`."""

    name = destination = "bare"

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.calls.append([int(message.payload) for message in messages])
        return ()

    async def close(self) -> None: ...


def relay(log: MemoryLog, publisher: Any, *, first: timedelta = timedelta(0), **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 1, "batch_size": 10, "outage_backoff": "1ms"}
    return Relay(log.store, publisher, settings=RelaySettings(**(defaults | settings)), retry=Backoff(first=first))


LATER = timedelta(hours=1)


async def test_a_page_goes_in_one_call() -> None:
    log, broker = MemoryLog(), Calls()
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4), *numbered(5, key="k"))
    assert (await relay(log, broker).run_until_empty()).published == 5
    assert broker.calls == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize("publisher", [Bare(), Calls(in_order=False)])
async def test_any_other_publisher_gets_a_key_one_by_one(publisher: Any) -> None:
    log = MemoryLog()
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4))
    await relay(log, publisher).run_until_empty()
    assert publisher.calls == [[1, 4], [2], [3]]


async def test_what_is_behind_a_refused_message_waits_for_it() -> None:
    log, broker = MemoryLog(), Calls()
    broker.refuse_once(2)
    await log.add(*numbered(1, 2, 3, 4, key="k"), *numbered(5))
    summary = await relay(log, broker, first=LATER).run_until_empty()
    assert (summary.published, summary.refused, broker.numbers) == (2, 1, [1, 5])
    assert broker.calls == [[1, 2, 3, 4, 5]], "they are held, and not published for nothing"
    assert [(row.position, row.state) for row in await log.deferred()] == [(2, "retrying"), (3, "held"), (4, "held")]
    await log.pass_time(2 * LATER)
    assert (await relay(log, broker).run_until_empty()).published == 3
    assert broker.numbers == [1, 5, 2, 3, 4]


async def test_without_order_what_is_left_is_published_nevertheless() -> None:
    log, broker = MemoryLog(), Calls()
    broker.refuse_once(1, 3, 4)
    await log.add(*numbered(1, 2, 3, 4, 5, key="k"))
    summary = await relay(log, broker, first=LATER, ordering="none").run_until_empty()
    assert (summary.published, summary.refused, broker.numbers) == (2, 3, [2, 5])
    assert broker.calls == [[1, 2, 3, 4, 5], [2], [3], [4], [5]]


async def test_another_source_that_uses_the_same_key_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    log, broker = MemoryLog(), Calls()
    broker.refuse_once(1, 2)
    await log.add(*numbered(1, key="k"))
    with monkeypatch.context() as patched:
        patched.setattr("tests.logs.OUTBOX", Outbox(source="/another"))
        await log.add(*numbered(2, key="k"))
    with monkeypatch.context() as patched:
        patched.setattr("tests.logs.OUTBOX", Outbox(source="/third"))
        await log.add(*numbered(3, key="k"))
    summary = await relay(log, broker, first=LATER, ordering="source-key").run_until_empty()
    assert (summary.published, summary.refused, broker.numbers) == (1, 2, [3])


async def test_an_outage_after_a_refusal_does_not_let_the_next_one_pass() -> None:
    log, broker = MemoryLog(), Calls()
    broker.refuse_once(2)
    broker.fail_after(4)
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4, 5))
    summary = await relay(log, broker, first=LATER).run_until_empty()
    assert (summary.refused, broker.numbers) == (1, [1, 4, 5])
    assert broker.calls == [[1, 2, 3, 4, 5], [5]], "what was confirmed is not published again"
    assert [(row.position, row.state) for row in await log.deferred()] == [(2, "retrying"), (3, "held")]


async def test_an_error_leaves_all_of_the_call_to_waves() -> None:
    class Broken(Calls):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            refusals = await super().publish(messages)
            if any(message.payload == b"2" for message in messages):
                raise ZeroDivisionError
            return refusals

    log, broker = MemoryLog(), Broken()
    await log.add(*numbered(1, 2, 3, key="k"))
    summary = await relay(log, broker, first=LATER).run_until_empty()
    assert summary.refused == 1
    assert broker.calls == [[1, 2, 3], [1], [2]]
    assert [(row.position, row.state) for row in await log.deferred()] == [(2, "retrying"), (3, "held")]


async def test_a_message_that_is_too_large_to_be_read_is_not_overtaken() -> None:
    log, broker = MemoryLog(), Calls()
    await log.add(*numbered(1, 2, 3, key="k"))
    log.store._log[1] = msgspec.structs.replace(log.store._log[1], headers_json="", payload=b"")
    summary = await relay(log, broker, on_dead="hold").run_until_empty()
    assert (summary.died, broker.numbers) == (1, [1])
    assert [(row.position, row.state) for row in await log.deferred()] == [(2, "dead"), (3, "held")]


async def test_who_is_stopped_during_a_call_has_what_the_outage_tells() -> None:
    """Also when a message before it was refused: what was not taken is read again."""

    class Going(Calls):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            refusals = await super().publish(messages)
            it.stop()
            raise BrokerUnavailable("gone", confirmed={1, 4}, refusals=refusals)

    log, broker = MemoryLog(), Going()
    broker.refuse_once(2)
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4))
    it = relay(log, broker)
    assert (await it.run()).published == 1, "the cursor passes only the beginning"
    assert await log.deferred() == []
    again = Calls()
    await relay(log, again).run_until_empty()
    assert again.numbers == [2, 3, 4]


async def test_who_is_stopped_at_a_copy_has_not_passed_what_is_behind_the_dead_message() -> None:
    class Stuck(Calls):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            if messages[0].topic == "dead":
                stuck.set()
                await asyncio.Event().wait()
            return await super().publish(messages)

    log, first, broker, stuck = MemoryLog(), Calls(), Stuck(), asyncio.Event()
    await log.add(*numbered(1, 2, 3, key="k"))
    first.refuse_once(1)
    await relay(log, first, first=LATER).run_until_empty()
    await log.pass_time(2 * LATER)
    broker.refuse_once(2, permanent=True)
    it = relay(log, broker, dead_letter_topic="dead", grace="1ms")
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(stuck.wait(), 60)
    it.stop()
    await asyncio.wait_for(running, 60)
    assert broker.calls == [[1], [2, 3]]
    again = Calls()
    await relay(log, again).run_until_empty()
    assert again.numbers == [2, 3]
