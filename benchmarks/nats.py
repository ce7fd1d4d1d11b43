"""nats: how fast a whole relay process brings a backlog from PostgreSQL to NATS JetStream, beside ready-made frames on
a bare socket and beside nats-py.

All take turns on one server, each with a fresh stream, because a stream drops what it has stored before; a ratio is
taken within a round. The relay is a process with the default settings. The others are in this process, page by page,
and wait for the confirms of each page as a lane does: frames that were made before the clock starts, written to a
socket; and nats-py's `publish_async` with the same headers.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import nats as nats_py

from benchmarks import draining
from benchmarks.backlog import TOPIC
from benchmarks.process import Broken
from benchmarks.rabbitmq import Turn
from benchmarks.rabbitmq_yardsticks import PAGE, stored
from benchmarks.sections import Plan, Section
from benchmarks.turns import RELAYS, columns, describe
from postroad.brokers.nats.frames import Frames
from postroad.brokers.nats.reading import headers_of
from tests.services.nats import NATS
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

HAND, CLIENT = "frames by hand on a bare socket", "nats-py, publish_async"
STREAM = "bench"
LARGEST = 1 << 20


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(400_000, quick=5_000)
    section = Section(
        "nats",
        f"{messages:,} messages to NATS JetStream, each confirmed by its stream",
        columns(HAND, CLIENT),
    )
    try:
        broker = NATS()
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    with broker:
        turns = _in_turns(server, broker, plan, messages)
    describe(section, turns, hand=HAND, client=CLIENT, share=0.6, times=2.5)
    section.notes.append("NATS on the same machine, a stream in files with one replica, its default sync_interval")
    return section


def _in_turns(server: PostgreSQL, broker: NATS, plan: Plan, messages: int) -> dict[str, list[Turn]]:
    sinks = [f"round {number}" for number in range(plan.rounds(3))]
    logs = {name: draining.log(server, messages, keys, sinks, to=broker.url()) for name, keys in RELAYS.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in (HAND, CLIENT, *RELAYS)}
    asyncio.run(_fresh_stream(broker))
    asyncio.run(_by_hand(broker, min(messages, 20 * PAGE)))  # this turn only warms the server up
    for sink in sinks:
        for name, each in turns.items():
            asyncio.run(_fresh_stream(broker))
            if name in logs:
                each.append(_relay(server, logs[name], sink, messages, broker.url()))
            else:
                each.append(asyncio.run((_by_hand if name == HAND else _by_client)(broker, messages)))
            arrived = asyncio.run(_size(broker))
            if arrived != messages:
                raise Broken(f"{name}: {arrived:,} of {messages:,} messages arrived")
    return turns


async def _fresh_stream(broker: NATS) -> None:
    client = await nats_py.connect(broker.servers)
    jetstream = client.jetstream(timeout=60)
    for info in await jetstream.streams_info():
        await jetstream.delete_stream(str(info.config.name))
    await jetstream.add_stream(name=STREAM, subjects=[TOPIC])
    await client.close()


async def _size(broker: NATS) -> int:
    client = await nats_py.connect(broker.servers)
    found = (await client.jetstream(timeout=60).stream_info(STREAM)).state.messages
    await client.close()
    return found


async def _by_hand(broker: NATS, messages: int) -> Turn:
    frames = Frames("{topic}", "binary")
    made = [frames.encoded(stored(number), f"_INBOX.hand.{number}", LARGEST) for number in range(1, messages + 1)]
    pages = [b"".join(made[first : first + PAGE]) for first in range(0, messages, PAGE)]
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.nodes[0].port)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.hand.* 1\r\nPING\r\n')
    await reader.readuntil(b"PONG\r\n")
    left = messages
    began, used = time.perf_counter(), time.process_time()
    for page in pages:
        writer.write(page)
        wanted, answers = min(PAGE, left), b""
        while answers.count(b"}\r\n") < wanted:
            answers += await reader.read(1 << 18)
        left -= wanted
    turn = Turn(messages, time.perf_counter() - began, time.process_time() - used)
    writer.close()
    await writer.wait_closed()
    return turn


async def _by_client(broker: NATS, messages: int) -> Turn:
    frames = Frames("{topic}", "binary")
    made: list[tuple[bytes, Any]] = []
    for number in range(1, messages + 1):
        message = stored(number)
        frame = frames.encoded(message, "r", LARGEST)
        block = frame.partition(b"\r\n")[2].partition(b"\r\n\r\n")[0]
        made.append((message.payload, headers_of(block + b"\r\n\r\n")))
    client = await nats_py.connect(broker.servers)
    jetstream = client.jetstream(timeout=60, publish_async_max_pending=2 * PAGE)
    began, used = time.perf_counter(), time.process_time()
    for first in range(0, messages, PAGE):
        for payload, headers in made[first : first + PAGE]:
            await jetstream.publish_async(TOPIC, payload, headers=headers)
        await jetstream.publish_async_completed()
    turn = Turn(messages, time.perf_counter() - began, time.process_time() - used)
    await client.close()
    return turn


def _relay(server: PostgreSQL, log: str, sink: str, messages: int, url: str) -> Turn:
    outcome = draining.drain_ours(server, log, sink, messages, to=url).outcome
    return Turn(outcome.messages, outcome.seconds, outcome.cpu_seconds - outcome.starting_cpu_seconds)
