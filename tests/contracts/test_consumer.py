"""A consumer keeps the same promises on every kind of transaction: one effect per message, whatever happens to it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from postroad import BrokerUnavailable, Consumer, Inbox, InvalidSetting, NotMigrated, Received, StoreUnavailable
from postroad.brokers.memory import MemoryQueue
from postroad.brokers.rabbitmq.settings import SubscriberSettings
from postroad.brokers.rabbitmq.subscriber import RabbitMQSubscriber
from postroad.config import RelaySettings
from postroad.consumer import following
from postroad.consumer.attempts import Attempts
from postroad.consumer.retention import InboxRetention, may_come_again_for
from postroad.errors import LoginRefused
from postroad.listeners import Listeners
from postroad.message import new_id
from postroad.retry import Backoff
from tests.consumers import AT_ONCE, Numbered, consumed, consumer, put
from tests.destinations import stored
from tests.places import OUTBOX, Place, asyncpg_transactions

# -- on every kind of transaction ------------------------------------------------------------------------------------


async def test_each_message_has_its_effect_and_what_follows(place: Place, queue: MemoryQueue) -> None:
    it = consumer(place, queue)
    it.on(Numbered)(place.handler(adds=True))
    put(queue, 1, 2, headers={"correlation_id": "c-1"})
    put(queue, 3)
    ids = [delivery.message_id for delivery in queue.queue]
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates, summary.failed, summary.dead) == (3, 0, 0, 0)
    assert sorted(await place.effects()) == [1, 2, 3]
    assert await place.noted() == sorted((f"/tests {id}", "numbered") for id in ids), "by source and id"
    assert await place.attempts() == [], "only a failed message gets a row"
    rows = await place.rows(f"select key, headers from {place.schema}outbox order by key")
    followed = {key: msgspec.json.decode(headers) for key, headers in rows}
    assert [followed[str(n)]["causation_id"] for n in (1, 2, 3)] == ids
    assert [followed[str(n)]["correlation_id"] for n in (1, 2, 3)] == ["c-1", "c-1", ids[2]]
    assert not queue.queue


async def test_what_comes_again_has_one_effect(place: Place, queue: MemoryQueue) -> None:
    it = consumer(place, queue)
    it.on(Numbered)(place.handler())
    id = new_id()
    put(queue, 1, 1, 1, id=id)
    assert ((await consumed(it)).handled, await place.effects()) == (1, [1])
    put(queue, 1, id=id)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates) == (0, 1)
    assert await place.effects() == [1]


async def test_a_failed_handler_leaves_nothing_and_is_tried_again(place: Place, queue: MemoryQueue) -> None:
    tried: list[int] = []

    def fail_twice(event: Numbered, message: Received) -> None:
        tried.append(message.attempt)
        if len(tried) < 3:
            raise LookupError(f"no {event.number}")

    it = consumer(place, queue)
    it.on(Numbered)(place.handler(fail_twice))
    put(queue, 7)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead, tried) == (1, 2, 0, [1, 2, 3])
    assert await place.effects() == [7]
    assert await place.attempts() == [(2, 0, False)]
    assert await place.errors() == ["LookupError: no 7"]


async def test_a_handler_that_fails_after_its_effect_is_rolled_back(place: Place, queue: MemoryQueue) -> None:
    handler, tried = place.handler(), []

    async def fails_first(event: Numbered, tx: Any, message: Received) -> None:
        await handler(event, tx, message)
        tried.append(1)
        if len(tried) == 1:
            raise LookupError

    def fails_first_sync(event: Numbered, tx: Any, message: Received) -> None:
        handler(event, tx, message)
        tried.append(1)
        if len(tried) == 1:
            raise LookupError

    it = consumer(place, queue)
    it.on(Numbered)(fails_first if place.is_async else fails_first_sync)
    put(queue, 1)
    await consumed(it)
    assert (len(tried), await place.effects()) == (2, [1])


async def test_after_the_last_attempt_it_is_a_dead_letter(place: Place, queue: MemoryQueue) -> None:
    def fail(event: Numbered, message: Received) -> None:
        if event.number == 2:
            raise LookupError("never\0")

    it = consumer(place, queue)
    it.on(Numbered)(place.handler(fail))
    put(queue, 1, 2, 3)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (2, 3, 1)
    assert sorted(await place.effects()) == [1, 3]
    assert await place.attempts() == [(3, 0, True)]
    ((delivery, notes),) = queue.dead
    assert (delivery.body, notes["postroad-reason"]) == (b'{"number":2}', "LookupError: never\\0")
    assert len(await place.noted()) == 2, "it was not processed"
    # An operator mends the handler and sends it again.
    mended = consumer(place, queue)
    mended.on(Numbered)(place.handler())
    put(queue, 2, id=delivery.message_id)
    assert (await consumed(mended)).handled == 1
    assert sorted(await place.effects()) == [1, 2, 3]


@pytest.mark.parametrize("known", [True, False])
async def test_what_may_have_been_delivered_before_is_marked_and_a_death_is_counted(
    place: Place, queue: MemoryQueue, known: bool
) -> None:
    """As if the process had ended each time: the handler never comes to an end. Where the broker does not know what
    comes again, every attempt is marked.
    """
    queue.knows_redelivery = known
    running: list[int] = []
    it = consumer(place, queue)

    async def never_ends(event: Numbered, tx: Any, message: Received) -> None:
        running.append(message.attempt)
        await asyncio.Event().wait()

    until = threading.Event()

    def never_ends_sync(event: Numbered, tx: Any, message: Received) -> None:
        running.append(message.attempt)
        until.wait()
        raise LookupError

    it.on(Numbered)(never_ends if place.is_async else never_ends_sync)
    put(queue, 1)
    expected = [1, 1, 2, 3] if known else [1, 2, 3]
    for deliveries in range(1, len(expected) + 1):
        it._options = msgspec.structs.replace(it._options, grace=0.0)
        task = asyncio.create_task(it.run())
        await until_so_many(running, deliveries)
        it._attempts.count_failure = it._attempts.unmark = lost  # type: ignore[method-assign, assignment]
        it.stop()
        until.set()
        await task
        until.clear()
    assert running == expected, "a first delivery is not marked, so its death is not known of"
    last = consumer(place, queue)
    last.on(Numbered)(place.handler())
    summary = await consumed(last)
    assert (summary.handled, summary.dead) == (0, 1)
    assert await place.attempts() == [(3, 3, True)]
    assert "the process ended while the handler ran, 3 times" in queue.dead[0][1]["postroad-reason"]
    assert await place.effects() == []


async def until_so_many(things: list[int], count: int) -> None:
    """A handler in a thread has no other way to tell."""
    async with asyncio.timeout(60):
        while len(things) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def lost(*_: Any) -> int:
    raise asyncio.CancelledError


async def test_what_was_committed_and_not_acked_costs_one_statement(place: Place, queue: MemoryQueue) -> None:
    it = consumer(place, queue)
    it.on(Numbered)(place.handler())
    put(queue, 1)
    (delivery,) = queue.queue
    await consumed(it)
    queue.queue.append(msgspec.structs.replace(delivery, redelivered=True))
    assert (await consumed(it)).duplicates == 1
    assert await place.effects() == [1]
    assert await place.attempts() == []


async def test_a_batch_is_one_transaction(place: Place, queue: MemoryQueue) -> None:
    sizes: list[int] = []
    it = consumer(place, queue)
    it.on_batch(Numbered, size=40)(place.batch_handler(lambda batch: sizes.append(len(batch))))
    put(queue, *range(100), key="one")
    put(queue, 500, 501, id=stored().id)
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates) == (101, 1)
    assert [number for number in await place.effects() if number < 500] == list(range(100)), "in order"
    assert (len(sizes), max(sizes), sum(sizes)) == (3, 40, 101)
    assert len(await place.noted()) == 101


async def test_one_bad_message_costs_a_batch_only_itself(place: Place, queue: MemoryQueue) -> None:
    def no_five(batch: Any) -> None:
        if any(event.number == 5 for event, _ in batch):
            raise LookupError("five")

    it = consumer(place, queue)
    it.on_batch(Numbered, size=100)(place.batch_handler(no_five))
    put(queue, *range(10))
    queue.put(b"{", headers={"ce-id": "x", "ce-type": "numbered", "ce-source": "/s"})
    summary = await consumed(it)
    assert (summary.handled, summary.dead) == (9, 2)
    assert sorted(await place.effects()) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert sorted((attempts, dead) for attempts, _, dead in await place.attempts()) == [(0, True), (3, True)]


# -- what can't be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery", "why"),
    [
        ({"body": b"{}", "message_id": "1", "type": "odd"}, "no handler of consumer 'stock' takes the type 'odd'"),
        ({"body": b"{", "message_id": "1", "type": "numbered"}, "its payload is no Numbered"),
        ({"body": b'{"number":"x"}', "message_id": "1", "type": "numbered"}, "its payload is no Numbered"),
        ({"body": b'{"number":1}', "type": "numbered"}, "it has no id"),
        ({"body": b"[]", "content_type": "application/cloudevents+json"}, "no CloudEvent"),
        ({"body": b"", "message_id": "\ud800"}, "it can't be read: UnicodeEncodeError"),
    ],
)
async def test_it_is_recorded_and_buried_and_the_others_go_on(
    one_place: Place, queue: MemoryQueue, delivery: dict[str, Any], why: str
) -> None:
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    queue.put(**delivery)
    put(queue, 2)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (1, 0, 1)
    ((dead, headers),) = queue.dead
    assert (dead.body, headers["postroad-consumer"]) == (delivery["body"], "stock")
    assert why in headers["postroad-reason"]
    assert await one_place.attempts() == [(0, 0, True)]
    assert why in (await one_place.errors())[0]
    assert await one_place.effects() == [2]


# -- keys and concurrency --------------------------------------------------------------------------------------------


async def test_keys_are_in_order_and_side_by_side(pg_place: Place, queue: MemoryQueue) -> None:
    under_way: Counter[int] = Counter()
    most: Counter[int] = Counter()
    seen: list[int] = []
    all_four = asyncio.Barrier(4)
    it = consumer(pg_place, queue, concurrency=7)

    @it.on(Numbered)
    async def count(event: Numbered, tx: Any, message: Received) -> None:
        key = event.number % 4
        under_way[key] += 1
        under_way[-1] += 1
        most[key] = max(most[key], under_way[key])
        most[-1] = max(most[-1], under_way[-1])
        if event.number < 4:
            await all_four.wait()
        seen.append(event.number)
        under_way[key] -= 1
        under_way[-1] -= 1

    for number in range(40):
        put(queue, number, key=f"k{number % 4}")
    await consumed(it)
    assert most == {0: 1, 1: 1, 2: 1, 3: 1, -1: 4}
    for key in range(4):
        assert [number for number in seen if number % 4 == key] == list(range(key, 40, 4))


async def test_concurrency_is_used_and_kept(pg_place: Place, queue: MemoryQueue) -> None:
    three, inside, most = asyncio.Barrier(3), 0, 0
    it = consumer(pg_place, queue, concurrency=3)

    @it.on(Numbered)
    async def wait(event: Numbered, tx: Any, message: Received) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await three.wait()
        inside -= 1

    put(queue, *range(9), key=None)
    summary = await consumed(it)
    assert (summary.handled, most) == (9, 3)


async def test_a_failing_key_waits_and_others_go_on(one_place: Place, queue: MemoryQueue) -> None:
    seen: list[int] = []
    others = asyncio.Event()
    it = consumer(one_place, queue, retry=Backoff(max_attempts=5, first=timedelta(milliseconds=20), jitter=0))

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        if event.number == 0 and not others.is_set():
            raise LookupError
        seen.append(event.number)
        if seen == [10, 11, 12]:
            others.set()

    put(queue, 0, 1, 2, key="bad")
    put(queue, 10, 11, 12, key="good")
    await consumed(it)
    assert seen == [10, 11, 12, 0, 1, 2]


async def test_copies_of_one_message_wait_for_each_other(one_place: Place, queue: MemoryQueue) -> None:
    """They would only wait for the same row, each with a connection of its own."""
    begun = 0
    it = consumer(one_place, queue, ordering="none")

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        nonlocal begun
        begun += 1
        await one_place.insert(tx, event.number)
        await asyncio.sleep(0.01)

    put(queue, *[1] * 50, id=new_id(), key=None)
    assert (await consumed(it)).duplicates == 49
    assert begun == 1


# -- outages, stops --------------------------------------------------------------------------------------------------


async def test_a_database_that_is_out_counts_no_attempt(one_place: Place, queue: MemoryQueue) -> None:
    outages = iter([False, True, True, False, True])

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        if next(outages, False):
            raise ConnectionRefusedError("no database")
        async with one_place.begin() as tx:
            yield tx

    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin, retry=AT_ONCE)
    it.on(Numbered)(one_place.handler())
    put(queue, *range(5))
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead) == (5, 0, 0)
    assert await one_place.attempts() == []


async def test_a_broker_that_goes_away_is_asked_again(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)
    dropped = False

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        nonlocal dropped
        await one_place.insert(tx, event.number)
        if not dropped:
            dropped = True
            queue.drop()

    put(queue, *range(20), key="k")
    summary = await consumed(it)
    assert (summary.handled, summary.duplicates) == (20, 1), "what was under way had no one to ack it to"
    assert await one_place.effects() == list(range(20))


async def test_a_stop_ends_what_was_begun_and_gives_back_the_rest(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue, concurrency=2)
    begun, gate = asyncio.Event(), asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        begun.set()
        await gate.wait()
        await one_place.insert(tx, event.number)

    put(queue, *range(10), key=None)
    running = asyncio.create_task(it.run())
    await begun.wait()
    it.stop()
    await asyncio.sleep(0)
    gate.set()
    summary = await running
    assert summary.handled == 2
    assert sorted(await one_place.effects()) == [0, 1]
    assert [msgspec.json.decode(each.body)["number"] for each in queue.queue] == list(range(2, 10))


async def test_a_handler_that_outlives_the_grace_is_broken_off_and_given_back(
    one_place: Place, queue: MemoryQueue
) -> None:
    it = consumer(one_place, queue, grace="0s")
    begun = asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await one_place.insert(tx, event.number)
        begun.set()
        await asyncio.Event().wait()

    put(queue, 1)
    running = asyncio.create_task(it.run())
    await begun.wait()
    it.stop()
    assert (await running).handled == 0
    assert await one_place.effects() == []
    assert len(queue.queue) == 1


async def test_the_dead_letters_being_out_waits(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)
    it.on(Numbered)(one_place.handler())
    dead_letter, tried = queue.dead_letter, []

    async def fails_twice(*arguments: Any) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise BrokerUnavailable("no such queue")
        await dead_letter(*arguments)

    queue.dead_letter = fails_twice  # type: ignore[method-assign, assignment]
    queue.put(b"x")
    assert (await consumed(it)).dead == 1
    assert (len(tried), len(queue.dead), len(queue.queue)) == (3, 1, 0)


# -- the inbox's own time --------------------------------------------------------------------------------------------


async def test_another_transaction_that_processes_it_is_waited_for(queue: MemoryQueue, pg_place: Place) -> None:
    """And not for ever: after the lock timeout the connection is free for others."""
    place = pg_place
    it = consumer(place, queue, inbox=Inbox(lock_timeout="20ms"), concurrency=1)
    id, other_is_done = new_id(), asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await place.insert(tx, event.number)
        if event.number == 2:
            other_is_done.set()

    put(queue, 1, id=id)
    put(queue, 2)
    async with place.begin() as tx:  # the first to use a name makes others wait for its transaction
        await Inbox().first_time(tx, "another", consumer="stock")
    async with place.begin() as tx:
        assert await Inbox().first_time(tx, id, source="/tests", consumer="stock")
        running = asyncio.create_task(consumed(it))
        await asyncio.wait_for(other_is_done.wait(), 60)
    summary = await running
    assert (summary.handled, summary.duplicates, summary.failed) == (1, 1, 0)


async def test_the_inbox_forgets_what_is_old_enough(place: Place, queue: MemoryQueue) -> None:
    it = consumer(place, queue)
    it.on(Numbered)(place.handler(lambda event, message: fail(event)))

    def fail(event: Numbered) -> None:
        if event.number == 3:
            raise LookupError

    put(queue, 1, 2, 3)
    await consumed(it)
    it._transactions.start(is_async=place.is_async)
    assert await InboxRetention("stock", it._attempts, Listeners(), retain=timedelta(hours=1)).run_once() == 0
    others = Attempts(it._transactions, "other")
    assert await InboxRetention("other", others, Listeners(), retain=timedelta(0)).run_once() == 0
    assert await InboxRetention("stock", it._attempts, Listeners(), retain=timedelta(0)).run_once() == 2
    assert (await place.noted(), await place.attempts()) == ([], [])
    it._transactions.end()


def test_how_long_a_message_may_come_again() -> None:
    relay = RelaySettings(retain="7d", max_attempts=5, max_backoff="5m")
    assert may_come_again_for(relay, None) == timedelta(days=7, minutes=25 + 30)
    assert may_come_again_for(relay, timedelta(days=2)) == timedelta(days=9, minutes=25)


@pytest.mark.parametrize(("retain", "output"), [("7d", True), ("30d", False)])
async def test_a_window_that_is_too_short_is_reported(
    one_place: Place, queue: MemoryQueue, caplog: pytest.LogCaptureFixture, retain: str, output: bool
) -> None:
    it = consumer(one_place, queue, retain=retain)
    it.on(Numbered)(one_place.handler())
    await consumed(it)
    assert ("make the consumer's retain longer" in caplog.text) == output


# -- what is wrong is reported before anything is received -----------------------------------------------------------


async def test_a_database_that_was_not_migrated(place: Place, queue: MemoryQueue) -> None:
    on_postgresql = place.schema.endswith(".")
    missing = "function postroad.open_inbox(text)" if on_postgresql else f"table {place.schema}inbox_attempts"
    await place.rows(f"drop {missing}")
    it = consumer(place, queue)
    it.on(Numbered)(place.handler())
    with pytest.raises(NotMigrated, match="postroad migrate"):
        await consumed(it)


async def test_a_database_that_can_t_be_reached(queue: MemoryQueue, unused_tcp_port: int) -> None:
    begin, insert, _ = asyncpg_transactions(f"postgresql://postgres@127.0.0.1:{unused_tcp_port}/x")
    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin)

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        await insert(tx, event.number)

    with pytest.raises(StoreUnavailable, match=r"until_empty_timeout.*consumer 'stock': a transaction can't be begun"):
        await it.run_until_empty(relay=RelaySettings(until_empty_timeout="0"))


async def test_a_database_that_is_first_asked_for_when_it_is_used(queue: MemoryQueue, unused_tcp_port: int) -> None:
    engine = create_async_engine(f"postgresql+asyncpg://postgres@127.0.0.1:{unused_tcp_port}/x")
    it: Consumer[Any] = Consumer(queue, name="stock", begin=async_sessionmaker(engine).begin)
    it.on(Numbered)(handle)
    with pytest.raises(StoreUnavailable, match=r"until_empty_timeout.*consumer 'stock': the inbox can't be read: "):
        await it.run_until_empty(relay=RelaySettings(until_empty_timeout="0"))


@pytest.mark.parametrize("settings", [{"bindings": "order.#"}, {"prefetch": 0}])
def test_settings_of_the_queue_that_are_wrong(one_place: Place, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="(bindings|prefetch) is"):
        Consumer("amqp://localhost", name="stock", begin=one_place.begin, **settings)


@pytest.mark.parametrize(
    ("source", "settings", "wrong"),
    [
        (
            "amqp://localhost",
            {"queu": "q"},
            "the subscriber of RabbitMQ has no setting 'queu'; did you mean 'queue'[?]",
        ),
        ("amqp://localhost", {"queu": "q"}, "it has username, password, .*, queue, exchange, bindings, "),
        ("amqp://localhost", {"concurency": 5}, "no setting 'concurency'; did you mean 'concurrency'[?]"),
        ("amqp://localhost", {"xyzzy": 5}, "no setting 'xyzzy'; it has username"),
        ("memory://x", {"queue": "q"}, "the subscriber of the memory broker has no setting 'queue'; it has none"),
        (
            None,
            {"concurency": 5},
            "a consumer without a source has no setting 'concurency'; did you mean 'concurrency'",
        ),
        ("null://", {}, "source is a URL of the null broker, which postroad can't consume from"),
        ("ampq://localhost", {}, "source is a URL that begins with 'ampq'; did you mean amqp://[?]"),
        ("localhost", {}, "source is not a valid URL; it must look like amqp://"),
        ("amqp://localhost", {"single_active": False}, None),
    ],
)
def test_settings_are_those_of_the_broker(
    one_place: Place, source: str | None, settings: dict[str, Any], wrong: str | None
) -> None:
    def make() -> Consumer[Any]:
        return Consumer(source, name="stock", begin=one_place.begin, **settings)

    if wrong is not None:
        with pytest.raises(InvalidSetting, match=wrong):
            make()
        return
    with pytest.raises(InvalidSetting, match="ordering is 'key' and single_active is False"):
        make()._subscriber()


def test_what_is_not_given_comes_from_the_consumer(one_place: Place) -> None:
    it: Consumer[Any] = Consumer("amqp://localhost", name="stock", begin=one_place.begin, message_ttl="1s")
    it.on_batch(Numbered, size=300)(handle)
    found: Any = it._subscriber()
    assert isinstance(found, RabbitMQSubscriber)
    settings = found._settings
    assert (settings.queue, settings.bindings, settings.prefetch) == ("stock", ("numbered",), 600)
    assert found._topology.arguments == {"x-single-active-consumer": True, "x-message-ttl": 1000}


def test_what_is_given_comes_first(one_place: Place) -> None:
    it: Consumer[Any] = Consumer(
        "amqp://localhost", name="stock", begin=one_place.begin, ordering="none", queue="q", bindings=[], prefetch=7
    )
    it.on_batch(Numbered, size=300)(handle)
    found: Any = it._subscriber()
    settings = found._settings
    assert (settings.queue, settings.bindings, settings.prefetch, found._topology.arguments) == ("q", (), 7, {})


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda it: None, "has no handler"),
        (lambda it: it.on(int), "a handler can't be given"),
        (lambda it: it.on(dict), "has no type of its own"),
        (lambda it: it.on(dict, type=""), "type is empty"),
        (
            lambda it: it.on(Numbered)(lambda event, tx, message: None),
            "is `def`, and begin is .*, which gives an async context manager",
        ),
        (lambda it: (it.on(Numbered)(handle), it.on(Numbered)(handle)), "has a handler for 'numbered' already"),
        (lambda it: (it.on(Numbered)(handle), it.on(dict, type="x")(print)), "must be of one kind"),
        (lambda it: (it.on(Numbered)(handle), it.on_batch(dict, type="x")(handle)), "has handlers already"),
        (lambda it: (it.on_batch(Numbered)(handle), it.on(dict, type="x")(handle)), "has an on_batch handler"),
        (lambda it: it.on_batch(Numbered, size=0)(handle), "size is 0"),
        (lambda it: it.on_batch(Numbered, size="9")(handle), "size is '9'"),
        (lambda it: it.on_batch(), "must say which events"),
    ],
)
async def test_handlers_that_are_wrong(
    one_place: Place, queue: MemoryQueue, make: Callable[[Any], Any], wrong: str
) -> None:
    it = consumer(one_place, queue)
    with pytest.raises(InvalidSetting, match=wrong):
        make(it)
        await consumed(it)


async def handle(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"name": ""}, "consumer is ''"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": "10"}, "concurrency is '10'"),
        ({"source": MemoryQueue(), "bindings": ["order.#"]}, "bindings is given beside <.*MemoryQueue"),
        ({"source": MemoryQueue(), "prefetch": 5}, "prefetch is given beside"),
        (
            {"source": RabbitMQSubscriber("amqp://localhost", SubscriberSettings(queue="q", single_active=False))},
            "has single_active=False",
        ),
        ({"ordering": "any"}, "ordering is 'any'"),
        ({"retain": "5"}, "retain is '5'"),
        ({"grace": "soon"}, "grace is 'soon'"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        Consumer(**({"name": "stock", "begin": None} | settings))


def test_settings_that_are_none(one_place: Place) -> None:
    """An app that takes them from its environment may have none: they count as left out."""
    names = ["queue", "exchange", "bindings", "declare", "dead_letter_queue", "prefetch", "max_message_size"]
    unset: dict[str, Any] = dict.fromkeys([*names, "max_held_bytes"])
    it: Consumer[Any] = Consumer("amqp://localhost", name="stock", begin=one_place.begin, **unset)
    it.on(Numbered)(one_place.handler())
    found: Any = it._subscriber()
    assert (found.queue, found.exchange, found._settings.declare, found._settings.prefetch) == (
        "stock",
        "postroad",
        "create",
        200,
    )
    Consumer(MemoryQueue(), name="stock", begin=one_place.begin, **unset)
    for source in ("amqp://localhost", MemoryQueue(), None):
        with pytest.raises(InvalidSetting, match=r"has no setting 'prefech'; did you mean 'prefetch'\?"):
            Consumer(source, name="stock", begin=one_place.begin, prefech=None)


async def test_a_consumer_without_a_broker(one_place: Place) -> None:
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin)
    it.on(Numbered)(one_place.handler())
    with pytest.raises(InvalidSetting, match="has no broker"):
        await it.run()


async def test_begin_must_give_a_context_manager(queue: MemoryQueue) -> None:
    wrong: Any = object
    it: Consumer[Any] = Consumer(queue, name="stock", begin=wrong)
    it.on(Numbered)(handle)
    with pytest.raises(InvalidSetting, match="it must give async context managers"):
        await it.run()


async def test_a_batch_says_itself_what_follows(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)

    @it.on_batch(Numbered)
    async def handle(batch: Any, tx: Any) -> None:
        for event, message in batch:
            with following(message):
                await OUTBOX.add(tx, {"number": event.number}, type="followed")

    put(queue, 1, 2)
    ids = [delivery.message_id for delivery in queue.queue]
    await consumed(it)
    rows = await one_place.rows("select headers from postroad_outbox order by position")
    assert [msgspec.json.decode(row[0])["causation_id"] for row in rows] == ids


async def test_a_login_that_is_refused_when_the_broker_comes_up_ends_the_consumer(one_place: Place) -> None:
    """It has never been connected, so this is still its start."""

    class ComesUp(MemoryQueue):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            raise BrokerUnavailable("not there yet") if self.opened == 1 else LoginRefused("the login was refused")

    it = Consumer(ComesUp(), name="stock", begin=one_place.begin)
    it.on(Numbered)(one_place.handler())
    async with asyncio.timeout(60):
        with pytest.raises(LoginRefused):
            await it.run()


async def test_two_may_undo_the_same_failure_at_once(one_place: Place, queue: MemoryQueue) -> None:
    """The consumer's end undoes all that has failed, while a message's own undoing is under way."""
    handling = consumer(one_place, queue)._transaction
    both = asyncio.Barrier(2)

    async def undo(*_: Any) -> None:
        await both.wait()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(handling._transactions, "undo", undo)
        handling._failed["1"] = "a transaction"
        async with asyncio.timeout(60):
            await asyncio.gather(handling.undo_all(), handling.undo_all())
    assert not handling._failed
