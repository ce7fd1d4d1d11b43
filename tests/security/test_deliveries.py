"""What a client that may publish to a consumer's queue can do to the consumer; and a broker to a relay."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import aio_pika
import pytest
from yarl import URL

from postroad import Consumer, Outbox, Received
from postroad.brokers.rabbitmq import properties
from postroad.brokers.rabbitmq.reading import BrokenFrame, FrameReader
from postroad.retry import Backoff
from tests.consumers import Numbered, consumed, handler_limits, hang
from tests.destinations import bound_queue, rabbitmq_channel
from tests.destinations import consumed as taken
from tests.logs import numbered
from tests.places import asyncpg_transactions
from tests.security.neighbours import Neighbours, postroad
from tests.services.serving import aborted, closed, end_serving
from tests.unit.brokers.rabbitmq.test_properties import counting

ONCE: Final = Backoff(max_attempts=1, first=timedelta(milliseconds=1), jitter=0)
DEEP: Final = b"[" * 100_000 + b"]" * 100_000


async def publish(vhost: str, body: bytes, number: int, **headers: Any) -> None:
    usual = {"ce-specversion": "1.0", "ce-id": f"id-{number}", "ce-source": "/x", "ce-type": "numbered"}
    async with rabbitmq_channel(vhost) as channel:
        message = aio_pika.Message(body, content_type="application/json", headers=usual | headers)
        await channel.default_exchange.publish(message, "stock")


@asynccontextmanager
async def consuming(neighbours: Neighbours, vhost: str, **settings: Any) -> AsyncIterator[tuple[Any, list[int]]]:
    """A consumer whose queue is there, and the numbers that its handler has had. Those below zero hang."""
    begin = asyncpg_transactions(neighbours.url("billing"))[0]
    consumer = Consumer(vhost, name="stock", begin=begin, retry=ONCE, grace="20s", **settings)
    handled: list[int] = []

    @consumer.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        if event.number < 0:
            await hang()
        handled.append(event.number)

    await consumed(consumer)
    yield consumer, handled


async def test_bodies_that_are_too_large_or_nested_too_deeply_are_dead_letters(
    neighbours: Neighbours, vhost: str
) -> None:
    async with consuming(neighbours, vhost, max_message_size=300_000, max_held_bytes=400_000) as (consumer, handled):
        await publish(vhost, b"x" * 5_000_000, 1)
        await publish(vhost, DEEP, 2)
        await publish(vhost, b'{"number":3}', 3)
        for number in range(4, 14):  # more than may be held at once
            await publish(vhost, b'{"number":%d,"more":"%s"}' % (number, b"x" * 100_000), number)
        await publish(vhost, b'{"number":14}', 14)
        summary = await consumed(consumer)
    assert (summary.handled, summary.dead) == (12, 2)
    assert sorted(handled) == list(range(3, 15))
    reasons = [str(letter.headers["postroad-reason"]) for letter in await taken(vhost, "stock.dead")]
    assert sum("max_message_size" in reason for reason in reasons) == 1


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**30 + 1])
def test_a_body_that_is_announced_with_absurdly_many_bytes_ends_the_connection(size: int) -> None:
    deliver = struct.pack(">HH", 60, 60) + b"\x01c" + struct.pack(">Q?", 1, False) + b"\x00\x00"
    header = struct.pack(">HHQH", 60, 0, size, 0)
    frames = b"".join(
        struct.pack(">BHI", kind, 1, len(frame)) + frame + b"\xce" for kind, frame in ((1, deliver), (2, header))
    )
    with pytest.raises(BrokenFrame, match="was announced"):
        FrameReader(1).feed(frames)


async def test_very_many_headers_are_a_dead_letter_and_each_is_written_once(
    neighbours: Neighbours, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    for name in ("_encoded", "table"):
        monkeypatch.setattr(properties, name, counting(getattr(properties, name), written))
    async with consuming(neighbours, vhost) as (consumer, handled):
        await publish(vhost, b"no JSON", 1, **{f"h{number}": "" for number in range(11_700)})
        await publish(vhost, b'{"number":2}', 2)
        assert (await consumed(consumer)).dead == 1
    assert handled == [2]
    assert 100_000 < sum(written) < 2 * 131_064, "which is as much as a frame may have"
    (letter,) = await taken(vhost, "stock.dead")
    assert letter.body == b"no JSON"
    assert "postroad-reason" in letter.headers


async def test_messages_whose_handlers_hang_do_not_stop_a_consumer(neighbours: Neighbours, vhost: str) -> None:
    async with consuming(neighbours, vhost, handler_timeout="90s", concurrency=10) as (consumer, handled):
        for number in range(1, 11):
            await publish(vhost, b'{"number":-1}', number)
        await publish(vhost, b'{"number":11}', 11)
        with handler_limits(90):
            summary = await consumed(consumer)
    assert (summary.handled, summary.failed, summary.dead) == (1, 10, 10)
    assert handled == [11]
    for letter in await taken(vhost, "stock.dead"):
        assert "handler_timeout" in str(letter.headers["postroad-reason"])


async def test_json_that_is_nested_too_deeply_is_refused_alone_and_the_others_arrive_once(
    neighbours: Neighbours, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "all")
    async with neighbours.connected("shop") as connection, connection.transaction():
        await Outbox(source="/shop").add_many(connection, numbered(*range(150)))
    async with neighbours.connected("billing") as hostile:
        await hostile.execute(
            "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
            "values (gen_random_uuid(), 't', 1, 't', $1, 'application/json', '{\"source\": \"/billing\"}')",
            DEEP,
        )
    async with neighbours.connected("shop") as connection, connection.transaction():
        await Outbox(source="/shop").add_many(connection, numbered(*range(150, 300)))
    monkeypatch.setenv("POSTROAD_RABBITMQ_ENVELOPE", "structured")
    postroad("relay", "--database", neighbours.url("relay"), "--to", vhost, "--until-empty", "--lanes", "1", fails=True)
    assert len(await taken(vhost, "all")) == 300
    assert neighbours.execute("owner", "select state from postroad.deferred").split() == ["dead"]


ABSURD: Final = struct.pack(">BHI", 1, 1, 13) + struct.pack(">HHQB", 60, 80, 2**63 - 1, 1) + b"\xce"
"""On channel 1: basic.ack of everything up to a tag that no client has come to."""


@asynccontextmanager
async def lying(vhost: str) -> AsyncIterator[str]:
    """The URL of a broker that answers the first message with an absurd ack; else it does what the real one does."""
    real = URL(vhost)
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving[task] = writer
        task.add_done_callback(serving.pop)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(real.host, real.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(pass_on(reader, forth, b""))
                both.create_task(pass_on(back, writer, ABSURD))
            await closed(writer, forth)
        finally:
            await aborted(writer, forth)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lie: bytes) -> None:
        try:
            if lie is ABSURD:
                while (frame := await whole_frame(reader))[7:11] != struct.pack(">HH", 60, 80):
                    writer.write(frame)
                writer.write(lie + frame)
            while data := await reader.read(65_536):
                writer.write(data)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def whole_frame(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(7)
        return head + await reader.readexactly(struct.unpack(">BHI", head)[2] + 1)

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield str(real.with_host("127.0.0.1").with_port(server.sockets[0].getsockname()[1]))
    finally:
        await end_serving(server, serving)


async def test_an_ack_with_an_absurd_tag_does_not_hang_a_relay(neighbours: Neighbours, vhost: str) -> None:
    """In a process of its own: it would hang where nothing of Python can end it."""
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "all")
    async with neighbours.connected("shop") as connection, connection.transaction():
        await Outbox(source="/shop").add_many(connection, numbered(*range(300)))
    async with lying(vhost) as url:
        command = ("relay", "--database", neighbours.url("relay"), "--to", url, "--until-empty")
        output = await asyncio.to_thread(postroad, *command)
    assert output.startswith("300 published")
    assert len(await taken(vhost, "all")) == 300
