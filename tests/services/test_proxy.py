"""That the proxy hands on and cuts where the other tests think it does."""

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.services.faulty_proxy import FaultyProxy
from tests.services.proxy import Proxy


@pytest.fixture
async def received() -> AsyncIterator[tuple[Proxy, bytearray]]:
    """A proxy to a server that answers with what it gets, and what that server has got."""
    received = bytearray()
    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                received.extend(data)
                writer.write(data)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.create_task(answer(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        async with Proxy(port_of(server)) as proxy:
            yield proxy, received
        await asyncio.gather(*answering)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def answer_to(proxy: Proxy, *pieces: bytes) -> bytes:
    """What comes back until it is all, or until the connection is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    answer = b""
    for piece in pieces:
        writer.write(piece)
        if len(got := await reader.read(len(piece))) < len(piece):
            break
        answer += got
    await hang_up(writer)
    return answer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_it_hands_on(received: tuple[Proxy, bytearray]) -> None:
    proxy, _ = received
    assert await answer_to(proxy, b"hello", b"world") == b"helloworld"
    assert proxy.cuts == 0


async def test_it_cuts_once_after_so_many_bytes_were_sent(received: tuple[Proxy, bytearray]) -> None:
    proxy, server = received
    proxy.cut_after(sent=7)
    await answer_to(proxy, b"12345", b"6789")
    assert server.startswith(b"12345")
    assert b"8" not in server
    assert proxy.cuts == 1
    assert await answer_to(proxy, b"hello", b"world") == b"helloworld"


async def test_it_cuts_once_after_so_many_bytes_were_answered(received: tuple[Proxy, bytearray]) -> None:
    proxy, server = received
    proxy.cut_after(answered=3)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"12345")
    assert await reader.read() == b"123"
    await hang_up(writer)
    assert bytes(server) == b"12345"
    assert proxy.cuts == 1


async def test_it_cuts_whenever_certain_bytes_are_sent_also_in_two_pieces(received: tuple[Proxy, bytearray]) -> None:
    proxy, server = received
    proxy.cut_at(b"poison")
    assert await answer_to(proxy, b"harmless", b"a poison") != b"harmlessa poison"
    assert await answer_to(proxy, b"harmless poi", b"son") == b"harmless poi"
    assert proxy.cuts == 2
    assert b"poison" not in server
    assert await answer_to(proxy, b"poi", b"soup") == b"poisoup"


@pytest.mark.parametrize("port", [Proxy, FaultyProxy])
def test_who_connects_last_leaves_nothing_to_the_garbage_collector(port: type[Proxy] | type[FaultyProxy]) -> None:
    """Some are accepted, and not served yet, when the port is closed; and their server never answers."""

    async def connect_and_close() -> None:
        clients = [socket.socket() for _ in range(10)]
        with socket.create_server(("127.0.0.1", 0), backlog=20) as server:
            async with port(server.getsockname()[1]) as between:
                for number, client in enumerate(clients):
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", between.port))
                    if number % 3 == 0:
                        await asyncio.sleep(0)
        for client in clients:
            client.close()

    gc.collect()
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        for _ in range(5):
            asyncio.run(connect_and_close())
        gc.collect()
    assert not [str(warning.message) for warning in left]
