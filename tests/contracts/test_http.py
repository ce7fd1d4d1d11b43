"""Webhooks: what each answer of a real HTTP server means, and servers that answer in every wrong way."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.v1.http import from_http, from_json
from standardwebhooks.webhooks import Webhook

from postroad import BrokerUnavailable, InvalidSetting, Message, Refusal, RelaySettings, StoredMessage
from postroad.brokers.http.publisher import HTTPPublisher
from postroad.brokers.http.settings import PublisherSettings
from postroad.brokers.registry import publisher_for
from postroad.relay import Relay
from tests.destinations import a_page, stored
from tests.logs import MemoryLog
from tests.polling import until
from tests.services.http import NO_CONTENT, Answer, HTTPServer, Request, raw, status
from tests.services.kafka import make_certificates

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OTHER_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOCAL: dict[str, Any] = {"allow_plaintext": True, "allow_networks": ["127.0.0.0/8", "::1"]}

Maker = Callable[..., HTTPPublisher]


@pytest.fixture
async def server() -> AsyncIterator[HTTPServer]:
    async with HTTPServer() as server:
        yield server


@pytest.fixture
async def publisher_to() -> AsyncIterator[Maker]:
    made: list[HTTPPublisher] = []

    def make(url: str, **settings: Any) -> HTTPPublisher:
        made.append(HTTPPublisher(url, PublisherSettings(**LOCAL | settings)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def outage_of(publisher: HTTPPublisher, messages: Sequence[StoredMessage]) -> BrokerUnavailable:
    with pytest.raises(BrokerUnavailable) as outage:
        await publisher.publish(messages)
    assert not outage.value.suspicious
    return outage.value


# -- the table of docs/webhooks.md -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [200, 201, 202, 204, 206, 299])
async def test_2xx_confirms(server: HTTPServer, publisher_to: Maker, code: int) -> None:
    server.answer = status(code)
    assert not await publisher_to(f"{server.url}/hooks").publish(a_page(3))


@pytest.mark.parametrize("code", [400, 402, 406, 409, 411, 415, 418, 422, 423, 431, 451])
async def test_other_4xx_refuses_the_message(server: HTTPServer, publisher_to: Maker, code: int) -> None:
    server.answer = status(code, "your order is wrong")
    (refusal,) = await publisher_to(f"{server.url}/hooks").publish([stored(7)])
    assert refusal == Refusal(7, f"it answered {code}: your order is wrong")


async def test_413_is_permanent(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(413)
    (refusal,) = await publisher_to(f"{server.url}/hooks").publish([stored(7)])
    assert refusal.permanent


UNAVAILABLE = [401, 403, 407, 408, 425, 502, 503, 504, 520, 527]
FAILING = [301, 302, 307, 308, 401, 403, 404, 405, 407, 408, 425, 500, 501, 502, 503, 504, 507, 520, 527, 599]


@pytest.mark.parametrize("code", FAILING)
async def test_what_may_be_the_endpoints_fault_is_an_outage(server: HTTPServer, publisher_to: Maker, code: int) -> None:
    server.answer = status(code)
    publisher = publisher_to(f"{server.url}/hooks", concurrency=3)
    outage = await outage_of(publisher, a_page(50))
    assert (outage.confirmed, outage.refusals) == (frozenset(), ())
    assert f"it answered {code}" in str(outage)
    assert len(server.requests) <= 3, "what was under way when the first failed"
    server.requests.clear()
    await outage_of(publisher, a_page(50))
    assert len(server.requests) == 1, "from then on, one at a time"
    server.answer = raw(NO_CONTENT)
    assert not await publisher.publish(a_page(50))


@pytest.mark.parametrize("code", sorted({*FAILING} - {*UNAVAILABLE}))
async def test_an_endpoint_that_takes_others_refuses_the_message(
    server: HTTPServer, publisher_to: Maker, code: int
) -> None:
    poisoned = a_page(20)[6].id

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await (status(code) if request.ids == [poisoned] else raw(NO_CONTENT))(request, writer)

    server.answer = answer
    page = a_page(20)
    page[6] = msgspec.structs.replace(page[6], id=poisoned)
    (refusal,) = await publisher_to(f"{server.url}/hooks", concurrency=4).publish(page)
    assert (refusal.position, refusal.permanent, refusal.route) == (7, False, None)
    assert len(server.arrived) == 19


async def cut(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def for_messages(unwanted: Collection[UUID], answer: Answer) -> Answer:
    """Answers so when one of these messages is in the request, and takes the others."""

    async def choose(request: Request, writer: asyncio.StreamWriter) -> None:
        await (raw(NO_CONTENT) if set(request.ids).isdisjoint(unwanted) else answer)(request, writer)

    return choose


@pytest.mark.parametrize("answer", [*map(status, UNAVAILABLE), cut], ids=[*map(str, UNAVAILABLE), "cut"])
async def test_while_a_part_of_the_endpoint_is_down_no_attempt_is_counted(
    server: HTTPServer, publisher_to: Maker, answer: Answer
) -> None:
    """As behind a load balancer: two messages fail again and again, while very many others are taken."""
    page = a_page(40)
    unlucky = {page[6].id, page[7].id}
    server.answer = for_messages(unlucky, answer)
    publisher = publisher_to(f"{server.url}/hooks", concurrency=4)
    for first in range(100, 1000, 50):
        for refusal in await publisher.publish([page[6], page[7], *a_page(40, first)]):
            assert refusal.route == f"{server.url}/hooks (message {page[refusal.position - 1].id})"
    server.answer = raw(NO_CONTENT)
    assert not await publisher.publish(page[6:8])


async def test_a_message_that_alone_finds_nothing_available_is_refused_after_several_others_were_taken(
    server: HTTPServer, publisher_to: Maker
) -> None:
    """Its attempts are at least a minute apart."""
    bad = stored(1)
    server.answer = for_messages({bad.id}, status(503))
    publisher = publisher_to(f"{server.url}/hooks", concurrency=4)
    (aside,) = await publisher.publish([bad, *a_page(30, 100)])
    assert aside.route is not None
    for _ in range(3):
        (aside,) = await publisher.publish([*a_page(5, 200), bad])
        assert aside.route is not None
        (counted,) = await publisher.publish([*a_page(5, 300), bad])
        assert (counted.position, counted.route, counted.permanent) == (1, None, False)
        assert 60 <= (counted.retry_in or 0) <= 600


async def test_of_a_batch_only_the_message_that_finds_nothing_available_waits(
    server: HTTPServer, publisher_to: Maker
) -> None:
    page = a_page(20)
    server.answer = for_messages({page[6].id}, status(502))
    publisher = publisher_to(f"{server.url}/hooks", envelope="batched", batch_messages=10)
    (aside,) = await publisher.publish(page)
    assert (aside.position, aside.route) == (7, f"{server.url}/hooks (message {page[6].id})")
    assert len(server.arrived) == 19


async def test_a_message_that_fails_alone_is_refused_once_others_were_taken(
    server: HTTPServer, publisher_to: Maker
) -> None:
    """However little traffic there is: it is set aside, the next one is taken, and from then on its attempts count."""
    bad = stored(1)

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await (status(500) if request.ids == [bad.id] else raw(NO_CONTENT))(request, writer)

    server.answer = answer
    publisher = publisher_to(f"{server.url}/hooks")
    assert (await outage_of(publisher, [bad])).refusals == ()
    assert (await outage_of(publisher, [bad])).refusals == ()
    (set_aside,) = (await outage_of(publisher, [bad])).refusals
    assert set_aside.route == f"{server.url}/hooks"
    assert not await publisher.publish([stored(2)])
    for _ in range(3):
        (counted,) = await publisher.publish([bad])
        assert (counted.position, counted.route) == (1, None)
        assert not await publisher.publish([stored(3)])


async def test_in_an_outage_of_the_endpoint_no_attempt_is_ever_counted(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(500)
    publisher = publisher_to(f"{server.url}/hooks")
    for _ in range(20):
        outage = await outage_of(publisher, a_page(3))
        assert all(refusal.route is not None for refusal in outage.refusals)


async def test_410_stops_the_sink(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(410)
    publisher = publisher_to(f"{server.url}/hooks")
    outage = await outage_of(publisher, a_page(1))
    assert "410" in str(outage)
    assert "wants nothing any more" in str(outage)
    server.answer = raw(NO_CONTENT)
    with pytest.raises(BrokerUnavailable, match="wants nothing any more"):
        await publisher.open()
    await outage_of(publisher, a_page(5))
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [429, 503, 502, 403, 307])
async def test_retry_after_is_obeyed(server: HTTPServer, publisher_to: Maker, code: int) -> None:
    server.answer = status(code, retry_after="100")
    publisher = publisher_to(f"{server.url}/hooks", concurrency=2)
    outage = await outage_of(publisher, a_page(10))
    assert (outage.confirmed, outage.refusals) == (frozenset(), ())
    asked = len(server.requests)
    assert asked <= 2
    server.answer = raw(NO_CONTENT)
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match=r"asks to wait (100|9\d) s more \(Retry-After\)"):
            await publisher.open()
        await outage_of(publisher, a_page(10))
    assert len(server.requests) == asked, "nothing was sent meanwhile"


async def test_after_the_wait_it_is_tried_with_one(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(429, retry_after="1")
    publisher = publisher_to(f"{server.url}/hooks")
    await outage_of(publisher, a_page(1))
    server.answer = status(429, retry_after="0")
    async with asyncio.timeout(60):
        while len(server.requests) < 2:
            await outage_of(publisher, a_page(10))
            await asyncio.sleep(0.05)
    assert len(server.requests) == 2
    server.answer = raw(NO_CONTENT)
    assert not await publisher.publish(a_page(10))


async def test_429_without_retry_after_counts_nothing(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(429)
    publisher = publisher_to(f"{server.url}/hooks")
    for _ in range(5):
        assert (await outage_of(publisher, a_page(3))).refusals == ()


# -- several endpoints -----------------------------------------------------------------------------------------------


async def test_an_endpoint_that_takes_nothing_blocks_its_route_only(server: HTTPServer, publisher_to: Maker) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        bad = request.path == "/a%2Fb/hooks"
        await (status(503, retry_after="40") if bad else raw(NO_CONTENT))(request, writer)

    server.answer = answer
    page = [stored(n, headers={"tenant": "a/b" if n % 2 else "good"}) for n in range(1, 21)]
    publisher = publisher_to(f"{server.url}/{{tenant}}/hooks", concurrency=2)
    refusals = await publisher.publish(page)
    assert [refusal.position for refusal in refusals] == list(range(1, 21, 2))
    assert {refusal.route for refusal in refusals} == {f"{server.url}/a%2Fb/hooks"}
    assert all(30 < (refusal.retry_in or 0) <= 40 for refusal in refusals)
    assert len(server.arrived) == 10
    assert len(server.requests) <= 12, "those of the blocked route were not all sent"


def to(tenant: str, first: int, size: int) -> list[StoredMessage]:
    return [stored(first + n, headers={"tenant": tenant}) for n in range(size)]


def hanging(path: str) -> Answer:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await (hang if request.path == path else raw(NO_CONTENT))(request, writer)

    return answer


async def test_an_endpoint_that_hangs_leaves_slots_to_the_others(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = hanging("/slow")
    publisher = publisher_to(f"{server.url}/{{tenant}}", concurrency=4)
    slow = asyncio.create_task(publisher.publish(to("slow", 1, 20)))
    await until(lambda: server.at_once == 2)
    assert not await publisher.publish(to("good", 100, 20))
    assert not slow.done()
    slow.cancel()
    await asyncio.wait((slow,))


async def test_an_endpoint_that_hung_is_left_alone_for_longer_than_it_hung(
    server: HTTPServer, publisher_to: Maker
) -> None:
    server.answer = hanging("/slow")
    publisher = publisher_to(f"{server.url}/{{tenant}}", concurrency=4, answer_timeout="1s")
    both = [*to("slow", 1, 20), *to("good", 100, 20)]
    for refusals in await asyncio.gather(*[publisher.publish(both) for _ in range(2)]):
        assert {each.position for each in refusals} == {*range(1, 21)}
        assert {each.route for each in refusals} == {f"{server.url}/slow"}
    assert len([each for each in server.requests if each.path == "/slow"]) == 2, "what waited for them was not sent"
    refusals = await publisher.publish(both)
    assert "did not answer within 1 s (answer_timeout); it is tried again in" in refusals[0].reason
    assert 0 < (refusals[0].retry_in or 0) <= 2.1
    assert len([each for each in server.requests if each.path == "/slow"]) == 2


async def test_while_one_lane_tries_an_endpoint_that_hung_the_others_do_not_wait(
    server: HTTPServer, publisher_to: Maker
) -> None:
    server.answer = hanging("/slow")
    publisher = publisher_to(f"{server.url}/{{tenant}}", answer_timeout="200ms")
    await publisher.publish(to("slow", 1, 1))
    publisher._endpoint(f"{server.url}/slow")._not_before = 0.0  # the pause is over
    trying = asyncio.create_task(publisher.publish(to("slow", 1, 1)))
    await until(lambda: len(server.requests) == 2)
    refusals = await publisher.publish(to("slow", 2, 5))
    assert not trying.done()
    assert {each.route for each in refusals} == {f"{server.url}/slow"}
    assert len(server.requests) == 2
    await trying


async def test_a_message_that_names_no_endpoint_is_refused(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"{server.url}/{{tenant}}/hooks")
    page = [stored(1), stored(2, headers={"tenant": ".."}), stored(3, headers={"tenant": "x"})]
    refusals = await publisher.publish(page)
    assert [(refusal.position, refusal.permanent) for refusal in refusals] == [(1, True), (2, True)]
    assert "no header 'tenant'" in refusals[0].reason
    assert [request.path for request in server.requests] == ["/x/hooks"]


async def test_a_host_that_is_down_is_an_outage_for_all_endpoints(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"{server.url}/{{type}}")
    await server.stop()
    outage = await outage_of(publisher, [stored(1), stored(2, type="b")])
    assert outage.refusals == ()
    with pytest.raises(BrokerUnavailable):
        await publisher.open()
    await server.start()
    await publisher.open()
    assert not await publisher.publish([stored(1), stored(2, type="b")])


# -- wrong ways to answer --------------------------------------------------------------------------------------------


async def hang(_: Request, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def slow_headers(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-y: z\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def half_an_answer(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")
    await writer.drain()
    writer.transport.abort()


NO_ANSWER: dict[str, tuple[Answer, str]] = {
    "hangs": (hang, "did not answer within"),
    "slow headers": (slow_headers, "did not answer within|can't be read"),
    "cut": (cut, "ended the connection"),
    "half": (half_an_answer, "ended the connection|can't be read"),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "can't be read"),
    "long header": (raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"), "can't be read"),
    "no status": (raw(b"HTTP/1.1 abc OK\r\n\r\n"), "can't be read"),
}


@pytest.mark.parametrize("how", NO_ANSWER)
async def test_no_answer_is_an_outage(server: HTTPServer, publisher_to: Maker, how: str) -> None:
    server.answer, words = NO_ANSWER[how]
    publisher = publisher_to(f"{server.url}/hooks", answer_timeout="500ms", connect_timeout="400ms")
    outage = await outage_of(publisher, a_page(2))
    assert (outage.confirmed, outage.refusals) == (frozenset(), ())
    outage.add_note(words)
    assert any(word in str(outage) for word in words.split("|")), outage
    server.answer = raw(NO_CONTENT)
    await until(lambda: server.at_once <= 2)
    assert not await publisher_to(f"{server.url}/hooks").publish(a_page(2))


async def endless_body(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"5\r\nhello\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def body_that_stops(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello")
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize("answer", [endless_body, body_that_stops], ids=["endless", "stops"])
async def test_an_answer_counts_whatever_its_body(server: HTTPServer, publisher_to: Maker, answer: Answer) -> None:
    server.answer = answer
    publisher = publisher_to(f"{server.url}/hooks", concurrency=2)
    assert not await publisher.publish(a_page(2))
    server.answer = raw(NO_CONTENT)
    assert not await publisher.publish(a_page(2)), "on other connections"


async def test_a_compressed_body_is_not_unpacked(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(422, "no gzip at all", content_encoding="gzip")
    (refusal,) = await publisher_to(f"{server.url}/hooks").publish([stored()])
    assert refusal.reason == "it answered 422: no gzip at all"


async def test_an_interim_answer_is_not_the_answer(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = raw(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 422 X\r\ncontent-length: 2\r\n\r\nno")
    publisher = publisher_to(f"{server.url}/hooks")
    for number in (1, 2):
        (refusal,) = await publisher.publish([stored(number)])
        assert refusal.reason == "it answered 422: no"
    assert server.connections == 1


async def test_an_answer_before_the_body_was_read(publisher_to: Maker) -> None:
    """What is left of the body is not sent, and the next request goes over another connection."""
    writers: list[asyncio.StreamWriter] = []

    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\ncontent-length: 0\r\n\r\n" if b"16000000" in head else NO_CONTENT)

    listener = await asyncio.start_server(answer_early, "127.0.0.1", 0)
    url = f"http://localhost:{listener.sockets[0].getsockname()[1]}/"
    publisher = publisher_to(url, envelope="binary", max_message_size=1 << 25)
    try:
        (refusal,) = await publisher.publish([stored(1, payload=b"x" * 16_000_000, content_type="text/plain")])
        assert refusal.permanent
        assert not await publisher.publish([stored(2)])
        assert len(writers) == 2
    finally:
        listener.close()
        for each in writers:
            each.transport.abort()


async def test_a_redirect_is_not_followed(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(307, location="http://169.254.169.254/latest/meta-data")
    outage = await outage_of(publisher_to(f"{server.url}/hooks"), a_page(1))
    assert "307, a redirect to http://169.254.169.254/latest/meta-data, which is not followed" in str(outage)
    assert len(server.requests) == 1


async def test_an_idle_connection_that_the_server_closed_costs_nothing(server: HTTPServer, publisher_to: Maker) -> None:
    async def answer_and_close(request: Request, writer: asyncio.StreamWriter) -> None:
        await raw(NO_CONTENT)(request, writer)
        if len(server.requests) == 1:
            writer.close()

    server.answer = answer_and_close
    publisher = publisher_to(f"{server.url}/hooks")
    for number in range(5):
        assert not await publisher.publish([stored(number + 1)])
    assert server.connections == 2


async def test_connections_are_kept_alive(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"{server.url}/hooks", concurrency=3)
    await publisher.open()
    for first in (1, 101, 201):
        assert not await publisher.publish(a_page(100, first))
    assert server.connections <= 3
    assert len(server.arrived) == 300


async def test_concurrency_is_that_of_the_sink(server: HTTPServer, publisher_to: Maker) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.005)
        await raw(NO_CONTENT)(request, writer)

    server.answer = answer
    publisher = publisher_to(f"{server.url}/hooks", concurrency=3)
    await asyncio.gather(*(publisher.publish(a_page(30, 1 + 100 * lane)) for lane in range(4)))
    assert server.most_at_once == 3
    assert len(server.arrived) == 120


@pytest.mark.parametrize("size", [60_000, 1_000_000], ids=["written at once", "written in pieces"])
async def test_nothing_of_a_cancelled_request_is_sent_any_more(publisher_to: Maker, size: int) -> None:
    """asyncio would go on to write what a transport holds after it was closed."""
    async with HTTPServer(receive_buffer=4096) as server:
        publisher = publisher_to(f"{server.url}/hooks", envelope="binary")
        client, connect = publisher._client, publisher._client._socket

        def small(found: Any) -> socket.socket:
            made = connect(found)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that the kernel can't take it all
            return made

        client._socket = small  # type: ignore[method-assign]
        await publisher.open()
        server.freeze()
        large = stored(payload=b"x" * size, content_type="text/plain")
        call = asyncio.create_task(publisher.publish([large]))
        await until(lambda: server.unread_bytes() > 0)
        call.cancel()
        await asyncio.wait((call,))
        server.thaw()
        assert not await publisher.publish([after := stored(2)])
        await until(lambda: len(server._serving) <= 1)
        assert [request.headers["webhook-id"] for request in server.requests] == [str(after.id)]


@pytest.mark.parametrize("path", ["hooks", "{type}/{tenant}"])
async def test_a_relay_that_is_stopped_saves_what_was_confirmed_of_a_page(
    server: HTTPServer, publisher_to: Maker, path: str
) -> None:
    """Its page is saved as far as it is confirmed, although the call that publishes it is cancelled."""
    log = MemoryLog()
    await log.add(*[Message(str(number), type="t", topic="t", headers={"tenant": "x"}) for number in range(50)])
    confirmed = asyncio.Event()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) <= 30:
            await raw(NO_CONTENT)(request, writer)
        else:
            confirmed.set()
            await hang(request, writer)

    server.answer = answer
    url, settings = f"{server.url}/{path}", RelaySettings(lanes=1, grace="1ms", outage_backoff="1ms")
    it = Relay(log.another_store(), publisher_to(url, concurrency=2), settings=settings)
    running = asyncio.create_task(it.run())
    await asyncio.wait_for(confirmed.wait(), 60)
    await until(lambda: len(server.arrived) == 30)
    it.stop()
    assert (await running).published == 30
    server.answer = raw(NO_CONTENT)
    await Relay(log.another_store(), publisher_to(url), settings=settings).run_until_empty()
    assert len(server.arrived) == len({*server.arrived}) == 50


async def test_a_publisher_that_is_closed_sends_nothing_more(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = hang
    publisher = publisher_to(f"{server.url}/hooks", concurrency=2)
    call = asyncio.create_task(publisher.publish(a_page(10)))
    await until(lambda: len(server.requests) == 2)
    await publisher.close()
    with pytest.raises(BrokerUnavailable):
        await call
    assert len(server.requests) == 2


# -- what is sent ----------------------------------------------------------------------------------------------------


async def sent(server: HTTPServer, publisher: HTTPPublisher, *messages: StoredMessage) -> Request:
    assert not await publisher.publish(messages)
    return server.requests[-1]


async def test_structured(server: HTTPServer, publisher_to: Maker) -> None:
    message = stored(headers={"tenant": "Zürich 100%", "correlation_id": "c"})
    request = await sent(server, publisher_to(f"{server.url}/hooks?token=a%20b"), message)
    event = from_http(request.headers, request.body)
    assert (event["id"], event["type"], event["source"]) == (str(message.id), "order.created", "/tests")
    assert (event["subject"], event["correlationid"], event.data) == ("order-1", "c", {"number": 1})
    assert (request.method, request.path) == ("POST", "/hooks?token=a%20b")
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert request.headers["tenant"] == "Z%C3%BCrich%20100%25"
    assert request.headers["webhook-id"] == str(message.id)
    assert not request.headers.keys() & {"cookie", "accept-encoding", "webhook-signature", "authorization"}


async def test_binary(server: HTTPServer, publisher_to: Maker) -> None:
    message = stored(key="Zürich")
    request = await sent(server, publisher_to(f"{server.url}/hooks", envelope="binary"), message)
    event = from_http_event(HTTPMessage(request.headers, request.body))
    assert (event.get_id(), event.get_type(), event.get_subject()) == (str(message.id), "order.created", "Zürich")
    assert request.body == message.payload
    assert request.headers["content-type"] == "application/json"


async def test_batched(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"{server.url}/hooks", envelope="batched", batch_messages=10)
    page = a_page(25)
    assert not await publisher.publish(page)
    assert sorted(len(request.ids) for request in server.requests) == [5, 10, 10]
    assert sorted(server.arrived) == sorted(message.id for message in page)
    for request in server.requests:
        assert request.headers["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
        for each in msgspec.json.decode(request.body, type=list[msgspec.Raw]):
            assert from_json(bytes(each))["type"] == "order.created"


async def test_plain(server: HTTPServer, publisher_to: Maker) -> None:
    request = await sent(server, publisher_to(f"{server.url}/hooks", envelope="plain"), message := stored())
    assert request.body == message.payload
    assert not [name for name in request.headers if name.startswith("ce-")]


@pytest.mark.parametrize("envelope", ["structured", "binary"])
async def test_a_tombstone(server: HTTPServer, publisher_to: Maker, envelope: str) -> None:
    message = stored(payload=b"", content_type="")
    request = await sent(server, publisher_to(f"{server.url}/hooks", envelope=envelope), message)
    assert from_http(request.headers, request.body).data in (None, b"", "")
    assert ("content-type" in request.headers) is (envelope == "structured")


async def answered(publisher: HTTPPublisher, messages: Sequence[StoredMessage]) -> tuple[list[Refusal], set[int]]:
    """Publish until each message is confirmed, refused or set aside, through outages: refusals, and what is aside."""
    refusals: list[Refusal] = []
    while messages:
        try:
            found: Sequence[Refusal] = await publisher.publish(messages)
            confirmed = {message.position for message in messages}
        except BrokerUnavailable as outage:
            found, confirmed = outage.refusals, set(outage.confirmed)
        refusals += found
        done = confirmed | {each.position for each in found}
        messages = [message for message in messages if message.position not in done]
    aside = {each.position for each in refusals if each.route is not None}
    return [each for each in refusals if each.route is None], aside


@pytest.mark.parametrize("bad", [[3], [0, 24], [7, 8, 9], list(range(25))])
@pytest.mark.parametrize("code", [422, 413, 500])
async def test_in_a_batch_exactly_the_messages_at_fault_are_refused(
    server: HTTPServer, publisher_to: Maker, bad: list[int], code: int
) -> None:
    page = a_page(26)
    unwanted = {page[number].id for number in bad}

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await (status(code) if unwanted & set(request.ids) else raw(NO_CONTENT))(request, writer)

    server.answer = answer
    publisher = publisher_to(f"{server.url}/hooks", envelope="batched", batch_messages=10)
    assert not await publisher.publish([stored(1000)])
    refused: dict[int, Refusal] = {}
    rest: Sequence[StoredMessage] = page
    while rest:  # as a relay does: what is set aside is tried again after the others
        found, held = await answered(publisher, rest)
        refused |= {each.position: each for each in found}
        rest = [message for message in page if message.position in held]
        assert not await publisher.publish([stored(1000)]), "there is other traffic"
    assert sorted(refused) == [number + 1 for number in bad]
    assert set(server.arrived) >= {message.id for message in page} - unwanted
    assert all(each.permanent is (code == 413) for each in refused.values())


async def test_large_bodies(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"{server.url}/hooks", envelope="binary")
    page = [stored(1, payload=b"x" * 3_000_000), stored(2, payload=b"x" * 5_000_000)]
    (refusal,) = await publisher.publish(page)
    assert (refusal.position, refusal.permanent) == (2, True)
    assert "max_message_size" in refusal.reason
    assert len(server.requests[0].body) == 3_000_000


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "webhook-id", "Transfer-Encoding", "a b", "x\r\ny", "Ce-Id"]
)
async def test_headers_that_http_needs_itself_are_refused(server: HTTPServer, publisher_to: Maker, name: str) -> None:
    (refusal,) = await publisher_to(f"{server.url}/hooks").publish([stored(headers={name: "evil"})])
    assert refusal.permanent
    assert server.requests == []


# -- signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envelope", ["structured", "binary", "batched", "plain"])
async def test_the_official_library_verifies_it(server: HTTPServer, publisher_to: Maker, envelope: str) -> None:
    settings = {"secrets": f"{OTHER_SECRET} {SECRET}", "envelope": envelope}
    request = await sent(server, publisher_to(f"{server.url}/hooks", **settings), stored())
    for secret in (SECRET, OTHER_SECRET):
        Webhook(secret).verify(request.body, request.headers)


async def test_secrets_from_a_file_can_be_changed(
    server: HTTPServer, publisher_to: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"# the old one\n{OTHER_SECRET}\n")
    publisher = publisher_to(f"{server.url}/hooks", secrets_file=file)
    request = await sent(server, publisher, stored(1))
    Webhook(OTHER_SECRET).verify(request.body, request.headers)
    file.write_text("half a secr")
    request = await sent(server, publisher, stored(2))
    Webhook(OTHER_SECRET).verify(request.body, request.headers)
    (warning,) = caplog.messages
    assert warning.startswith("secrets_file: secret 1 has the wrong form")
    file.write_text(f"{SECRET}\n")
    request = await sent(server, publisher, stored(3))
    Webhook(SECRET).verify(request.body, request.headers)
    assert len(request.headers["webhook-signature"].split(" ")) == 1


# -- addresses -------------------------------------------------------------------------------------------------------

REFUSED_AT_ONCE = ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]"]
REFUSED_WHEN_CONNECTING = ["localhost", "127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1"]


@pytest.mark.parametrize("host", REFUSED_AT_ONCE + REFUSED_WHEN_CONNECTING)
async def test_no_form_of_a_private_address_is_connected_to(server: HTTPServer, host: str) -> None:
    url = f"http://{host}:{server.port}/hooks"
    if host in REFUSED_AT_ONCE:
        with pytest.raises(InvalidSetting, match="allow_networks"):
            HTTPPublisher(url, PublisherSettings(allow_plaintext=True))
        return
    publisher = HTTPPublisher(url, PublisherSettings(allow_plaintext=True))
    with pytest.raises(BrokerUnavailable, match=r"loopback.*allow_networks|not a canonical"):
        await publisher.open()
    outage = await outage_of(publisher, a_page(3))
    assert outage.refusals == ()
    assert (server.connections, server.requests) == (0, [])
    await publisher.close()


async def test_a_name_that_leads_elsewhere_later_is_not_connected_to(
    server: HTTPServer, publisher_to: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answer is a public address, those after it are not."""
    publisher = publisher_to(f"http://partner.example:{server.port}/", allow_networks=None, connect_timeout="500ms")
    answers = ["8.8.8.8", "169.254.169.254", "127.0.0.1", "10.1.2.3", "::ffff:127.0.0.1"]
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> Any:
        address = answers[min(len(asked), len(answers) - 1)]
        asked.append(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        place = (address, port, 0, 0) if ":" in address else (address, port)
        return [(family, socket.SOCK_STREAM, 6, "", place)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    connector = publisher._client._opened()
    for _ in answers:
        await outage_of(publisher, a_page(1))
        connector.clear_dns_cache()
    assert asked[: len(answers)] == answers
    assert server.connections == 0


async def test_allowed_networks_are_connected_to(server: HTTPServer) -> None:
    settings = PublisherSettings(allow_plaintext=True, allow_networks=["127.0.0.1"])
    publisher = HTTPPublisher(f"http://127.0.0.1:{server.port}/", settings)
    assert not await publisher.publish(a_page(1))
    await publisher.close()


# -- TLS, and proxies ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


def served_by(certificates: Path, **options: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, **options)
    context.load_cert_chain(certificates / "server-cert.pem", certificates / "server-key.pem")
    return context


async def test_tls_with_a_private_authority(certificates: Path, publisher_to: Maker) -> None:
    async with HTTPServer(served_by(certificates)) as server:
        publisher = publisher_to(f"{server.url}/hooks", ca_file=str(certificates / "ca.pem"))
        await publisher.open()
        assert not await publisher.publish([*a_page(5), stored(9, payload=b"x" * 2_000_000)])


async def test_a_certificate_of_an_unknown_authority_is_refused(certificates: Path, publisher_to: Maker) -> None:
    async with HTTPServer(served_by(certificates)) as server:
        publisher = publisher_to(f"{server.url}/hooks")
        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await publisher.open()
        outage = await outage_of(publisher, a_page(3))
        assert "CERTIFICATE_VERIFY_FAILED" in str(outage)
        assert server.requests == []


async def test_a_certificate_of_another_host_is_refused(certificates: Path, publisher_to: Maker) -> None:
    async with HTTPServer(served_by(certificates)) as server:
        url = f"https://127.0.0.1:{server.port}/hooks"
        publisher = publisher_to(url, ca_file=str(certificates / "ca.pem"))
        with pytest.raises(BrokerUnavailable, match="IP address mismatch"):
            await publisher.open()


async def test_a_client_certificate(certificates: Path, publisher_to: Maker) -> None:
    context = served_by(certificates, cafile=str(certificates / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    async with HTTPServer(context) as server:
        own = {"cert_file": str(certificates / "client-cert.pem"), "key_file": str(certificates / "client-key.pem")}
        ca = {"ca_file": str(certificates / "ca.pem")}
        await outage_of(publisher_to(f"{server.url}/hooks", **ca), a_page(1))
        assert not await publisher_to(f"{server.url}/hooks", **ca, **own).publish(a_page(3))


async def test_https_to_a_server_without_tls(server: HTTPServer, publisher_to: Maker) -> None:
    publisher = publisher_to(f"https://localhost:{server.port}/hooks", connect_timeout="500ms")
    with pytest.raises(BrokerUnavailable, match="SSL|connect_timeout"):
        await publisher.open()


async def test_a_proxy(server: HTTPServer, publisher_to: Maker) -> None:
    """Of http:// it gets whole URLs, and the addresses are its own business."""
    publisher = publisher_to("http://partner.example/hooks", proxy=server.url, allow_networks=None)
    await publisher.open()
    assert not await publisher.publish([stored()])
    assert server.requests[0].path == "http://partner.example/hooks"


async def test_a_proxy_that_wants_a_password(server: HTTPServer, publisher_to: Maker) -> None:
    url = server.url.replace("://", "://user:hunter2@")
    publisher = publisher_to("http://partner.example/hooks", proxy=url, allow_networks=None)
    for number in (1, 2):
        assert not await publisher.publish([stored(number)])
        sent = server.requests[-1].headers
        assert (sent["proxy-authorization"], sent["host"]) == ("Basic dXNlcjpodW50ZXIy", "partner.example")


async def test_a_proxy_that_refuses_is_an_outage(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(403)
    publisher = publisher_to("https://partner.example/hooks", proxy=server.url, allow_networks=None)
    outage = await outage_of(publisher, a_page(2))
    assert outage.refusals == ()
    assert {request.method for request in server.requests} == {"CONNECT"}


async def test_a_content_type_that_can_t_be_a_header_is_refused(server: HTTPServer, publisher_to: Maker) -> None:
    """It comes from a row of the log, and is no fault of the endpoint."""
    publisher = publisher_to(f"{server.url}/hooks", envelope="binary")
    page = [stored(1, content_type="text/plain\r\nx-forged: 1"), stored(2)]
    (refusal,) = await publisher.publish(page)
    assert (refusal.position, refusal.permanent, len(server.requests)) == (1, True, 1)
    assert "its content type is 'text/plain\\r\\nx-forged: 1'" in refusal.reason


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("http://partner.example/", {}, "allow_plaintext"),
        ("https://user:hunter2@partner.example/", {}, "user or a password"),
        ("https://10.0.0.1/", {}, "allow_networks"),
        ("https://169.254.169.254/latest", {}, "metadata"),
        ("https://[::ffff:169.254.169.254]/latest", {}, "metadata"),
        ("https://{tenant}.example/", {}, "path only"),
        ("https://partner.example/{tenant", {}, "brace"),
        ("https://partner.example/?a={tenant}", {}, "brace"),
        ("https://partner.example/../x", {}, "segment"),
        ("https://partner.example:99999/", {}, "port"),
        ("https:///hooks", {}, "host"),
        ("https://partner.example/", {"secrets": "hunter2"}, "secret 1 has the wrong form"),
        ("https://partner.example/", {"secrets": f"{SECRET} whsec_aHVudGVyMg=="}, "secret 2 has the wrong form"),
        ("https://partner.example/", {"secrets": ""}, "holds no secret"),
        ("https://partner.example/", {"secrets": SECRET, "secrets_file": "/x"}, "both given"),
        ("https://partner.example/", {"secrets_file": "/no/such"}, "can't be read"),
        ("https://partner.example/", {"concurrency": 0}, "concurrency is 0"),
        ("https://partner.example/", {"allow_networks": ["10.0.0.0/99"]}, "allow_networks"),
        ("https://partner.example/", {"proxy": "socks5://proxy"}, "proxy"),
        ("https://partner.example/", {"ca_file": "/no/such"}, "ca_file"),
        ("https://partner.example/", {"cert_file": "/no/such"}, "key_file"),
        ("https://partner.example/", {"envelope": "avro"}, "envelope is 'avro'"),
    ],
)
def test_bad_input(url: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as error:
        publisher_for(url, **settings)
    assert "hunter2" not in str(error.value)
    assert "aHVudGVyMg" not in str(error.value)


def test_the_destination_shows_no_secret() -> None:
    publisher = publisher_for("https://Partner.example:443/{type}/hooks?token=hunter2&v=1", secrets=SECRET)
    assert publisher.destination == "https://partner.example/{type}/hooks?token=…&v=…"
    assert publisher.name == publisher.destination
    assert "hunter2" not in repr(publisher)


async def test_no_error_shows_the_query(server: HTTPServer, publisher_to: Maker) -> None:
    server.answer = status(500)
    publisher = publisher_to(f"{server.url}/hooks?token=hunter2")
    assert "hunter2" not in str(await outage_of(publisher, a_page(1)))
    for location in ("/hooks/?token=hunter2", "https://hunter2:hunter2@partner.example/hooks/#hunter2", "//hunter2@x/"):
        server.answer = status(308, location=location)
        redirect = str(await outage_of(publisher, a_page(1)))
        assert "a redirect to /" in redirect or "a redirect to https://partner.example/hooks/," in redirect
        assert "hunter2" not in redirect
    server.answer = raw(b"HTTP/1.1 abc OK\r\n\r\n")
    garbage = str(await outage_of(publisher, a_page(1)))
    assert "can't be read: 400 Bad status line" in garbage
    assert "hunter2" not in garbage
    await server.stop()
    assert "hunter2" not in str(await outage_of(publisher, a_page(1)))
