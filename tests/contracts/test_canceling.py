"""What `cancel` answers about a message that a lane may have published before its cursor was saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postroad import BrokerUnavailable, Cancellation, Message, Refusal, StoredMessage, StoreUnavailable
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.relay import Relay
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from postroad.stores.base import Deferred
from tests.lanes import take_lanes
from tests.logs import PLENTY, Log, MemoryLog, PostgreSQLLog, SQLiteLog, log_fixture, numbered

CANCELED, TOO_LATE = Cancellation.CANCELED, Cancellation.TOO_LATE
ME = By("anna")
LANES: dict[str, Any] = {"lanes": 1, "poll_interval": "1ms", "max_idle_backoff": "5ms", "outage_backoff": "1ms"}


log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18")


operated = log_fixture("sqlite", "postgresql15", "postgresql18")


def operating(log: Log) -> Admin:
    if isinstance(log, SQLiteLog):
        return Admin(SQLiteAdminDatabase(log.path))
    assert isinstance(log, PostgreSQLLog)
    return Admin(PostgreSQLAdminDatabase(log.url))


class Between(MemoryBroker):
    """Something happens after the broker has taken the first page, and before the relay can save its cursor."""

    def __init__(self, happens: Callable[[], Any]) -> None:
        super().__init__()
        self._happens: Callable[[], Any] | None = happens

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        refusals = await super().publish(messages)
        if self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return refusals


def relay(log: Log, broker: MemoryBroker, **settings: Any) -> Relay:
    return Relay(log.another_store(), broker, settings=RelaySettings(**LANES | settings))


async def state_of_the_only_one(log: Log) -> str:
    (row,) = await log.deferred()
    return row.state


async def add(log: Log, *, key: str = "k") -> Any:
    id = new_id()
    await log.add(Message("1", type="t", key=key, id=id))
    return id


async def test_a_key_that_is_held_before_the_cursor_is_saved(operated: Log) -> None:
    id = await add(operated)
    async with operating(operated) as ops:
        broker = Between(lambda: ops.hold("default", "k", ME))
        await relay(operated, broker).run_until_empty()
    assert [message.id for message in broker.messages] == [id]
    assert await state_of_the_only_one(operated) == "held"
    assert await operated.cancel(id) == [TOO_LATE]


async def test_a_key_that_is_held_after_its_relay_was_killed(operated: Log) -> None:
    id = await add(operated)
    killed = asyncio.Event()

    async def never_return() -> None:
        killed.set()
        await asyncio.Event().wait()

    broker = Between(never_return)
    running = asyncio.create_task(relay(operated, broker).run())
    await asyncio.wait_for(killed.wait(), 60)
    running.cancel()
    await asyncio.wait((running,))
    async with operating(operated) as ops:
        await ops.hold("default", "k", ME)
        await relay(operated, broker).run_until_empty()
    assert [message.id for message in broker.messages] == [id]
    assert await state_of_the_only_one(operated) == "held"
    assert await operated.cancel(id) == [TOO_LATE]


async def test_a_message_that_is_poisoned_before_the_cursor_is_saved(operated: Log) -> None:
    id = await add(operated)
    async with operating(operated) as ops:
        broker = Between(lambda: ops.poison(Filter(ids=(id,)), ME))
        await relay(operated, broker).run_until_empty()
    assert [message.id for message in broker.messages] == [id]
    assert await state_of_the_only_one(operated) == "dead"
    assert await operated.cancel(id) == [TOO_LATE]


async def test_a_message_that_was_taken_and_is_refused_after_a_reload(log: Log) -> None:
    """The database fails when the cursor is to be saved; the page is sent again, and now the broker says no."""
    id = await add(log)

    async def refuse() -> None:
        broker.refuse(lambda _: Refusal(1, "never", permanent=True))
        store.settle = fail

    async def fail(*_: Any) -> Any:
        del store.settle
        raise StoreUnavailable("a test")

    broker = Between(refuse)
    store: Any = log.another_store()
    await Relay(store, broker, settings=RelaySettings(**LANES)).run_until_empty()
    assert [message.id for message in broker.messages] == [id]
    assert await state_of_the_only_one(log) == "dead"
    assert await log.cancel(id) == [TOO_LATE]


@pytest.mark.parametrize("error", [BrokerUnavailable("a test"), ZeroDivisionError("a test")])
@pytest.mark.parametrize("claimed", [False, True])
async def test_a_message_that_was_sent_without_an_answer_and_then_refused(
    log: Log, error: Exception, claimed: bool
) -> None:
    """The broker took it, could not say so, and refused it when it came again: in a page, or claimed as deferred."""
    broker = Silent(error, refuses_first=claimed)
    id = new_id()
    it = relay(log, broker, max_backoff="1ms")
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(loaded(log), 60)
    await log.add(Message("1", type="t", key="k", id=id))
    await until_dead(log)
    it.stop()
    await asyncio.wait_for(running, 60)
    assert [message.id for message in broker.messages] == [id]
    assert await log.cancel(id) == [TOO_LATE]


class Silent(MemoryBroker):
    """Takes a message, fails before it can say so, and refuses it from then on."""

    def __init__(self, error: Exception, *, refuses_first: bool) -> None:
        super().__init__()
        self._error = error
        self._refuses_first = refuses_first

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        if self._refuses_first:
            self._refuses_first = False
            return [Refusal(messages[0].position, "not now")]
        if not self.messages:
            self.messages += messages
            raise self._error
        return [Refusal(message.position, "never", permanent=True) for message in messages]


async def loaded(log: Log) -> None:
    """Wait until the relay has loaded its lane."""
    while not await is_loaded(log):  # noqa: ASYNC110 - a database has no event
        await asyncio.sleep(0.01)


async def until_dead(log: Log) -> None:
    async with asyncio.timeout(60):
        while [row.state for row in await log.deferred()] != ["dead"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def is_loaded(log: Log) -> bool:
    if isinstance(log, MemoryLog):
        return any(lane.version >= 2 for lane in log.store._lanes.values())
    query = "select 1 from postroad{}lanes where version >= 2"
    if isinstance(log, SQLiteLog):
        return bool(log.execute(query.format("_")))
    assert isinstance(log, PostgreSQLLog)
    return bool(await log.execute(query.format(".")))


async def test_what_is_added_after_the_load_and_refused_can_be_canceled(log: Log) -> None:
    """It can't have been published before, so TOO_LATE would be wrong."""
    broker = MemoryBroker()
    broker.refuse(lambda message: Refusal(message.position, "never", permanent=True))
    it = relay(log, broker)
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(loaded(log), 60)
    id = await add(log)
    await until_dead(log)
    assert await log.cancel(id) == [CANCELED]
    it.stop()
    await asyncio.wait_for(running, 60)
    assert not broker.messages


async def test_the_end_of_the_log_is_where_a_lane_was_loaded(log: Log) -> None:
    await log.store.open()
    (lane,) = await take_lanes(log.store)
    assert (await log.store.load(lane)).log_end == 0
    await log.add(*numbered(1, 2, key="k"))
    loaded = await log.store.load(lane)
    assert loaded.log_end == 2
    await log.store.close()


async def test_of_those_that_wait_only_the_ones_from_before_the_load_are_unsure(log: Log) -> None:
    ids = [new_id() for _ in range(3)]
    await log.store.open()
    (lane,) = await take_lanes(log.store)
    await log.add(*(Message(str(n), type="t", key="k", id=id) for n, id in enumerate(ids)))
    page = await log.store.read(lane, lane.cursor, PLENTY)
    first, *rest = page.messages
    head = Deferred(first.position, "k", State.DEAD, blocks=True)
    held = [(each.position, each.key) for each in rest]
    await log.store.record(lane, page.after, deferred=[head], held=held, unsure_through=rest[0].position)
    assert await log.cancel(*ids) == [CANCELED, TOO_LATE, CANCELED]
    await log.store.close()
