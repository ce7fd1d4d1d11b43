"""What is NATS' own of a subscriber: one active process, takeover in order, streams, limits. On real servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nats.js.api import ConsumerConfig

from postroad import BrokerUnavailable
from postroad.brokers.base import Delivery
from postroad.brokers.nats.subscriber import NATSSubscriber
from postroad.events import CollectingTakesLong, Event, TypeSkipped
from tests.destinations import jetstream_of
from tests.nats_source import NATSSource, received, stored
from tests.services.nats import NATS

Make = Callable[..., NATSSubscriber]


@pytest.fixture
async def source(nats: NATS) -> AsyncIterator[NATSSource]:
    source = NATSSource(nats)
    yield source
    await source.subscriber.close()


@pytest.fixture
async def make(source: NATSSource) -> AsyncIterator[Make]:
    made: list[NATSSubscriber] = []

    def make(**settings: Any) -> NATSSubscriber:
        made.append(source.another(**settings))
        return made[-1]

    yield make
    for subscriber in made:
        await subscriber.close()


async def opened(subscriber: NATSSubscriber) -> NATSSubscriber:
    await subscriber.open()
    return subscriber


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


def lose(subscriber: NATSSubscriber) -> None:
    """As if the process were killed: nothing more is sent, and nothing is given back."""
    session = subscriber._session
    assert session is not None
    for task in session._tasks:
        task.cancel()
    session.connection.abort("killed")
    subscriber._session = None


# -- one active process ----------------------------------------------------------------------------------------------


async def test_another_process_takes_over_in_order(source: NATSSource, make: Make) -> None:
    """The server gives it new messages first: what the other one had comes when that counts as dead."""
    first, second = await opened(make(prefetch=50)), make(prefetch=50)
    await source.put(*(b"%d" % n for n in range(50)))
    held = await received(first, 50)
    first.ack(held[:3])
    first.ack([held[7]])
    await asyncio.sleep(0)
    await second.open()
    await source.put(*(b"%d" % n for n in range(50, 60)))
    lose(first)
    found: list[Delivery] = []
    async with asyncio.timeout(90):
        while len(found) < 56:
            found += (now := await received(second, 1))
            second.ack(now)
    assert numbers(found) == [n for n in range(60) if n not in {0, 1, 2, 7}]
    again = {int(each.body) for each in found if each.redelivered}
    assert again == set(range(54)) - {0, 1, 2, 7}, "its four acks had made room for four more"
    assert await second.waiting() == 0


async def test_a_process_that_stops_hands_over_at_once_and_in_order(source: NATSSource, make: Make) -> None:
    first, second = await opened(make(takeover_after="60s")), make(takeover_after="60s")
    await source.put(*(b"%d" % n for n in range(20)))
    held = await received(first, 20)
    await second.open()
    first.ack(held[:5])
    await first.close()
    found = await asyncio.wait_for(received(second, 15), 30)
    assert numbers(found) == list(range(5, 20))
    assert all(each.redelivered for each in found)


async def test_what_is_on_its_way_to_a_process_that_stops_is_handed_over_at_once(
    source: NATSSource, make: Make
) -> None:
    first, second = await opened(make(takeover_after="60s")), make(takeover_after="60s")
    await source.put(b"0")
    await received(first, 1)
    await second.open()

    async def put() -> None:
        await source.put(b"1", b"2")
        async with jetstream_of(source.server) as jetstream, asyncio.timeout(60):
            while (await jetstream.consumer_info(source.word, f"durable-{source.word}")).num_ack_pending != 3:  # noqa: ASYNC110 - it is the server that delivers
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(put()))
    thread.start()
    thread.join()  # while the loop is blocked, and reads nothing
    await first.close()
    assert numbers(await asyncio.wait_for(received(second, 3), 30)) == [0, 1, 2]


async def test_a_stopping_process_may_end_what_it_has_begun_before_another_gets_later_ones(
    source: NATSSource, make: Make
) -> None:
    first, second = await opened(make(takeover_after="1s")), make(takeover_after="1s")
    reported: list[Event] = []
    second.report = reported.append  # type: ignore[method-assign,assignment]
    await source.put(b"0", b"1")
    held = await received(first, 2)
    await first.pause()
    await second.open()
    await source.put(b"2")
    waiting = asyncio.create_task(received(second, 1))
    session = second._session
    assert session is not None
    async with asyncio.timeout(60):
        while not len(session._window):  # noqa: ASYNC110 - it is the server that makes it the active one
            await asyncio.sleep(0.05)
    done, _ = await asyncio.wait((waiting,), timeout=3)
    assert not done, "what the first one has begun is not over"
    async with asyncio.timeout(60):
        while not reported:  # noqa: ASYNC110 - it reports by itself
            await asyncio.sleep(0.05)
    first.ack(held)
    assert numbers(await asyncio.wait_for(waiting, 60)) == [2]
    (long,) = reported
    assert isinstance(long, CollectingTakesLong)
    assert (long.stream, long.missing) == (source.word, 2)


async def test_what_another_process_has_left_is_collected_although_it_is_more_than_may_be_held(
    source: NATSSource, make: Make
) -> None:
    """Nothing can be acked before all of it is there, so nothing would ever make room."""
    first, second = await opened(make(takeover_after="1s")), make(takeover_after="1s", max_held_bytes=200_000)
    await source.put(*(bytes([n]) * 50_000 for n in range(40)))
    await received(first, 40)
    lose(first)
    await second.open()
    found = await received(second, 40)
    assert [delivery.body[0] for delivery in found] == list(range(40))
    second.ack(found)
    await source.put(b"new")
    assert [each.body for each in await received(second, 1)] == [b"new"], "and then what comes"


async def test_a_process_that_is_not_the_active_one_any_more_notices(source: NATSSource, make: Make) -> None:
    first = await opened(make())
    await source.put(b"0")
    await received(first, 1)
    session = first._session
    assert session is not None
    await session.jetstream.unpin(source.word, f"durable-{source.word}", "postroad")
    second = await opened(make())
    await source.put(b"1")
    with pytest.raises(BrokerUnavailable, match="active one"):
        await asyncio.wait_for(received(first, 2), 60)
    await first.close()
    assert numbers(await received(second, 2)) == [0, 1]


async def test_a_process_that_becomes_active_again_first_gets_what_another_has_left(
    source: NATSSource, make: Make
) -> None:
    """It held nothing when it lost its place, as an idle process that was frozen, so its session has not ended."""
    first, second = await opened(make(takeover_after="1s")), make(takeover_after="1s")
    await source.put(b"0")
    first.ack(await received(first, 1))
    session = first._session
    assert session is not None
    session._asking = False
    await session.jetstream.unpin(source.word, f"durable-{source.word}", "postroad")
    await second.open()
    await source.put(b"1", b"2")
    assert numbers(await asyncio.wait_for(received(second, 2), 60)) == [1, 2]
    lose(second)
    session._asking = True
    session._pull()
    await source.put(b"3")
    assert numbers(await asyncio.wait_for(received(first, 3), 60)) == [1, 2, 3]


async def test_what_is_held_for_long_is_not_delivered_again(source: NATSSource, make: Make) -> None:
    subscriber = await opened(make(takeover_after="1s"))
    await source.put(b"0")
    (held,) = await received(subscriber, 1)
    session = subscriber._session
    assert session is not None
    await asyncio.sleep(2.5)  # the server would deliver it again after one second
    info = await session.info()
    assert (info.num_ack_pending, held.original.place.deliveries) == (1, 1)
    await source.put(b"1")
    (new,) = await received(subscriber, 1)
    assert new.body == b"1"
    assert new.original.place.number == 2
    subscriber.ack([held, new])
    await subscriber.close()
    assert await source.left() == []


async def test_without_order_processes_share_the_messages(source: NATSSource, make: Make) -> None:
    first, second = await opened(make(in_order=False, prefetch=5)), await opened(make(in_order=False, prefetch=5))
    await source.put(*(b"%d" % n for n in range(10)))
    both = await received(first, 5) + await received(second, 5)
    assert sorted(numbers(both)) == list(range(10))


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_no_more_than_prefetch_is_open_and_acks_make_room(source: NATSSource, make: Make) -> None:
    subscriber = await opened(make(prefetch=3))
    await source.put(*(b"%d" % n for n in range(7)))
    found = await received(subscriber, 3)
    session = subscriber._session
    assert session is not None
    assert (await session.info()).num_ack_pending == 3
    assert len(found) == 3
    subscriber.ack(found[1:2])
    found += await received(subscriber, 1)
    while len(found) < 7:
        subscriber.ack(found)
        found += await received(subscriber, 1)
    assert numbers(found) == list(range(7))


async def test_nothing_more_is_asked_for_while_too_many_bytes_are_held(source: NATSSource, make: Make) -> None:
    subscriber = await opened(make(max_held_bytes=200_000))
    await source.put(*(bytes([n]) * 50_000 for n in range(40)))
    found: list[int] = []
    async with asyncio.timeout(90):
        while len(found) < 40:
            now = await received(subscriber, 1)
            assert len(now) <= 22, "about as much as the largest message"
            found += [delivery.body[0] for delivery in now]
            subscriber.ack(now)
    assert found == list(range(40))


# -- streams and consumers -------------------------------------------------------------------------------------------


async def test_the_stream_is_found_by_the_subject(source: NATSSource, make: Make) -> None:
    with pytest.raises(BrokerUnavailable, match="no stream takes"):
        await make(stream=None).open()
    async with jetstream_of(source.server) as jetstream:
        await jetstream.add_stream(name=source.word, subjects=[f"{source.word}.>"])
    subscriber = await opened(make(stream=None))
    await source.put(b"0")
    assert numbers(await received(subscriber, 1)) == [0]


async def test_what_is_checked(source: NATSSource, make: Make) -> None:
    with pytest.raises(BrokerUnavailable, match="there is no stream"):
        await make(declare="check").open()
    async with jetstream_of(source.server) as jetstream:
        await jetstream.add_stream(name=source.word, subjects=[f"{source.word}.>"])
        with pytest.raises(BrokerUnavailable, match="has no consumer"):
            await make(declare="check").open()
        for name, config, wrong in (
            ("a", ConsumerConfig(max_deliver=3), "max_deliver 3"),
            ("b", ConsumerConfig(), "pinned_client"),
        ):
            await jetstream.add_consumer(source.word, config, durable_name=name)
            with pytest.raises(BrokerUnavailable, match=wrong):
                await make(declare="check", durable=name).open()
    await opened(make(in_order=False, durable="b", dead_letter_subject=f"{source.word}.dead"))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_batch": 1}, "MaxRequestBatch of 1"),
        ({"max_bytes": 1000}, "MaxBytes of 1000"),
        ({"max_expires": 1_000_000}, "1ms"),
    ],
)
async def test_a_consumer_that_refuses_requests_is_an_outage_with_the_reason(
    source: NATSSource, make: Make, limit: dict[str, int], words: str
) -> None:
    """A session would ask again and again, thousands of times per second, and never get anything."""
    subscriber = await opened(make())
    session = subscriber._session
    assert session is not None
    config = (await session.info()).config
    await session.jetstream.create_consumer(source.word, config | limit)
    await subscriber.open()
    await source.put(b"0")
    with pytest.raises(BrokerUnavailable, match=f"refuses to deliver: Exceeded .*{words}"):
        await asyncio.wait_for(received(subscriber, 1), 60)


async def test_a_consumer_that_pins_no_process_is_not_received_from(source: NATSSource, make: Make) -> None:
    """Also if it was not to be checked: two processes would share the messages of a key."""
    await (await opened(make())).close()
    async with jetstream_of(source.server) as jetstream:
        await jetstream.add_consumer(source.word, ConsumerConfig(durable_name="plain"))
    await source.put(b"0")
    subscriber = await opened(make(durable="plain", declare="no"))
    with pytest.raises(BrokerUnavailable, match="pinned_client"):
        await asyncio.wait_for(received(subscriber, 1), 60)


async def test_a_new_consumer_can_begin_behind_the_last_message(source: NATSSource, make: Make) -> None:
    async with jetstream_of(source.server) as jetstream:
        await jetstream.add_stream(name=source.word, subjects=[f"{source.word}.>"])
    await source.put(b"0")
    subscriber = await opened(make(start="new"))
    await source.put(b"1")
    assert numbers(await received(subscriber, 1)) == [1]
    await subscriber.close()
    again = await opened(make(start="first", prefetch=7))  # it goes on where it was, with another prefetch
    assert numbers(await received(again, 1)) == [1]


async def test_a_consumer_that_is_deleted_ends_the_session(source: NATSSource, make: Make) -> None:
    subscriber = await opened(make(takeover_after="3s"))
    waiting = asyncio.create_task(received(subscriber, 1))
    async with jetstream_of(source.server) as jetstream:
        await jetstream.delete_consumer(source.word, f"durable-{source.word}")
    with pytest.raises(BrokerUnavailable, match="gone|not found"):
        await asyncio.wait_for(waiting, 60)
    await subscriber.open()  # which makes it again


async def test_a_dead_letter_without_a_stream_is_not_lost(source: NATSSource, make: Make) -> None:
    subscriber = await opened(make())
    await source.put(b"0")
    (bad,) = await received(subscriber, 1)
    async with jetstream_of(source.server) as jetstream:
        await jetstream.delete_stream(f"durable-{source.word}-dead")
        with pytest.raises(BrokerUnavailable, match="the dead-letter subject .* no stream takes it"):
            await subscriber.dead_letter(bad, {})
        await jetstream.add_stream(name=f"{source.word}-d", subjects=[f"dead.durable-{source.word}"])
        for _ in range(2):
            await subscriber.dead_letter(bad, {"postroad-reason": "ü"})
        ((body, headers),) = await stored(source.server, f"{source.word}-d")
        assert (body, headers["postroad-reason"], headers["postroad-deliveries"]) == (b"0", "%C3%BC", "1")


async def test_headers_that_are_no_text_do_not_end_the_session(source: NATSSource, make: Make) -> None:
    """Also of the first message, of which the session reads who is the active process."""
    subscriber = await opened(make())
    session = subscriber._session
    assert session is not None
    await session.connection.request(source.subject, b"0", b"NATS/1.0\r\nname: \xff\r\n\r\n")
    (delivery,) = await received(subscriber, 1)
    assert (delivery.body, delivery.unreadable is None) == (b"0", False)
    assert session.pin


async def test_what_breaks_a_session_is_an_outage_and_no_silence(
    source: NATSSource, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would tell the consumer that its session hands nothing out any more."""

    def broken(*_: object, **__: object) -> Delivery:
        raise RuntimeError("a mistake in delivery_of")

    monkeypatch.setattr("postroad.brokers.nats.session.delivery_of", broken)
    subscriber = await opened(make())
    await source.put(b"0")
    with pytest.raises(BrokerUnavailable, match="RuntimeError: a mistake"):
        await asyncio.wait_for(received(subscriber, 1), 60)


async def test_types_without_a_handler_are_skipped_and_reported_once(source: NATSSource, make: Make) -> None:
    subscriber = make(types=("mine",))
    reported: list[Event] = []
    subscriber.report = reported.append  # type: ignore[method-assign,assignment]
    await subscriber.open()
    async with jetstream_of(source.server) as jetstream:
        for type in ("other", "other", "mine", "other"):
            headers = {"ce-id": "1", "ce-source": "/s", "ce-type": type}
            await jetstream.publish(source.subject, type.encode(), headers=headers)
    (delivery,) = await received(subscriber, 1)
    assert delivery.body == b"mine"
    subscriber.ack([delivery])
    await subscriber.close()
    assert await source.left() == []
    assert [event.message_type for event in reported if isinstance(event, TypeSkipped)] == ["other"]
