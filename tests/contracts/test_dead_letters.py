"""Copies of dead messages on the broker: why they died is in the headers, and nothing waits for them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad import Message, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.message import new_id
from postroad.relay import Relay
from postroad.relay.derived import Death, dead_letter
from postroad.retry import Backoff
from tests.logs import MemoryLog, numbered


def relay(log: MemoryLog, broker: MemoryBroker, **settings: Any) -> Relay:
    given: dict[str, Any] = {"lanes": 1, "dead_letter_topic": "dead", "poll_interval": "1ms", "outage_backoff": "1ms"}
    return Relay(log.store, broker, settings=RelaySettings(**(given | settings)), retry=Backoff(max_attempts=1))


def refuse_originals(broker: MemoryBroker) -> None:
    broker.refuse(lambda message: "too odd" if message.topic != "dead" else None)


async def test_a_copy_says_why_and_where_from() -> None:
    log, broker = MemoryLog(), MemoryBroker()
    refuse_originals(broker)
    id = new_id()
    await log.add(Message("1", type="order.created", topic="orders", key="k", id=id, headers={"x": "y"}))
    assert (await relay(log, broker).run_until_empty()).died == 1
    (copy,) = broker.messages
    assert (copy.topic, copy.type, copy.key, copy.payload) == ("dead", "order.created", None, b"1")
    assert copy.id != id
    headers = copy.headers
    assert headers.pop("postroad-dead-at")
    assert headers == {
        "x": "y", "postroad-dead-id": str(id), "postroad-dead-topic": "orders", "postroad-dead-type": "order.created",
        "postroad-dead-key": "k", "postroad-dead-sink": "default", "postroad-dead-reason": "too odd",
        "postroad-dead-attempts": "1",
    }  # fmt: skip
    assert copy.source == "/tests"


async def test_there_is_none_unless_it_is_asked_for() -> None:
    log, broker = MemoryLog(), MemoryBroker()
    refuse_originals(broker)
    await log.add(*numbered(1))
    await relay(log, broker, dead_letter_topic=None).run_until_empty()
    assert broker.messages == []


async def test_a_copy_that_is_refused_is_logged_and_stops_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    log, broker = MemoryLog(), MemoryBroker()
    broker.refuse(lambda message: "full" if message.topic == "dead" or message.payload == b"1" else None)
    await log.add(*numbered(1, 2))
    summary = await relay(log, broker).run_until_empty()
    assert (summary.published, summary.died) == (1, 1)
    (row,) = await log.deferred()
    assert (row.state, row.error) == ("dead", "full; its dead letter for topic 'dead' was refused: full")
    assert "for topic dead was refused: full; the message itself stays in the log" in caplog.text


async def test_an_outage_between_death_and_copy_loses_no_copy() -> None:
    log, broker = MemoryLog(), MemoryBroker()
    refuse_originals(broker)
    broker.fail_after(1, 0)  # the broker refuses the message, and is out when the copy comes
    await log.add(*numbered(1))
    assert (await relay(log, broker).run_until_empty()).died == 1
    assert [message.topic for message in broker.messages] == ["dead"]


async def test_who_is_stopped_before_the_copy_has_not_seen_the_message_die() -> None:
    """At least once: the death is recorded after the copy is confirmed, so the next relay has the message die again."""
    log = MemoryLog()

    class Stuck(MemoryBroker):
        async def publish(self, messages: Any) -> Any:
            if messages[0].topic == "dead":
                self.asked.set()
                await asyncio.Event().wait()
            return [Refusal(message.position, "no") for message in messages]

    await log.add(*numbered(1))
    stuck = Stuck()
    running = asyncio.create_task((it := relay(log, stuck, grace="1ms")).run())
    await asyncio.wait_for(stuck.asked.wait(), 60)
    it.stop()
    await asyncio.wait_for(running, 60)
    assert await log.deferred() == []
    assert await log.waiting() == 1
    broker = MemoryBroker()
    refuse_originals(broker)
    assert (await relay(log, broker).run_until_empty()).died == 1
    assert [message.topic for message in broker.messages] == ["dead"]


async def test_also_of_those_that_died_after_trouble() -> None:
    log, broker = MemoryLog(), MemoryBroker()
    refuse_originals(broker)
    await log.add(*numbered(1, 2, key="k"))
    retry = Backoff(first=timedelta(0), max_attempts=2)
    it = Relay(log.store, broker, settings=RelaySettings(lanes=1, dead_letter_topic="dead"), retry=retry)
    assert (await it.run_until_empty()).died == 2
    assert [message.payload for message in broker.messages] == [b"1", b"2"]


def test_a_message_whose_headers_are_broken_has_a_copy_too() -> None:
    message = StoredMessage(1, new_id(), "t", None, 0, "a.b", b"x", "text/plain", "nonsense", 0)
    death = Death("s", "its headers are no JSON", 3, datetime.now(UTC))
    copy = dead_letter(message, death, id=new_id(), topic="dead")
    assert (copy.source, copy.headers["postroad-dead-reason"]) == ("postroad", "its headers are no JSON")
