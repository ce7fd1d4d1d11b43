"""A message is known by its source and its id: one that another source sends with the same id is another message."""

from __future__ import annotations

from typing import Any

import aio_pika
import pytest

from postroad import Consumer, Received
from postroad.brokers.memory import MemoryQueue
from postroad.message import new_id
from tests.consumers import Numbered, consumed, put
from tests.destinations import rabbitmq_channel
from tests.places import asyncpg_transactions
from tests.security.neighbours import Neighbours


@pytest.fixture
def billings(neighbours: Neighbours) -> Any:
    return asyncpg_transactions(neighbours.url("billing"))[0]


def noting(consumer: Consumer[Any]) -> list[tuple[str, int]]:
    """What the consumer's handler gets."""
    handled: list[tuple[str, int]] = []

    @consumer.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        handled.append((str(message.source), event.number))

    return handled


async def test_a_forged_message_with_the_id_of_a_genuine_one_makes_it_no_duplicate(billings: Any) -> None:
    queue, id = MemoryQueue(), new_id()
    consumer = Consumer(queue, name="stock", begin=billings)
    handled = noting(consumer)
    put(queue, 666, id=id, headers={"source": "/forged"})
    put(queue, 1, id=id, headers={"source": "/shop"})
    put(queue, 1, id=id, headers={"source": "/shop"})
    summary = await consumed(consumer)
    assert sorted(handled) == [("/forged", 666), ("/shop", 1)]
    assert (summary.handled, summary.duplicates) == (2, 1)


async def test_so_it_is_with_what_a_client_publishes_to_the_queue(billings: Any, vhost: str) -> None:
    id = str(new_id())
    consumer = Consumer(vhost, name="stock", begin=billings)
    handled = noting(consumer)
    await consumed(consumer)  # which declares its queue
    async with rabbitmq_channel(vhost) as channel:
        for source, number in (("/forged", 666), ("/shop", 1)):
            headers: Any = {"ce-specversion": "1.0", "ce-id": id, "ce-source": source, "ce-type": "numbered"}
            message = aio_pika.Message(b'{"number":%d}' % number, content_type="application/json", headers=headers)
            await channel.default_exchange.publish(message, "stock")
    await consumed(consumer)
    assert sorted(handled) == [("/forged", 666), ("/shop", 1)]
