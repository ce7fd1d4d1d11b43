"""A bad day of the broker is no message's fault, and a bad message is not the broker's: on a real RabbitMQ.

In an outage messages wait: none is counted an attempt, none dies, all arrive afterwards, and each key in order.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from postroad import Message, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.memory import MemoryStore
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import MemoryLog, PostgreSQLLog, log_fixture
from tests.queues import QUEUE, arrivals, with_queue
from tests.relays import WAIT_SECONDS, RunningRelay, relay
from tests.services.proxy import Proxy
from tests.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

    from tests.services.rabbitmq import RabbitMQ

LANES = 4
IMPATIENT = (
    "--lanes", str(LANES), "--outage-backoff", "200ms", "--max-attempts", "2", "--max-backoff", "100ms",
    "--lease", "1h", "--grace", "2m",  # a busy machine costs no lane, and no confirm
)  # fmt: skip


log = log_fixture("postgresql15")


async def until(number: Callable[[], float], *, reaches: float) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if number() >= reaches:
                return
            await asyncio.sleep(0.01)


# -- outages ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def delivering(
    log: PostgreSQLLog, to: str, folder: Path, *options: str, keys: int = 400
) -> AsyncIterator[tuple[Traffic, RunningRelay]]:
    """10,000 messages wait, more come while the block runs, and a relay delivers them, and the first have arrived.

    After the block, all of them are delivered, and none has failed.
    """
    traffic = Traffic(10_000, keys)
    await traffic.add_to(log)
    with relay(log, to, folder / "log", *IMPATIENT, *options) as running:
        async with traffic.growing(log):
            await running.until(published=1_000)
            yield traffic, running
        await delivered(log)
        assert await running.ended_by(signal.SIGTERM) == 0
    assert await log.attempts() == []
    (end,) = running.logged("relay_ended")
    assert (end["published"], end["refused"], end["died"]) == (traffic.count, 0, 0)
    assert not running.logged("message_refused", "message_dead", "lane_lost", "lane_reloaded", "store_unavailable")


async def delivered(log: PostgreSQLLog, *, dead: int = 0) -> None:
    """Wait until no lane has anything before it, and nothing is deferred but so many dead."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if not await log.waiting() and await states(log) == ["dead"] * dead:
                return
            await asyncio.sleep(0.05)


async def states(log: PostgreSQLLog) -> list[str]:
    return [each.state for each in await log.deferred()]


async def test_stopped_and_started(log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path) -> None:
    await with_queue(vhost)
    async with delivering(log, vhost, tmp_path) as (traffic, running):
        await asyncio.to_thread(rabbitmq.stop)
        await running.until_logged("broker_unavailable")
        await asyncio.to_thread(rabbitmq.start)
        await running.until_logged("broker_recovered")
    traffic.check(await arrivals(vhost))


async def test_cut_in_the_middle_of_a_page(log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path) -> None:
    """Before anything of a page is confirmed, and when some of it is. With many keys much of it goes at once."""
    await with_queue(vhost)
    async with (
        Proxy(rabbitmq.port) as proxy,
        delivering(log, proxy.url(vhost), tmp_path, "--batch-size", "2000", keys=4_000) as (traffic, running),
    ):
        for cuts, after in enumerate(({"sent": 123_456}, {"answered": 100}) * 3, start=1):
            proxy.cut_after(**after)
            await until(lambda: proxy.cuts, reaches=cuts)
            await running.until_logged("broker_recovered", times=cuts)
    assert running.interrupted()
    traffic.check(await arrivals(vhost))


async def test_memory_alarm(log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path) -> None:
    await with_queue(vhost)
    try:
        async with delivering(log, vhost, tmp_path) as (traffic, running):
            await asyncio.to_thread(rabbitmq.block)
            await running.until_logged("broker_unavailable", "alarm: low on memory")
            await asyncio.to_thread(rabbitmq.unblock)
            await running.until_logged("broker_recovered")
    finally:
        rabbitmq.unblock()
    traffic.check(await arrivals(vhost))


async def test_a_queue_that_rejects(log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path) -> None:
    name = vhost.rpartition("/")[2]
    limit = '{"max-length": 3000, "overflow": "reject-publish"}'
    rabbitmq.ctl("set_policy", "-p", name, "--apply-to", "queues", "small", f"^{QUEUE}$", limit)
    await with_queue(vhost)
    async with delivering(log, vhost, tmp_path) as (traffic, running):
        await running.until_logged("route_blocked", "basic.nack", times=LANES)
        arrived = await arrivals(vhost)
        assert len(arrived) >= 3000
        await running.until_logged("route_unblocked")
        await running.until_logged("route_blocked", times=LANES + 1)  # it is full again
        await asyncio.to_thread(rabbitmq.ctl, "clear_policy", "-p", name, "small")
    traffic.check(arrived + await arrivals(vhost))


async def test_an_exchange_deleted(log: PostgreSQLLog, vhost: str, tmp_path: Path) -> None:
    await with_queue(vhost)
    async with delivering(log, vhost, tmp_path) as (traffic, running), rabbitmq_channel(vhost) as channel:
        await channel.exchange_delete("postroad")
        await running.until_logged("broker_unavailable", "the exchange 'postroad' is gone")
        await running.until_logged(
            "route_blocked", "no queue takes", times=LANES
        )  # it is there again, and nothing is bound
        await bound_queue(channel, QUEUE)
    traffic.check(await arrivals(vhost))


# -- a route that is out ---------------------------------------------------------------------------------------------


class Hasty:
    """A clock for which ten minutes are over in two seconds."""

    SPEED = 300

    def now(self) -> float:
        return time.monotonic() * self.SPEED

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds / self.SPEED)


async def test_a_binding_that_is_missing_for_ten_minutes(vhost: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its topic waits, and no attempt is counted. Other topics go on."""
    caplog.set_level("INFO", "postroad")
    clock = Hasty()
    log = MemoryLog()
    log.store = MemoryStore(clock=clock.now)
    orders: list[int] = []
    invoices: list[int] = []
    async with rabbitmq_channel(vhost) as channel:
        await collect(orders, channel, "order.placed")
        it = Relay(log.store, RabbitMQPublisher(vhost), settings=RelaySettings(lanes=2, lease="1h"), clock=clock)
        running = asyncio.create_task(it.run())
        began = clock.now()
        for minute in range(1, 11):
            await log.add(*(each for n in range(minute * 100, minute * 100 + 50) for each in order_and_invoice(n)))
            await until(lambda: len(orders), reaches=50 * minute)
            await until(clock.now, reaches=began + 60 * minute)
        await until(lambda: len(log.store._deferred), reaches=500)
        deferred = await log.deferred()
        assert {each.route for each in deferred if each.route} == {"invoice.sent"}
        assert {each.state for each in deferred} <= {"held", "sending"}  # one may be tried just now
        assert not any(each.attempts for each in deferred)

        await collect(invoices, channel, "invoice.sent")
        await until(lambda: len(invoices), reaches=500)
        it.stop()
        summary = await running
    assert (summary.published, summary.refused, summary.died) == (1000, 0, 0)
    assert (await log.deferred(), await log.attempts()) == ([], [])
    for arrived in (orders, invoices):
        assert all(sorted(of_key) == of_key for of_key in ([n for n in arrived if n % 7 == key] for key in range(7)))
    reported = [str(record.event) for record in caplog.records if hasattr(record, "event")]
    assert (reported.count("route_blocked"), reported.count("route_unblocked")) == (2, 2)  # once for each lane


def order_and_invoice(number: int) -> list[Message]:
    return [Message(str(number), type=type, key=f"{type} {number % 7}") for type in ("order.placed", "invoice.sent")]


async def collect(numbers: list[int], channel: AbstractChannel, topic: str) -> None:
    """A queue for the topic, whose messages are taken at once."""

    async def take(message: AbstractIncomingMessage) -> None:
        numbers.append(int(message.body))

    await bound_queue(channel, topic, topic)
    await (await channel.get_queue(topic)).consume(take, no_ack=True)


# -- a message that is at fault --------------------------------------------------------------------------------------


async def test_a_message_that_breaks_the_connection_is_found_and_refused_alone(
    log: PostgreSQLLog, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path
) -> None:
    """Lanes share the connection. With few keys each has few messages under way, and each of them could be the one."""
    traffic = Traffic(10_000, keys=40)
    await with_queue(vhost)
    await log.add(*traffic.messages(1, 1_001))
    await log.add(Message("this breaks it", type="test.number", key="key-1"))
    await log.add(*traffic.messages(1_001, 10_001))
    async with Proxy(rabbitmq.port) as proxy:
        proxy.cut_at(b"this breaks it")
        with relay(log, proxy.url(vhost), tmp_path / "log", *IMPATIENT) as running:
            async with traffic.growing(log):
                await running.until_logged("message_dead")
            await delivered(log, dead=1)
            assert await running.ended_by(signal.SIGTERM) == 0
    assert proxy.cuts
    assert [(each.position, each.attempt) for each in await log.attempts()] == [(1_001, 1), (1_001, 2)]
    (end,) = running.logged("relay_ended")
    assert (end["published"], end["refused"], end["died"]) == (traffic.count, 2, 1)
    traffic.check(await arrivals(vhost))


class Picky(MemoryBroker):
    """A publisher with a mistake: it raises whatever Python raises when it meets a certain message."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        for message in messages:
            int(message.payload)
        return await super().publish(messages)


async def test_a_message_that_the_publisher_can_not_stand_is_found_and_refused_alone(log: PostgreSQLLog) -> None:
    """An exception that is neither a refusal nor an outage: the one that raises alone gets the attempt."""
    traffic = Traffic(10_000, keys=400)
    await log.add(*traffic.messages(1, 5_001))
    await log.add(Message("no number", type="test.number", key="key-1"))
    await log.add(*traffic.messages(5_001, 10_001))
    broker = Picky()
    settings = RelaySettings(max_attempts=2, max_backoff="10ms", poll_interval="1ms", max_idle_backoff="10ms")
    it = Relay(log.store, broker, settings=settings)
    running = asyncio.create_task(it.run())
    await delivered(log, dead=1)
    it.stop()
    summary = await running
    assert (summary.published, summary.refused, summary.died) == (10_000, 2, 1)
    attempts = await log.attempts()
    assert [(each.position, each.attempt) for each in attempts] == [(5_001, 1), (5_001, 2)]
    assert all("ValueError" in each.error for each in attempts)
    assert not traffic.check([int(message.payload) for message in broker.messages])
