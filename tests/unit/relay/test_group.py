"""Several relays in one process: none waits for another, and one that fails is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from postroad import InvalidSetting, Message, Outbox, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.errors import LoginRefused, Refusal
from postroad.events import Event, RelayRestarting
from postroad.metrics import Metrics
from postroad.metrics.probes import live
from postroad.relay import Relay, RelayGroup
from postroad.sink_filter import SinkFilter
from postroad.stores.memory import MemoryStore
from tests.logs import Arrivals

SETTINGS = RelaySettings(lanes=2, poll_interval="1ms", max_idle_backoff="5ms", grace="10ms", until_empty_timeout="0s")
OUTBOX = Outbox(source="/tests")


class Hanging(MemoryBroker):
    """Takes messages, and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for = asyncio.Event()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.asked_for.set()
        await asyncio.Event().wait()
        return ()


class Failing(MemoryBroker):
    """Can't be opened, the first times."""

    failures = 2

    async def open(self) -> Any:
        if Failing.failures:
            Failing.failures -= 1
            raise LoginRefused("wrong password")
        return await super().open()


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def add(store: MemoryStore, *numbers: int) -> None:
    with store.begin() as transaction:
        OUTBOX.add_many(transaction, [Message(str(each), type="order.created") for each in numbers])


def group(store: MemoryStore, *listeners: Any, **brokers: MemoryBroker) -> RelayGroup:
    def relay(sink: str, broker: MemoryBroker) -> Relay:
        return Relay(store, broker, sink=sink, settings=SETTINGS, listeners=listeners)

    return RelayGroup({sink: partial(relay, sink, broker) for sink, broker in brokers.items()}, listeners=listeners)


async def test_every_sink_gets_every_message(store: MemoryStore) -> None:
    add(store, 1, 2, 3)
    first, second = Arrivals(), Arrivals()
    summaries = await group(store, first=first, second=second).run_until_empty()
    assert sorted(first.numbers) == sorted(second.numbers) == [1, 2, 3]
    assert {sink: summary.published for sink, summary in summaries.items()} == {"first": 3, "second": 3}


async def test_a_destination_that_hangs_delays_no_other_sink(store: MemoryStore) -> None:
    add(store, 1)
    hanging, fine = Hanging(), Arrivals()
    together = group(store, hanging=hanging, fine=fine)
    running = asyncio.create_task(together.run())
    async with asyncio.timeout(60):
        await hanging.asked_for.wait()
        for number in range(2, 20):
            add(store, number)
            await fine.until(number)
    together.stop()
    summaries = await running
    assert (summaries["hanging"].published, summaries["fine"].published) == (0, 19)


async def test_an_outage_of_one_destination_concerns_its_sink_alone(store: MemoryStore) -> None:
    add(store, 1)
    out, fine = Arrivals(), Arrivals()
    out.go_out()
    together = group(store, out=out, fine=fine)
    running = asyncio.create_task(together.run())
    async with asyncio.timeout(60):
        for number in range(2, 10):
            add(store, number)
            await fine.until(number)
        assert not out.numbers
        out.come_back()
        await out.until(*range(1, 10))
    together.stop()
    await running


async def test_a_relay_that_fails_is_started_again_while_the_others_go_on(store: MemoryStore) -> None:
    Failing.failures = 2
    failing, fine, heard, metrics = Failing(), Arrivals(), Heard(), Metrics()
    together = group(store, heard, metrics, failing=failing, fine=fine)
    running = asyncio.create_task(together.run())
    add(store, 1)
    async with asyncio.timeout(60):
        await fine.until(1)
        while not failing.messages:
            await failing.asked.wait()
            await asyncio.sleep(0)
    restarts = [event for event in heard.events if isinstance(event, RelayRestarting)]
    assert [(each.sink, each.reason) for each in restarts] == [("failing", "wrong password")] * 2
    assert live(metrics.relays(), ()).ok
    together.stop()
    await running


async def test_a_relay_that_can_t_be_made_again_is_tried_later(store: MemoryStore) -> None:
    """As when a file with its secrets is missing just then: the sink would be served no more, and without a word."""
    Failing.failures = 1
    failing, heard = Failing(), Heard()
    makings = iter((True, False, True))

    def make() -> Relay:
        if not next(makings):
            raise InvalidSetting("secrets_file is '/gone', which can't be read")
        return Relay(store, failing, sink="failing", settings=SETTINGS, listeners=[heard])

    together = RelayGroup({"failing": make}, listeners=[heard])
    running = asyncio.create_task(together.run())
    add(store, 1)
    async with asyncio.timeout(60):
        while not failing.messages:
            await failing.asked.wait()
            await asyncio.sleep(0)
    reasons = [event.reason for event in heard.events if isinstance(event, RelayRestarting)]
    assert reasons == ["wrong password", "secrets_file is '/gone', which can't be read"]
    together.stop()
    await running


async def test_until_empty_a_failure_does_not_keep_the_others_from_ending(store: MemoryStore) -> None:
    Failing.failures = 10
    add(store, 1)
    fine = Arrivals()
    together = group(store, failing=Failing(), fine=fine)
    summaries = await together.run_until_empty()
    assert (list(summaries), fine.numbers) == (["fine"], [1])
    assert isinstance(together.errors["failing"], LoginRefused)


async def test_what_is_wrong_with_a_sink_is_said_before_any_of_them_publishes(store: MemoryStore) -> None:
    await Relay(store, MemoryBroker(), sink="b", filter=SinkFilter(topics=["x"]), settings=SETTINGS).run_until_empty()
    add(store, 1)
    first = Arrivals()
    with pytest.raises(InvalidSetting, match="sink 'b' takes topics x, and this relay would take everything"):
        await group(store, a=first, b=MemoryBroker()).run()
    assert not first.numbers


async def test_a_group_that_is_cancelled_leaves_nothing_running(store: MemoryStore) -> None:
    hanging = Hanging()
    add(store, 1)
    running = asyncio.create_task(group(store, hanging=hanging).run())
    async with asyncio.timeout(60):
        await hanging.asked_for.wait()
    before = asyncio.all_tasks()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [task for task in asyncio.all_tasks() & before if "postroad" in task.get_name()]
