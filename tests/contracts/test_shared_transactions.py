"""`messages_per_transaction`: plain handlers share a transaction, and nothing that holds for one message is weaker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from postroad import Consumer, InvalidSetting, Message, Outbox, Received, events
from postroad.brokers.base import Delivery
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.consumer import MESSAGES_PER_TRANSACTION
from postroad.message import new_id
from postroad.retry import Backoff
from postroad.sqlalchemy import record_events
from tests.consumers import Numbered, consumed, consumer, execute, handler_limits, hang, put, put_again, soon
from tests.contracts.test_handlers_that_end import close, commit, ending, rollback
from tests.destinations import stored
from tests.logs import PostgreSQLLog, log_fixture
from tests.places import Place

ONCE = Backoff(max_attempts=1)

log = log_fixture("postgresql15")


def shared(place: Place, queue: MemoryQueue, size: int = 50, **settings: Any) -> Consumer[Any]:
    return consumer(place, queue, messages_per_transaction=size, **settings)


def counted(place: Place, begun: list[int]) -> Place:
    """The same place; `begun` gets, for each transaction, how many were open when it was begun."""
    now: list[int] = []

    @asynccontextmanager
    async def asynchronous() -> AsyncIterator[Any]:
        now.append(1)
        begun.append(len(now))
        try:
            async with place.begin() as tx:
                yield tx
        finally:
            now.pop()

    @contextmanager
    def sync() -> Iterator[Any]:
        now.append(1)
        begun.append(len(now))
        try:
            with place.begin() as tx:
                yield tx
        finally:
            now.pop()

    return place._replace(begin=asynchronous if place.is_async else sync)


# -- one transaction -------------------------------------------------------------------------------------------------


async def test_messages_share_transactions(every_place: Place, queue: MemoryQueue) -> None:
    transactions: list[Any] = []
    it = shared(every_place, queue, 8)
    it.on(Numbered)(_noting(every_place, transactions))
    put(queue, *range(20))
    acked: list[int] = []
    ack = queue.ack

    def noting(deliveries: Collection[Delivery]) -> None:
        acked.append(len(deliveries))
        ack(deliveries)

    queue.ack = noting  # type: ignore[method-assign]
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed) == (20, 0, 0)
    sizes = [transactions.count(each) for each in dict.fromkeys(transactions)]
    assert (sizes, acked) == ([8, 8, 4], [8, 8, 4])
    assert await every_place.effects() == list(range(20)), "in the order of arrival"
    assert len(await every_place.noted()) == 20


def _noting(place: Place, transactions: list[Any]) -> Any:
    """A handler that notes its transaction, which is kept, so that no two have the same identity."""

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        transactions.append(tx)
        await place.insert(tx, event.number)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        transactions.append(tx)
        place.insert(tx, event.number)

    return asynchronous if place.is_async else sync


async def test_one_at_a_time(place: Place, queue: MemoryQueue) -> None:
    """While one runs, what arrives waits for the next, although `concurrency` would let more be handled."""
    begun: list[int] = []
    it = shared(counted(place, begun), queue, 2, retain=None, heartbeat=None)
    it.on(Numbered)(place.handler())
    put(queue, *range(20))
    assert (await consumed(it)).handled == 20
    assert set(begun) == {1}


async def test_it_waits_for_no_more(one_place: Place, queue: MemoryQueue) -> None:
    it, handled = shared(one_place, queue), asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        handled.set()

    running = asyncio.create_task(it.run())
    for number in range(3):
        put(queue, number)
        await soon(handled)
        handled.clear()
    it.stop()
    assert (await running).handled == 3


async def test_a_key_s_messages_share_it_in_order(one_place: Place, queue: MemoryQueue) -> None:
    transactions: list[Any] = []
    it = shared(one_place, queue, 4)
    it.on(Numbered)(_noting(one_place, transactions))
    put(queue, *range(10), key="one")
    assert (await consumed(it)).handled == 10
    assert await one_place.effects() == list(range(10))
    assert [transactions.count(each) for each in dict.fromkeys(transactions)] == [4, 4, 2]


async def test_a_message_that_comes_twice_is_handled_once(place: Place, queue: MemoryQueue) -> None:
    it, id = shared(place, queue), new_id()
    it.on(Numbered)(place.handler())
    put(queue, 1, 1, 1, id=id)
    put(queue, 2)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, sorted(await place.effects())) == (2, 2, [1, 2])


async def test_each_is_an_event(one_place: Place, queue: MemoryQueue) -> None:
    heard: list[events.Event] = []

    class Heard:
        def on_event(self, event: events.Event) -> None:
            heard.append(event)

    it, id = shared(one_place, queue, listeners=[Heard()]), new_id()
    it.on(Numbered)(one_place.handler())
    put(queue, 1)
    put(queue, 2, 2, id=id)
    await consumed(it)
    kinds = [type(each) for each in heard if isinstance(each, events.MessageHandled | events.DuplicateIgnored)]
    assert kinds == [events.MessageHandled, events.MessageHandled, events.DuplicateIgnored]


# -- each message by itself ------------------------------------------------------------------------------------------


async def test_what_a_handler_adds_follows_its_own_message(place: Place, queue: MemoryQueue) -> None:
    it = shared(place, queue)
    it.on(Numbered)(place.handler(adds=True))
    put(queue, 1, 2, 3)
    ids = [delivery.message_id for delivery in queue.queue]
    await consumed(it)
    rows = await place.rows(f"select headers from {place.schema}outbox order by position")
    headers = [msgspec.json.decode(row[0]) for row in rows]
    assert [(each["causation_id"], each["correlation_id"]) for each in headers] == [(id, id) for id in ids]


class Base(DeclarativeBase): ...


class Effect(Base):
    """Records an event when it is written, as an entity of an application would."""

    __tablename__ = "effects"
    at: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]

    def take_events(self) -> list[Message]:
        taken, self.taken = getattr(self, "taken", False), True
        return [] if taken else [Message({"number": self.number}, type="recorded")]


@pytest.mark.parametrize("size", [1, 50])
async def test_what_an_entity_records_follows_the_message_that_changed_it(
    log: PostgreSQLLog, queue: MemoryQueue, size: int
) -> None:
    """Also if the handler leaves it to the session to write."""
    await log.execute("drop table if exists effects")
    await log.execute("create table effects (at serial primary key, number integer)")
    engine = create_async_engine(log.url.replace("postgresql:", "postgresql+asyncpg:"))
    sessions = async_sessionmaker(engine)
    record_events(sessions, Outbox(source="/effects"))
    settings: dict[str, Any] = {"messages_per_transaction": size, "retry": ONCE}
    it: Consumer[Any] = Consumer(queue, name="stock", begin=sessions.begin, **settings)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        tx.add(Effect(number=event.number))

    put(queue, 1, 2, 3, key="one", type="numbered")
    ids = [delivery.message_id for delivery in queue.queue]
    try:
        assert (await consumed(it)).handled == 3
    finally:
        await engine.dispose()
    rows = await log.execute("select headers from postroad.outbox order by position")
    assert [msgspec.json.decode(row[0])["causation_id"] for row in rows] == ids


_set: ContextVar[str] = ContextVar("set", default="nothing")


async def test_what_a_handler_sets_in_its_context_ends_with_it(each_sqlite_place: Place, queue: MemoryQueue) -> None:
    found: list[str] = []

    def note(event: Numbered, message: Received) -> None:
        found.append(_set.get())
        _set.set(f"by {event.number}")

    it = shared(each_sqlite_place, queue)
    it.on(Numbered)(each_sqlite_place.handler(note))
    put(queue, 1, 2, 3)
    assert (await consumed(it)).handled == 3
    assert found == ["nothing"] * 3


async def test_a_handler_finds_its_context_again_after_waiting(one_place: Place, queue: MemoryQueue) -> None:
    """And it stays in the task in which its transaction was begun."""
    found: list[tuple[str, bool]] = []
    tasks: set[Any] = set()
    it = shared(one_place, queue)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        tasks.add(asyncio.current_task())
        _set.set(f"by {event.number}")
        await asyncio.sleep(0)
        await one_place.insert(tx, event.number)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        found.append((_set.get(), len(tasks) == 1))

    put(queue, 1, 2)
    assert (await consumed(it)).handled == 2
    assert found == [("by 1", True), ("by 2", True)]


async def test_the_time_limit_is_each_handler_s_own(one_place: Place, queue: MemoryQueue) -> None:
    it = shared(one_place, queue, handler_timeout="250s", retry=ONCE)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await one_place.insert(tx, event.number)
        if event.number == 2:
            await hang()

    put(queue, 1, 2, 3)
    with handler_limits(250):
        summary = await consumed(it)
    assert (summary.handled, summary.dead, sorted(await one_place.effects())) == (2, 1, [1, 3])
    assert (await one_place.errors())[0].startswith("HandlerTimedOut")


# -- failures --------------------------------------------------------------------------------------------------------


async def test_one_that_fails_costs_only_itself(
    every_place: Place, queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def no_five(event: Numbered, message: Received) -> None:
        calls.append(event.number)
        if event.number == 5:
            raise LookupError("no five")

    it = shared(every_place, queue)
    it.on(Numbered)(every_place.handler(no_five))
    put(queue, *range(10))
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (9, 3, 1)
    assert sorted(await every_place.effects()) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert await every_place.attempts() == [(3, 0, True)], "of the others no attempt is counted"
    assert calls[:6] == list(range(6)), "those behind it are not called"
    assert "a group of 10 failed: LookupError: no five; handling its messages one by one" in caplog.text


async def test_one_that_can_t_be_read_costs_only_itself(one_place: Place, queue: MemoryQueue) -> None:
    calls: list[int] = []
    it = shared(one_place, queue)
    it.on(Numbered)(one_place.handler(lambda event, _: calls.append(event.number)))
    put(queue, 1, 2)
    put(queue, 3, payload=b"{")
    summary = await consumed(it)
    assert (summary.handled, summary.dead, sorted(calls)) == (2, 1, [1, 2]), "before any handler is called"


async def test_one_that_fails_alone_is_called_once(one_place: Place, queue: MemoryQueue) -> None:
    calls: list[int] = []

    def fail(event: Numbered, message: Received) -> None:
        calls.append(event.number)
        raise LookupError

    it = shared(one_place, queue, retry=ONCE)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 1)
    assert ((await consumed(it)).dead, calls) == (1, [1])


@pytest.mark.parametrize("goes_on", [False, True], ids=["", "goes on"])
@pytest.mark.parametrize("end", [commit, rollback, close])
async def test_one_that_ends_the_transaction_costs_only_itself(
    every_place: Place, queue: MemoryQueue, end: Callable[[Any], Any], goes_on: bool
) -> None:
    """What it has committed of those before it stays, with their inbox rows; of those behind it, neither."""
    wrong, right = ending(every_place, end, goes_on=goes_on), every_place.handler()

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await (wrong if event.number == 2 else right)(event, tx, message)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        (wrong if event.number == 2 else right)(event, tx, message)

    it = shared(every_place, queue, retry=ONCE)
    it.on(Numbered)(asynchronous if every_place.is_async else sync)
    put(queue, 0, 1, 2, 3, 4, key="one")
    summary = await consumed(it)
    assert (summary.handled + summary.duplicates, summary.failed, summary.dead) == (4, 1, 1)
    effects = await every_place.effects()
    assert [number for number in effects if number not in {2, 102}] == [0, 1, 3, 4], "each once, in order"
    assert (await every_place.attempts(), len(await every_place.noted())) == ([(1, 0, True)], 4)


async def test_one_that_hides_an_sql_error_costs_only_itself(each_pg_place: Place, queue: MemoryQueue) -> None:
    """The check is after each handler: the next one's statements would fail, and it would be blamed."""
    seen: list[int] = []

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        seen.append(event.number)
        await each_pg_place.insert(tx, event.number)
        if event.number == 1:
            with suppress(Exception):
                await execute(tx, "select from nowhere")

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        seen.append(event.number)
        each_pg_place.insert(tx, event.number)
        if event.number == 1:
            with suppress(Exception):
                execute(tx, "select from nowhere")

    it = shared(each_pg_place, queue, retry=ONCE)
    it.on(Numbered)(asynchronous if each_pg_place.is_async else sync)
    put(queue, 0, 1, 2, key="one")
    summary = await consumed(it)
    assert (summary.handled, summary.dead, await each_pg_place.effects()) == (2, 1, [0, 2])
    assert seen == [0, 1, 0, 1, 2]
    assert await each_pg_place.attempts() == [(1, 0, True)]


async def test_a_lost_connection_counts_for_nobody(each_pg_place: Place, queue: MemoryQueue) -> None:
    armed = iter([True])
    kill = "select pg_terminate_backend(pg_backend_pid())"

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await each_pg_place.insert(tx, event.number)
        if event.number == 2 and next(armed, False):
            await execute(tx, kill)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        each_pg_place.insert(tx, event.number)
        if event.number == 2 and next(armed, False):
            execute(tx, kill)

    it = shared(each_pg_place, queue, retry=ONCE)
    it.on(Numbered)(asynchronous if each_pg_place.is_async else sync)
    put(queue, *range(5))
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (5, 0, 0)
    assert (sorted(await each_pg_place.effects()), await each_pg_place.attempts()) == (list(range(5)), [])


async def test_a_stop_rolls_all_of_them_back(one_place: Place, queue: MemoryQueue) -> None:
    """And acks none; those that were acked before they were committed would be lost."""
    it, begun = shared(one_place, queue, grace="0s"), asyncio.Event()

    @it.on(Numbered)
    async def hang(event: Numbered, tx: Any, message: Received) -> None:
        await one_place.insert(tx, event.number)
        if event.number == 1:
            begun.set()
            await asyncio.Event().wait()

    put(queue, 0, 1, 2)
    running = asyncio.create_task(it.run())
    await soon(begun)
    it.stop()
    assert (await running).handled == 0
    assert (await one_place.effects(), len(queue.queue)) == ([], 3)
    again = shared(one_place, queue)
    again.on(Numbered)(one_place.handler())
    assert (await consumed(again)).handled == 3
    assert sorted(await one_place.effects()) == [0, 1, 2]
    assert [row for row in await one_place.attempts() if row != (0, 0, False)] == []


async def test_what_was_delivered_before_goes_alone(one_place: Place, queue: MemoryQueue) -> None:
    """It may be what crashed a process, so its attempt is marked; also behind a message of its key that is new."""
    transactions: list[Any] = []
    it = shared(one_place, queue)
    it.on(Numbered)(_noting(one_place, transactions))
    put_again(queue, 1, key="one")
    old = queue.queue.popleft()
    put(queue, 2, key="one")
    queue.queue.append(old)
    put(queue, 3, key="one")
    assert (await consumed(it)).handled == 3
    assert len(set(map(id, transactions))) == 3
    assert await one_place.effects() == [2, 1, 3]


# -- in a relay ------------------------------------------------------------------------------------------------------


async def test_in_a_relay_too(place: Place) -> None:
    transactions: list[Any] = []

    def no_two(event: Numbered, message: Received) -> None:
        if event.number == 2:
            raise LookupError("no two")

    it: Consumer[Any] = Consumer(name="view", begin=place.begin, messages_per_transaction=3)
    noting, right = _noting(place, transactions), place.handler(no_two)

    async def asynchronous(event: Numbered, tx: Any, message: Received) -> None:
        await (noting if event.number != 2 else right)(event, tx, message)

    def sync(event: Numbered, tx: Any, message: Received) -> None:
        (noting if event.number != 2 else right)(event, tx, message)

    it.on(Numbered)(asynchronous if place.is_async else sync)
    publisher = it.publisher()
    await publisher.open()
    assert await publisher.publish([_message(number) for number in (10, 11, 12, 13)]) == []
    assert [transactions.count(each) for each in dict.fromkeys(transactions)] == [3, 1]
    (refusal,) = await publisher.publish([_message(number) for number in (1, 2, 3)])
    assert (refusal.position, refusal.reason) == (2, "LookupError: no two")
    assert sorted(await place.effects()) == [1, 3, 10, 11, 12, 13]
    await publisher.close()


async def test_in_a_relay_lanes_take_turns(one_place: Place) -> None:
    begun: list[int] = []
    begin = counted(one_place, begun).begin
    it: Consumer[Any] = Consumer(name="view", begin=begin, messages_per_transaction=10, retain=None, heartbeat=None)
    it.on(Numbered)(one_place.handler())
    publisher = it.publisher()
    await publisher.open()
    lanes = [[_message(10 * lane + number) for number in range(5)] for lane in range(4)]
    assert await asyncio.gather(*map(publisher.publish, lanes)) == [[]] * 4
    assert (len(await one_place.effects()), set(begun)) == (20, {1})
    await publisher.close()


def _message(number: int) -> Any:
    return stored(number, type="numbered", payload=b'{"number":%d}' % number, key=f"k{number}")


# -- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, "x", 1001, 1.5, True, None])
def test_a_value_that_is_wrong(value: Any) -> None:
    wrong = rf"^messages_per_transaction is {value!r}; it must be a whole number from 1 to 1,000"
    with pytest.raises(InvalidSetting, match=wrong):
        Consumer(MemoryQueue(), name="stock", begin=object, messages_per_transaction=value)  # type: ignore[arg-type]


def test_batches_have_a_size_of_their_own(one_place: Place, queue: MemoryQueue) -> None:
    with pytest.raises(InvalidSetting, match="messages_per_transaction is 50, and consumer 'stock' has an on_batch"):
        shared(one_place, queue).on_batch(Numbered)(one_place.batch_handler())


def test_the_largest_fits_what_rabbitmq_can_prefetch() -> None:
    assert MESSAGES_PER_TRANSACTION.check("messages_per_transaction", 1000) * 2 <= 65_535


async def test_a_message_that_is_retried_joins_no_group(one_place: Place, queue: MemoryQueue) -> None:
    """It would take the others with it when it fails again, and what was decided about it would be forgotten."""
    failed: list[events.Event] = []

    class Failures:
        def on_event(self, event: events.Event) -> None:
            if isinstance(event, events.GroupFailed):
                failed.append(event)

    def fail(event: Numbered, message: Received) -> None:
        if event.number == 0:
            if not queue.queue and not others:
                others.extend(range(1, 21))
                put(queue, *others)
            raise LookupError("never")

    others: list[int] = []
    retry = Backoff(first=timedelta(0), max_attempts=5)
    it = shared(one_place, queue, 5, retry=retry, listeners=[Failures()], retain=None)
    it.on(Numbered)(one_place.handler(fail))
    put(queue, 0)
    summary = await consumed(it)
    assert (summary.handled, summary.dead, summary.failed, failed) == (20, 1, 5, [])
