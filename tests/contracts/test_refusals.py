"""When a message is refused, through the relay's public interface: attempts, backoff, death, order per key, routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroad import BrokerUnavailable, Refusal, StoredMessage
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.relay import Relay, Summary
from postroad.relay.publishing import SUSPECTED_AFTER
from postroad.retry import Backoff, RetryPolicy
from postroad.stores.memory import MemoryStore
from tests.clocks import FastClock
from tests.logs import Arrivals, Log, MemoryLog, log_fixture, numbered

AT_ONCE = Backoff(first=timedelta(0))
LATER = Backoff(first=timedelta(hours=1), max_backoff=timedelta(hours=1))


log = log_fixture("memory", "sqlite", "postgresql15")


def relay(log: Log, publisher: Any, *, retry: RetryPolicy = AT_ONCE, clock: Any = None, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 1, "batch_size": 10, "grace": "5s", "poll_interval": "1ms"}
    return Relay(log.store, publisher, settings=RelaySettings(**(defaults | settings)), retry=retry, clock=clock)


async def run_relay(log: Log, publisher: Any, **arguments: Any) -> Summary:
    async with asyncio.timeout(120):
        return await relay(log, publisher, **arguments).run_until_empty()


def refusing(*numbers: int, permanent: bool = False) -> Arrivals:
    broker = Arrivals()

    def reason_for(message: StoredMessage) -> Refusal | None:
        wanted = int(message.payload) in numbers
        return Refusal(message.position, f"no {int(message.payload)}", permanent) if wanted else None

    broker.refuse(reason_for)
    return broker


def mend(broker: MemoryBroker) -> None:
    broker.refuse(lambda _: None)


class Counting:
    """A policy that notes what it was asked, and asks another."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.asked: list[tuple[int, str]] = []
        self._policy = policy

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        self.asked.append((attempts, refusal.reason))
        return self._policy.retry_in(attempts, refusal)


# -- attempts, backoff, death (the tests that were asked for by name) ------------------------------------------------


async def test_attempts_are_counted(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    policy = Counting(AT_ONCE)
    summary = await run_relay(log, broker := refusing(2), retry=policy)
    assert policy.asked == [(attempt, "no 2") for attempt in range(1, 6)]
    assert (summary.published, summary.refused, summary.died) == (2, 5, 1)
    assert sorted(broker.numbers) == [1, 3]


async def test_attempts_survive_a_restart(log: Log) -> None:
    await log.add(*numbered(1))
    policy = Counting(Backoff(first=timedelta(milliseconds=1), max_attempts=3))
    broker = refusing(1)
    died = 0
    async with asyncio.timeout(60):
        while not died:
            died += (await run_relay(log, broker, retry=policy)).died
    assert [attempts for attempts, _ in policy.asked] == [1, 2, 3]


async def test_a_failing_message_is_retried_with_backoff() -> None:
    """With the real policy and a clock in the test's hand: it goes again after 2, 4 and 8 seconds, and not before."""
    now = 1_000_000.0
    log = MemoryLog()
    log.store = MemoryStore(clock=lambda: now)
    tried = 0

    def count(message: StoredMessage) -> str | None:
        nonlocal tried
        tried += 1
        return "not yet" if tried < 4 else None

    broker = Arrivals()
    broker.refuse(count)
    await log.add(*numbered(1))
    for attempt, pause in enumerate((2, 4, 8), 1):
        await run_relay(log, broker, retry=Backoff(jitter=0))
        assert tried == attempt
        now += pause - 0.001
        await run_relay(log, broker)
        assert tried == attempt, "not before it is due"
        now += 0.001
    await run_relay(log, broker)
    assert broker.numbers == [1]


async def test_it_is_not_tried_before_it_is_due(log: Log) -> None:
    await log.add(*numbered(1, 2))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER)
    mend(broker)
    await run_relay(log, broker)
    assert broker.numbers == [2]


async def test_poisoned_at_max_and_then_not_retried(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    await log.add(*numbered(1))
    broker = refusing(1)
    assert (await run_relay(log, broker)).died == 1
    assert (
        "is dead after 5 attempts: no 1; it stays in the log until an operator retries, drops or skips it"
        in caplog.text
    )
    mend(broker)
    assert (await run_relay(log, broker)).published == 0
    assert broker.numbers == []


async def test_a_permanent_refusal_is_dead_at_once(log: Log) -> None:
    await log.add(*numbered(1, 2))
    broker = refusing(1, permanent=True)
    summary = await run_relay(log, broker, retry=LATER)
    assert (summary.published, summary.refused, summary.died) == (1, 1, 1)


async def test_what_the_settings_say_about_attempts(log: Log) -> None:
    await log.add(*numbered(1))
    settings = RelaySettings(lanes=1, max_attempts=2, max_backoff="1ms", poll_interval="1ms", max_idle_backoff="1ms")
    it = Relay(log.store, broker := Arrivals(), settings=settings)
    tried = 0
    dead = asyncio.Event()

    def count(message: StoredMessage) -> str | None:
        nonlocal tried
        if message.payload == b"2":
            dead.set()
            return None
        tried += 1
        return "no"

    broker.refuse(count)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        while tried < 2:
            broker.asked.clear()
            await broker.asked.wait()
    await log.add(*numbered(2))
    await asyncio.wait_for(dead.wait(), 60)
    it.stop()
    assert (await running).died == 1
    assert tried == 2


# -- one message is at fault, and it is not known which --------------------------------------------------------------


async def test_a_handler_that_raises_has_refused(log: Log) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ValueError("bad order")

    await log.add(*numbered(1))
    policy = Counting(LATER)
    await run_relay(log, LocalPublisher(handle), retry=policy)
    assert policy.asked == [(1, "ValueError: bad order")]


async def test_a_handler_whose_own_task_was_cancelled_has_refused(log: Log) -> None:
    """A CancelledError that was not meant for this lane must not end it in silence."""

    async def handle(message: StoredMessage) -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task

    await log.add(*numbered(1))
    policy = Counting(LATER)
    summary = await run_relay(log, LocalPublisher(handle), retry=policy)
    assert (summary.published, summary.refused) == (0, 1)
    assert "CancelledError" in policy.asked[0][1]


async def test_a_publisher_that_cancelled_its_own_task_spoils_no_later_page(log: Log) -> None:
    """As timeouts do of libraries that are older than `Task.uncancel`."""

    class Old(MemoryBroker):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            if messages[0].payload == b"1":
                current = asyncio.current_task()
                assert current is not None
                current.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
            if messages[0].payload == b"2":
                task = asyncio.create_task(asyncio.sleep(60))
                await asyncio.sleep(0)
                task.cancel()
                await task
            return await super().publish(messages)

    await log.add(*numbered(1, 2, 3))
    async with asyncio.timeout(30):
        summary = await run_relay(log, Old(), retry=LATER, batch_size=1)
    assert (summary.published, summary.refused) == (2, 1)


async def test_a_publisher_that_returns_none_has_refused_none(log: Log) -> None:
    class Careless(MemoryBroker):
        async def publish(self, messages: Sequence[StoredMessage]) -> Any:
            await super().publish(messages)

    await log.add(*numbered(1, 2))
    assert (await run_relay(log, Careless())).published == 2


class Bomb(Arrivals):
    """A broker that fails whenever these messages are among those that it is given."""

    def __init__(self, error: Exception, *numbers: int) -> None:
        super().__init__()
        self._error = error
        self.armed = set(numbers)

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        if self.armed & {int(message.payload) for message in messages}:
            self.asked.set()
            raise self._error
        return await super().publish(messages)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("oh"), "the publisher failed: ZeroDivisionError('oh')"),
        (BrokerUnavailable("reset by peer"), "it breaks the connection: reset by peer"),
    ],
)
async def test_the_one_that_fails_alone_gets_the_attempt(log: Log, error: Exception, reason: str) -> None:
    await log.add(*numbered(*range(10)))
    policy = Counting(LATER)
    broker = Bomb(error, 3, 7)
    summary = await run_relay(log, broker, retry=policy, outage_backoff="1ms")
    assert sorted(broker.numbers) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert policy.asked == [(1, reason), (1, reason)]
    assert (summary.published, summary.refused) == (8, 2)


async def test_a_message_is_not_at_fault_while_the_broker_stays_away(log: Log) -> None:
    """Its call breaks the connection so often that it is suspected; but then the broker is gone without it, too."""

    class Going(Bomb):
        calls = 0

        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            self.calls += 1
            if self.calls == SUSPECTED_AFTER:
                self.go_out()
            return await super().publish(messages)

        async def open(self) -> None:
            if self._out:
                gone.set()
            await super().open()

    await log.add(*numbered(1))
    gone = asyncio.Event()
    broker = Going(BrokerUnavailable("reset by peer"), 1)
    running = asyncio.create_task((it := relay(log, broker, retry=LATER, outage_backoff="1ms")).run())
    await asyncio.wait_for(gone.wait(), 30)
    it.stop()
    assert (await running).refused == 0
    broker.come_back()
    broker.armed.clear()
    assert (await run_relay(log, broker)).published == 1


async def test_an_outage_that_no_message_can_have_caused_is_only_an_outage(log: Log) -> None:
    await log.add(*numbered(1))
    broker = Bomb(BrokerUnavailable("no confirm in time", suspicious=False), 1)
    it = relay(log, broker, outage_backoff="1ms")
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        for _ in range(20):
            broker.asked.clear()
            await broker.asked.wait()
    broker.armed.clear()
    await broker.until(1)
    it.stop()
    assert (await running).refused == 0


# -- order per key ---------------------------------------------------------------------------------------------------


async def test_followers_wait_and_leave_in_order_and_others_go_on(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"), *numbered(4, 5, 6, key="b"), *numbered(7))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER, batch_size=2)
    assert sorted(broker.numbers) == [4, 5, 6, 7]
    await log.add(*numbered(8, key="a"), *numbered(9, key="b"))
    await run_relay(log, broker)
    assert sorted(broker.numbers) == [4, 5, 6, 7, 9], "the head is not due, so no message of its key goes"


async def test_when_the_head_goes_the_followers_go(log: Log) -> None:
    await log.add(*numbered(*range(1, 30), key="a"))
    broker = Arrivals()
    calls = 0

    def first_twice(message: StoredMessage) -> str | None:
        nonlocal calls
        calls += message.payload == b"1"
        return "no" if message.payload == b"1" and calls < 3 else None

    broker.refuse(first_twice)
    await run_relay(log, broker, batch_size=3)
    assert broker.numbers == list(range(1, 30))


async def test_when_the_head_dies_the_followers_go_on(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"))
    broker = refusing(1)
    assert (await run_relay(log, broker)).died == 1
    assert broker.numbers == [2, 3]


async def test_on_dead_hold_the_followers_stay(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"), *numbered(4))
    broker = refusing(1)
    assert (await run_relay(log, broker, on_dead="hold")).died == 1
    await log.add(*numbered(5, key="a"))
    await run_relay(log, broker, on_dead="hold")
    assert broker.numbers == [4]


async def test_without_ordering_no_message_waits(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, key="a"))
    broker = refusing(1)
    await run_relay(log, broker, retry=LATER, ordering="none")
    assert broker.numbers == [2, 3]


async def test_stopped_while_sending_and_sent_by_the_next(log: Log) -> None:
    """The grace ends between the claim and the confirm: the next owner finds the message being sent, and sends it."""
    await log.add(*numbered(1, 2, key="a"))
    broker = refusing(1)
    await run_relay(log, broker, retry=Backoff(first=timedelta(milliseconds=1), max_attempts=1000), max_attempts=1000)
    mend(broker)
    broker.hold()
    broker.asked.clear()
    running = asyncio.create_task((it := relay(log, broker, grace="1ms")).run())
    await asyncio.wait_for(broker.asked.wait(), 60)
    it.stop()
    await running
    broker.release()
    await run_relay(log, broker)
    assert broker.numbers == [1, 2]


# -- routes ----------------------------------------------------------------------------------------------------------


async def test_a_route_that_is_out_costs_no_attempts_and_stops_no_other(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="postroad")
    await log.add(*numbered(1, 2, 3, topic="a"), *numbered(4, 5, topic="b"))
    broker = Arrivals()
    broker.unbind("a")
    policy = Counting(AT_ONCE)
    it = relay(log, broker, retry=policy, outage_backoff="1ms", max_idle_backoff="1ms")
    running = asyncio.create_task(it.run())
    await broker.until(4, 5)
    await log.add(*numbered(6, topic="a"), *numbered(7, topic="b"))
    await broker.until(7)
    assert sorted(broker.numbers) == [4, 5, 7]
    broker.bind("a")
    await broker.until(1, 2, 3, 6)
    it.stop()
    await running
    assert policy.asked == []
    assert sorted(broker.numbers) == [1, 2, 3, 4, 5, 6, 7], "and nothing came twice"
    assert caplog.text.count("the route a is blocked: no queue is bound to 'a'") == 1, "once, however often it is tried"
    assert "the route a works again" in caplog.text


async def test_a_keys_order_holds_across_topics_when_one_is_out(log: Log) -> None:
    await log.add(*numbered(1, key="k", topic="a"), *numbered(2, key="k", topic="b"), *numbered(3, topic="b"))
    broker = Arrivals()
    broker.unbind("a")
    await run_relay(log, broker, outage_backoff="1h")
    assert broker.numbers == [3]
    broker.bind("a")
    await run_relay(log, broker)
    assert broker.numbers == [3, 1, 2]


async def test_a_route_is_still_out_after_a_restart_and_then_works(log: Log) -> None:
    await log.add(*numbered(*range(30), topic="a"))
    broker = Arrivals()
    broker.unbind("a")
    for _ in range(3):
        assert (await run_relay(log, broker, lanes=2, batch_size=4)).published == 0
    broker.bind("a")
    assert (await run_relay(log, broker, lanes=2, batch_size=4)).published == 30
    assert sorted(broker.numbers) == list(range(30))


async def test_ten_minutes_without_a_binding() -> None:
    clock = FastClock(limit=600)
    log = MemoryLog()
    log.store = MemoryStore(clock=clock.now)
    await log.add(*numbered(1, 2, key="k", topic="a"), *numbered(3, topic="b"))
    broker = Arrivals()
    broker.unbind("a")
    it = relay(log, broker, retry=(policy := Counting(Backoff())), clock=clock)
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(clock.over.wait(), 60)
    assert (broker.numbers, policy.asked) == ([3], [])
    broker.bind("a")
    clock.limit = float("inf")
    await log.add(*numbered(4, topic="b"))
    it.stop()
    await running
    await run_relay(log, broker, clock=clock)
    assert broker.numbers in ([3, 1, 2, 4], [3, 4, 1, 2], [3, 1, 4, 2])


# -- destinations that say when to ask again ---------------------------------------------------------------------------


class Clocked(Arrivals):
    """Notes at which second each number was offered."""

    def __init__(self, clock: FastClock) -> None:
        super().__init__()
        self._clock = clock
        self.offered: list[tuple[int, int]] = []

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        second = round(self._clock.time - 1_000_000)
        self.offered += [(int(message.payload), second) for message in messages]
        return await super().publish(messages)


async def clocked(
    clock: FastClock, refused: Any, *numbers: int, **settings: Any
) -> tuple[Clocked, asyncio.Task[Summary], Relay]:
    log = MemoryLog()
    log.store = MemoryStore(clock=clock.now)
    await log.add(*(numbered(number, topic="a" if number < 10 else "b")[0] for number in numbers))
    broker = Clocked(clock)
    broker.refuse(refused)
    it = relay(log, broker, retry=Backoff(first=timedelta(seconds=10), jitter=0), clock=clock, **settings)
    return broker, asyncio.create_task(it.run()), it


async def test_a_refused_message_is_not_offered_before_the_destination_wants_it() -> None:
    clock = FastClock(limit=4 * 3600)

    def refused(message: StoredMessage) -> Refusal | None:
        return Refusal(message.position, "busy", retry_in=3600.0) if len(broker.offered) < 3 else None

    broker, running, it = await clocked(clock, refused, 1)
    await broker.until(1)
    it.stop()
    await running
    first, second, third = (second for _, second in broker.offered)
    assert second - first >= 3600
    assert third - second >= 3600


async def test_a_route_is_probed_hours_apart_and_its_messages_expire() -> None:
    """The endpoint is down for days. Others go on, and it is asked no more than it wants to be."""
    clock = FastClock(limit=30 * 3600)

    def refused(message: StoredMessage) -> Refusal | None:
        return Refusal(message.position, "down", route="a", retry_in=4 * 3600.0) if message.topic == "a" else None

    rarely = {"poll_interval": "10m", "max_idle_backoff": "10m"}
    broker, running, it = await clocked(clock, refused, 1, 2, 10, route_timeout="24h", **rarely)
    await asyncio.wait_for(clock.over.wait(), 60)
    clock.limit = float("inf")
    it.stop()
    summary = await running
    probes = sorted(second for number, second in broker.offered if number < 10 and second > 60)
    assert 5 <= len(probes) <= 9, "every four hours by one message, and at the end by the other one too"
    assert (broker.numbers, summary.died) == ([10], 2)


# -- outages ---------------------------------------------------------------------------------------------------------


async def test_a_day_without_a_broker_counts_nothing_and_loses_nothing() -> None:
    clock = FastClock(limit=24 * 3600)
    log = MemoryLog()
    log.store = MemoryStore(clock=clock.now)
    await log.add(*numbered(*range(50), key="k"))
    broker = Arrivals()
    broker.go_out()
    it = relay(
        log, broker, retry=(policy := Counting(Backoff())), clock=clock, lanes=4,
        outage_backoff="1m", poll_interval="1m", max_idle_backoff="1m",
    )  # fmt: skip
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(clock.over.wait(), 600)
    broker.come_back()
    clock.limit = float("inf")
    it.stop()
    assert (await running).published == 0
    assert (await run_relay(log, broker, clock=clock, lanes=4)).published == 50
    assert (broker.numbers, policy.asked) == (list(range(50)), [])


class Door(Arrivals):
    """Counts who knocks, and who came in."""

    def __init__(self) -> None:
        super().__init__()
        self.knocks = 0
        self.calls = 0
        self._knocked = asyncio.Event()

    async def open(self) -> None:
        self.knocks += 1
        self._knocked.set()
        await super().open()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        self.calls += 1
        return await super().publish(messages)

    async def until_knocked(self, times: int) -> None:
        async with asyncio.timeout(60):
            while self.knocks < times:
                self._knocked.clear()
                await self._knocked.wait()


async def test_while_the_broker_is_out_only_one_asks_and_sends_nothing(log: Log) -> None:
    await log.add(*numbered(*range(40)))
    broker = Door()
    it = relay(log, broker, lanes=4, outage_backoff="1ms")
    broker.go_out()
    running = asyncio.create_task(it.run())
    await broker.until_knocked(20)
    calls = broker.calls
    await broker.until_knocked(broker.knocks + 20)
    assert broker.calls == calls, "no message is sent as long as the probe fails"
    broker.come_back()
    await broker.until(*range(40))
    it.stop()
    assert (await running).refused == 0


async def test_what_was_refused_before_an_outage_is_not_passed_when_stopped_in_it(log: Log) -> None:
    class GoesOut(Arrivals):
        out: asyncio.Event

        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            try:
                return await super().publish(messages)
            except BrokerUnavailable:
                self.go_out()
                self.out.set()
                raise

    await log.add(*numbered(1, 2, 3))
    broker = GoesOut()
    broker.out = asyncio.Event()
    broker.refuse(lambda message: "no" if message.payload == b"1" else None)
    broker.fail_after(2)
    running = asyncio.create_task((it := relay(log, broker)).run())
    await asyncio.wait_for(broker.out.wait(), 60)
    it.stop()
    await running
    broker.come_back()
    mend(broker)
    await run_relay(log, broker)
    assert set(broker.numbers) == {1, 2, 3}


async def test_stopping_while_the_broker_goes_out_ends_and_counts_nothing(log: Log) -> None:
    """A publisher that fails at once, without ever waiting for anything, must not keep the loop to itself."""

    class Gone(Arrivals):
        async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
            if not self._out:
                return await super().publish(messages)
            raise BrokerUnavailable("an alarm")

    await log.add(*numbered(1))
    broker = Gone()
    broker.hold()
    running = asyncio.create_task((it := relay(log, broker, retry=(policy := Counting(LATER)))).run())
    await asyncio.wait_for(broker.asked.wait(), 60)
    broker.go_out()
    it.stop()
    broker.release()
    assert (await asyncio.wait_for(running, 60)).refused == 0
    assert policy.asked == []


async def test_null_never_refuses(log: Log) -> None:
    await log.add(*numbered(1))
    assert (await run_relay(log, NullPublisher())).refused == 0
