"""Tombstones, from the outbox to a handler: through a broker, a queue in memory, and handlers in the same process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroad import Consumer, InvalidMessage, InvalidSetting, Message, Outbox, Received, Relay, Tombstone
from postroad.brokers.memory import MemoryBroker, MemoryQueue
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.config import RelaySettings
from postroad.consumer import Summary
from postroad.errors import Refusal
from postroad.stores.memory import MemoryStore
from tests.consumers import consumed as run_consumer
from tests.consumers import consumer
from tests.destinations import bound_queue, consumed, rabbitmq_channel, stored
from tests.logs import Log, log_fixture
from tests.places import Place

OUTBOX = Outbox(source="/customers")
log = log_fixture("memory", "sqlite", "postgresql15")


class Customer(msgspec.Struct):
    number: int


async def relayed(log: Log, publisher: Any) -> None:
    settings = RelaySettings(lanes=1, poll_interval="1ms")
    await Relay(log.store, publisher, sink="s", settings=settings).run_until_empty()


LIFE = [
    Message(Customer(1), type="customer", key=7),
    Message(Tombstone(), type="customer", key=7, headers={"by": "support"}),
    Message(b"", type="note", key=7),
]


async def test_it_is_read_back_as_one(log: Log) -> None:
    await log.add(*LIFE)
    await log.add(Message(Tombstone(), type="customer", key=8, deliver_in="1s"))
    broker = MemoryBroker()
    await relayed(log, broker)
    assert [each.is_tombstone for each in broker.messages] == [False, True, False], "empty bytes are content"
    gone = broker.messages[1]
    assert (gone.type, gone.key, gone.payload, gone.content_type) == ("customer", "7", b"", "")
    assert gone.headers == {"by": "support"}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message(Tombstone(), key=7), "needs a type and a key, which name what is gone, and type was left out"),
        (
            Message(Tombstone(), type="customer"),
            "needs a type and a key, which name what is gone, and key was left out",
        ),
        (Message(Tombstone, type="customer", key=7), "the event is the class Tombstone; add an instance of it"),
        (Message({"gone": Tombstone()}, type="customer", key=7), "Tombstone is not supported"),
        (Message(None, type="customer", key=7), r"an event of type NoneType can't be added; .* or a Tombstone\(\)"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_written(message: Message, why: str) -> None:
    store = MemoryStore()
    with store.begin() as transaction, pytest.raises(InvalidMessage, match=why):
        OUTBOX.add_many(transaction, [message])
    assert store._log == []


# -- to a handler ----------------------------------------------------------------------------------------------------


def on_both(it: Consumer[Any], seen: list[Any]) -> None:
    @it.on(Customer, type="customer")
    async def changed(event: Customer, tx: Any, message: Received) -> None:
        seen.append((event, message.key))

    @it.on(Tombstone, type="customer")
    async def gone(event: Tombstone, tx: Any, message: Received) -> None:
        seen.append((event, message.key, message.is_tombstone, message.headers))


SEEN = [(Customer(1), "7"), (Tombstone(), "7", True, {"by": "support"})]


@pytest.mark.parametrize("per_transaction", [1, 10])
async def test_it_comes_to_its_handler_in_order(log: Log, one_place: Place, per_transaction: int) -> None:
    await log.add(*LIFE[:2])
    queue = MemoryQueue()
    await relayed(log, MemoryBroker(queue))
    it = consumer(one_place, queue, messages_per_transaction=per_transaction)
    seen: list[Any] = []
    on_both(it, seen)
    summary: Summary = await run_consumer(it)
    assert (summary.handled, seen) == (2, SEEN)


async def test_handlers_in_the_process_get_it(log: Log, one_place: Place) -> None:
    await log.add(*LIFE[:2])
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin)
    seen: list[Any] = []
    on_both(it, seen)
    await relayed(log, it.publisher())
    assert seen == SEEN


async def test_a_batch_takes_the_tombstones_of_its_types(log: Log, one_place: Place) -> None:
    await log.add(*LIFE[:2])
    queue = MemoryQueue()
    await relayed(log, MemoryBroker(queue))
    it = consumer(one_place, queue)
    seen: list[Any] = []

    @it.on_batch(Customer, Tombstone, type="customer")
    async def changed(batch: Any, tx: Any) -> None:
        seen.extend(event for event, _ in batch)

    await run_consumer(it)
    assert seen == [Customer(1), Tombstone()]


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_it_passes_through_rabbitmq(log: Log, one_place: Place, vhost: str, mode: Any) -> None:
    await log.add(*LIFE[:2])
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "seen")
        await bound_queue(channel, "stock", "customer", single_active_consumer=True)
        await channel.declare_queue("stock.dead", durable=True)
    await relayed(log, RabbitMQPublisher(vhost, PublisherSettings(envelope=mode)))
    _, gone = await consumed(vhost, "seen")
    if mode == "binary":
        assert (gone.body, gone.content_type) == (b"", None)
        assert (gone.headers["ce-type"], gone.headers["ce-partitionkey"]) == ("customer", "7")
        assert not [name for name in gone.headers if "data" in name]
    else:
        document = msgspec.json.decode(gone.body)
        assert document["partitionkey"] == "7"
        assert not [name for name in document if name.startswith("data")]
    it: Consumer[Any] = Consumer(vhost, name="stock", queue="stock", begin=one_place.begin, declare="check")
    seen: list[Any] = []
    on_both(it, seen)
    await run_consumer(it)
    assert seen == SEEN


# -- without a handler for it ----------------------------------------------------------------------------------------


def put_tombstone(queue: MemoryQueue) -> None:
    queue.put_stored(stored(payload=b"", content_type="", type="customer"))


async def test_a_handler_of_events_does_not_get_it(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)
    it.on(Customer, type="customer")(one_place.handler())
    put_tombstone(queue)
    assert (await run_consumer(it)).dead == 1
    assert queue.dead[0][1]["postroad-reason"] == (
        "no handler of consumer 'stock' takes tombstones of the type 'customer' (@consumer.on(Tombstone, "
        "type='customer')); it has some for 'customer'"
    )


async def test_nor_does_a_handler_of_tombstones_get_events(one_place: Place, queue: MemoryQueue) -> None:
    it = consumer(one_place, queue)
    it.on(Tombstone, type="customer")(one_place.handler())
    queue.put_stored(stored(payload=b'{"number":1}', type="customer"))
    assert (await run_consumer(it)).dead == 1
    assert "takes the type 'customer'; it has some for tombstones of 'customer'" in queue.dead[0][1]["postroad-reason"]


@pytest.mark.parametrize(("cls", "nothing"), [(bytes, b""), (str, "")])
async def test_a_handler_of_raw_payloads_gets_an_empty_one(
    one_place: Place, queue: MemoryQueue, cls: type, nothing: object
) -> None:
    """As it did before there were tombstones, for other programs send messages without content type."""
    it = consumer(one_place, queue)
    seen: list[Any] = []

    @it.on(cls, type="customer")
    async def raw(event: Any, tx: Any, message: Received) -> None:
        seen.append(event)

    put_tombstone(queue)
    assert ((await run_consumer(it)).handled, seen) == (1, [nothing])


async def test_in_the_process_it_is_refused_for_good(log: Log, one_place: Place) -> None:
    await log.add(*LIFE[:2])
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin)
    it.on(Customer, type="customer")(one_place.handler())
    publisher = it.publisher()
    await publisher.open()
    (refusal,) = await publisher.publish([stored(payload=b"", content_type="", type="customer")])
    await publisher.close()
    assert isinstance(refusal, Refusal)
    assert (refusal.permanent, "takes tombstones" in refusal.reason) == (True, True)


def test_a_handler_of_tombstones_needs_their_type(one_place: Place) -> None:
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin)
    with pytest.raises(InvalidSetting, match=r"Tombstone has no type of its own; give one: on\(Tombstone, type="):
        it.on(Tombstone)
    it.on(Tombstone, type="customer")(one_place.handler())
    with pytest.raises(InvalidSetting, match="has a handler for tombstones of 'customer' already"):
        it.on(Tombstone, type="customer")(one_place.handler())
    it.on(Customer, type="customer")(one_place.handler())
