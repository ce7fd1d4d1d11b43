"""Consumers undo what the producer's codecs did; what can't be undone has a named outcome."""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec
import pytest

from postroad import Consumer, InvalidSetting, Message, Outbox, Received, Relay, ShreddedPayload
from postroad.brokers.base import Delivery
from postroad.brokers.cloudevents import MODES, Mode, unwrap, wrap
from postroad.brokers.memory import MemoryQueue
from postroad.codecs import About, ClaimCheck, Encrypt, Key, KeyPerSubject, KeyRing, Missing, Zlib, Zstd, decoded
from postroad.config import RelaySettings
from postroad.events import MessageBusy
from postroad.lifecycle import State
from postroad.stores.memory import MemoryStore
from tests.consumers import consumed, consumer
from tests.payload_stores import Payloads
from tests.places import Place

KEYS = KeyRing({"2026-10": os.urandom(32), "2026-11": os.urandom(32)}, current="2026-11")
TEXT = "0123456789" * 2000


class Customer(msgspec.Struct):
    number: int
    text: str = TEXT


def messages(codecs: list[Any], *events: Any, **fields: Any) -> MemoryQueue:
    """These events as a broker delivers them."""
    queue, store = MemoryQueue(), MemoryStore()
    with store.begin() as transaction:
        added = [Message(event, type="customer", key="7", **fields) for event in events]
        Outbox(source="/customers", codecs=codecs).add_many(transaction, added)
    for message in store._log:
        queue.put_stored(message)
    return queue


def handling(it: Consumer[Any]) -> list[Any]:
    seen: list[Any] = []

    @it.on(Customer, type="customer")
    async def changed(event: Customer, tx: Any, message: Received) -> None:
        seen.append((event.number, dict(message.headers)))

    return seen


STORE = Payloads()
ALL = [Zstd(), Encrypt(KEYS), ClaimCheck(STORE, above="1KB")]


@pytest.mark.parametrize(
    "codecs",
    [[Zstd()], [Zlib()], [Encrypt(KEYS)], ALL, [Zlib(), ClaimCheck(STORE, above=10)]],
    ids=["zstd", "zlib", "encrypted", "all", "zlib, elsewhere"],
)
@pytest.mark.parametrize("per_transaction", [1, 10])
async def test_a_handler_gets_what_was_added(one_place: Place, codecs: list[Any], per_transaction: int) -> None:
    queue = messages(codecs, Customer(1), Customer(2), Customer(3, "short"), headers={"tenant": "a"})
    it = consumer(one_place, queue, codecs=codecs, messages_per_transaction=per_transaction)
    seen = handling(it)
    summary = await consumed(it)
    assert (summary.handled, summary.dead) == (3, 0)
    assert seen == [(number, {"tenant": "a"}) for number in (1, 2, 3)], "and only the user's own headers"


async def test_compression_needs_no_settings(one_place: Place) -> None:
    """A producer can turn it on before its consumers know of it."""
    for codec in (Zstd(), Zlib()):
        it = consumer(one_place, messages([codec], Customer(1)))
        assert handling(it) is not None
        assert (await consumed(it)).handled == 1


@pytest.mark.parametrize(
    ("produced", "has", "reason"),
    [
        ([Encrypt(KEYS)], [], r"its payload is encrypted, and this consumer has no codec for it: codecs=\[Encrypt"),
        (ALL[2:], [], r"its payload is stored elsewhere, and this consumer has no codec for it: codecs=\[ClaimCheck"),
        (
            [Encrypt(KEYS)],
            [Encrypt(KeyRing({"2025": os.urandom(32)}, current="2025"))],
            "encrypted with the key '2026-11', which this consumer does not have",
        ),
        (
            [Encrypt(KEYS)],
            [Encrypt(KeyRing({"2026-11": os.urandom(32)}, current="2026-11"))],
            "encrypted with another key than the '2026-11' that this consumer has",
        ),
        (ALL[2:], [ClaimCheck(Payloads())], "is gone"),
        ([Zstd()], [Zstd(largest="4KB")], "would have more than 4,096 when decompressed, which is Zstd's largest"),
        ([Zlib()], [Zlib(largest="4KB")], "would have more than 4,096 when decompressed, which is Zlib's largest"),
    ],
)
async def test_what_cannot_be_undone_is_a_dead_letter_with_the_reason(
    one_place: Place, produced: list[Any], has: list[Any], reason: str
) -> None:
    """At once: another attempt can't help. The dead letter is as it came, to be put back when the key is there."""
    queue = messages(produced, Customer(1))
    it = consumer(one_place, queue, codecs=has)
    seen = handling(it)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead, seen) == (0, 0, 1, [])
    [(letter, notes)] = queue.dead
    assert re.search(reason, notes["postroad-reason"])
    assert {"encryption", "ce-dataref", "content_encoding"} & set(letter.headers)


async def test_a_changed_message_is_unreadable(one_place: Place) -> None:
    """The type and the compression are authenticated with the content."""
    queue = messages([Zstd(), Encrypt(KEYS)], Customer(1))
    [delivery] = queue.queue
    queue.queue.clear()
    said = delivery.headers["encryption"]
    for changed in (
        {"headers": dict(delivery.headers) | {"content_encoding": "deflate"}},
        {"headers": dict(delivery.headers) | {"encryption": said.replace("2026-11", "2026-10")}},
        {"headers": dict(delivery.headers) | {"ce-type": "other"}, "type": "other"},
        {"body": delivery.body[:-1] + bytes([delivery.body[-1] ^ 1])},
        {"body": b"short"},
    ):
        queue.queue.append(msgspec.structs.replace(delivery, **changed, tag=len(queue.queue) + 1))
    it = consumer(one_place, queue, codecs=[Encrypt(KEYS)])
    handling(it)

    @it.on(dict, type="other")
    async def other(event: Any, tx: Any, message: Received) -> None: ...

    summary = await consumed(it)
    assert (summary.handled, summary.dead) == (0, 5)


async def test_an_outage_of_the_store_is_not_an_attempt(one_place: Place) -> None:
    payloads = Payloads()
    queue = messages([ClaimCheck(payloads, above=10)], Customer(1))
    payloads.fails = True
    waited: list[Any] = []

    class Recovering:
        def on_event(self, event: Any) -> None:
            if isinstance(event, MessageBusy):
                waited.append(event.reason)
                payloads.fails = len(waited) < 5

    it = consumer(one_place, queue, codecs=[ClaimCheck(payloads)], listeners=[Recovering()])
    seen = handling(it)
    summary = await consumed(it)
    assert (summary.handled, summary.failed, summary.dead, len(seen)) == (1, 0, 0, 1)
    assert waited == ["the test's store is unavailable"] * 5
    assert await one_place.attempts() == []


async def test_a_duplicate_needs_no_payload(one_place: Place) -> None:
    """A message that was processed is not a dead letter because its payload was deleted since."""
    payloads = Payloads()
    queue = messages([ClaimCheck(payloads, above=10)], Customer(1))
    [delivery] = queue.queue
    it = consumer(one_place, queue, codecs=[ClaimCheck(payloads)])
    handling(it)
    assert (await consumed(it)).handled == 1
    payloads.objects.clear()
    queue.queue.append(delivery)
    summary = await consumed(it)
    assert (summary.duplicates, summary.dead) == (1, 0)


@pytest.mark.parametrize("mode", MODES)
async def test_every_envelope_says_what_was_done(mode: Mode) -> None:
    """In a document too, because an element of a batch has no headers."""
    store = MemoryStore()
    with store.begin() as transaction:
        outbox = Outbox(source="/customers", codecs=ALL)
        outbox.add(transaction, Customer(1, os.urandom(2000).hex()), type="customer", key=7)
        outbox.add(transaction, Customer(2, "small"), type="customer", key=7)
    for message in store._log:
        content_type, headers, body = wrap(message, mode)
        delivery = Delivery(
            session=None,
            tag=0,
            body=body,
            content_type=content_type,
            headers={} if mode == "structured" else headers,
            message_id=str(message.id),
            type=message.type,
        )
        opened = await decoded(unwrap(delivery), ALL)
        assert msgspec.json.decode(opened.payload, type=Customer).number in {1, 2}
        assert opened.headers == {}


# -- erased keys -----------------------------------------------------------------------------------------------------


def tenant_of(about: About) -> str | None:
    return about.headers.get("tenant")


async def test_an_erased_key_makes_a_shredded_payload(one_place: Place) -> None:
    secrets: dict[str, bytes] = {}
    codecs = [Zstd(), Encrypt(KeyPerSubject(tenant_of, secrets))]
    queue = messages(codecs, Customer(1), Customer(2), headers={"tenant": "acme"})
    assert list(secrets) == ["acme"]
    del secrets["acme"]
    it = consumer(one_place, queue, codecs=codecs)
    seen = handling(it)

    @it.on(ShreddedPayload, type="customer")
    async def erased(event: ShreddedPayload, tx: Any, message: Received) -> None:
        seen.append((event, message.is_shredded, message.payload, message.key))

    assert (await consumed(it)).handled == 2
    assert seen == [(ShreddedPayload("acme"), True, b"", "7")] * 2


async def test_a_new_key_of_an_erased_subject_reads_nothing_old(one_place: Place) -> None:
    secrets: dict[str, bytes] = {}
    codecs = [Encrypt(KeyPerSubject(tenant_of, secrets))]
    queue = messages(codecs, Customer(1), headers={"tenant": "acme"})
    del secrets["acme"]
    queue.queue.extend(messages(codecs, Customer(2), headers={"tenant": "acme"}).queue)
    it = consumer(one_place, queue, codecs=codecs)
    seen = handling(it)
    summary = await consumed(it)
    assert (summary.handled, summary.dead) == (1, 1), "without a handler for it, it is a dead letter"
    assert [number for number, _ in seen] == [2]
    [(_, notes)] = queue.dead
    assert "which was erased with the key 'acme' (@consumer.on(ShreddedPayload" in notes["postroad-reason"]


async def test_a_batch_takes_shredded_payloads_of_its_types(one_place: Place) -> None:
    erased = KeyRing({"new": os.urandom(32)}, current="new", erased={"2026-11"})
    queue = messages([Encrypt(KEYS)], Customer(1))
    queue.queue.extend(messages([Encrypt(erased)], Customer(2)).queue)
    it = consumer(one_place, queue, codecs=[Encrypt(erased)])
    seen: list[Any] = []

    @it.on_batch(Customer, ShreddedPayload, type="customer")
    async def changed(batch: Any, tx: Any) -> None:
        seen.extend(event for event, _ in batch)

    assert (await consumed(it)).handled == 2
    assert seen == [ShreddedPayload("2026-11"), Customer(2)]


async def test_keys_may_be_asked_for_asynchronously(one_place: Place) -> None:
    class Service:
        def for_message(self, about: About) -> Key | None:
            return KEYS.for_message(about)

        async def find(self, id: str, check: str) -> Key | Missing:
            return KEYS.find(id, check)

    it = consumer(one_place, messages([Encrypt(Service())], Customer(1)), codecs=[Encrypt(Service())])
    handling(it)
    assert (await consumed(it)).handled == 1


async def test_an_error_of_a_key_service_is_a_failed_attempt(one_place: Place) -> None:
    class Down:
        def for_message(self, about: About) -> Key | None:
            return None

        def find(self, id: str, check: str) -> Key | Missing:
            raise ConnectionError("the key service is down")

    queue = messages([Encrypt(KEYS)], Customer(1))
    it = consumer(one_place, queue, codecs=[Encrypt(Down())])
    handling(it)
    summary = await consumed(it)
    assert (summary.failed, summary.dead) == (3, 1)
    assert "the key service is down" in queue.dead[0][1]["postroad-reason"]


# -- handlers in the relay -------------------------------------------------------------------------------------------


async def test_handlers_in_the_relay_undo_codecs_too(one_place: Place) -> None:
    payloads, store = Payloads(), MemoryStore()
    codecs = [Zstd(), Encrypt(KEYS), ClaimCheck(payloads, above=10)]
    outbox = Outbox(source="/customers", codecs=codecs)
    with store.begin() as transaction:
        outbox.add(transaction, Customer(1), type="customer", key=1)
        outbox.add(transaction, Customer(2), type="customer", key=2)
    gone = next(iter(payloads.objects))
    kept = payloads.objects.pop(gone)
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin, codecs=codecs)
    seen = handling(it)
    settings = RelaySettings(lanes=1, poll_interval="1ms")
    summary = await Relay(store, it.publisher(), sink="s", settings=settings).run_until_empty()
    assert (summary.published, len(seen)) == (1, 1)
    assert [row.state for row in store._deferred.values()] == [State.DEAD]
    payloads.objects[gone] = kept


async def test_while_the_store_is_unavailable_other_keys_go_on(one_place: Place) -> None:
    payloads, store = Payloads(), MemoryStore()
    outbox = Outbox(source="/customers", codecs=[ClaimCheck(payloads, above=1000)])
    with store.begin() as transaction:
        outbox.add(transaction, Customer(1), type="customer", key=1)
        outbox.add(transaction, Customer(2, "small"), type="customer", key=2)
    payloads.fails = True
    it: Consumer[Any] = Consumer(name="stock", begin=one_place.begin, codecs=[ClaimCheck(payloads)])
    seen: list[int] = []

    @it.on(Customer, type="customer")
    async def changed(event: Customer, tx: Any, message: Received) -> None:
        seen.append(event.number)

    settings = RelaySettings(lanes=1, poll_interval="1ms")
    summary = await Relay(store, it.publisher(), sink="s", settings=settings).run_until_empty()
    assert (seen, summary.published) == ([2], 1)
    [waiting] = store._deferred.values()
    assert (waiting.state, waiting.attempts, waiting.route) == (State.HELD, 0, "payload store")


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([Zstd(), Zstd(level=5)], "codecs has Zstd twice"),
        ("zstd", "codecs has 'z'; it must be a list of codecs"),
        ([Zstd], "it must be a list of codecs"),
        (Zstd(), None),
        ([Zstd(), Zlib()], "codecs has Zstd and Zlib; an outbox can use one of them"),
    ],
)
def test_wrong_codecs_are_refused(wrong: Any, why: str | None) -> None:
    if why is None:
        assert Outbox(source="/x", codecs=wrong) is not None, "a single one is clear enough"
        return
    with pytest.raises(InvalidSetting, match=re.escape(why)):
        Outbox(source="/x", codecs=wrong)


async def test_the_dataref_of_another_producer_is_left_to_its_handler(one_place: Place) -> None:
    """CloudEvents defines it for everyone."""
    queue = messages([], Customer(1))
    [delivery] = queue.queue
    queue.queue.clear()
    queue.queue.append(
        msgspec.structs.replace(delivery, headers=dict(delivery.headers) | {"ce-dataref": "https://example.com/1"})
    )
    it = consumer(one_place, queue)
    seen = handling(it)
    await consumed(it)
    assert seen == [(1, {"dataref": "https://example.com/1"})]
