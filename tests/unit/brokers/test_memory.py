"""The broker in memory: what it confirmed is what it says that it confirmed."""

from __future__ import annotations

import pytest

from postroad import BrokerUnavailable, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker, MemoryQueue
from tests.destinations import a_page, stored


async def test_a_publish_that_raises_has_confirmed_nothing() -> None:
    def refuse(message: StoredMessage) -> None:
        if message.position == 3:
            raise LookupError("a mistake of the test's own")

    queue = MemoryQueue()
    broker = MemoryBroker(queue)
    broker.refuse(refuse)
    with pytest.raises(LookupError):
        await broker.publish(a_page(4))
    assert (broker.messages, await queue.waiting()) == ([], 0)


async def test_what_can_not_be_put_into_the_queue_is_refused_alone() -> None:
    """As RabbitMQ's publisher does it."""
    queue = MemoryQueue()
    broker = MemoryBroker(queue)
    page = a_page(3)
    page[1] = stored(2, headers_json="{}")
    (refusal,) = await broker.publish(page)
    assert (refusal.position, refusal.permanent) == (2, True)
    assert "no header 'source'" in refusal.reason
    assert [message.position for message in broker.messages] == [1, 3]
    assert [each.message_id for each in queue.queue] == [str(page[0].id), str(page[2].id)]


async def test_an_outage_names_what_was_confirmed_before_it_and_the_queue_has_it() -> None:
    queue = MemoryQueue()
    broker = MemoryBroker(queue)
    broker.refuse(lambda message: "no" if message.position == 2 else None)
    broker.fail_after(3)
    page = a_page(5)
    with pytest.raises(BrokerUnavailable) as outage:
        await broker.publish(page)
    assert (set(outage.value.confirmed), list(outage.value.refusals)) == ({1, 3}, [Refusal(2, "no")])
    assert [message.position for message in broker.messages] == [1, 3]
    assert await queue.waiting() == 2
