"""What the webhooks benchmark talks to, and its yardstick, each in a process of its own.

Run by the benchmarks as `python -m benchmarks.webhook_process serve`, which prints its port and answers every request
with 204; or as `… bare URL MESSAGES AT_ONCE`: a loop with aiohttp that sends ready-made requests, so many at once.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

import aiohttp

from benchmarks.rabbitmq_yardsticks import stored
from benchmarks.subject import report, wait_for_go
from postroad.brokers.http.requests import Requests
from postroad.brokers.http.signatures import keys_for_signing

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Server(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._data, 0, end)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < size:
                return
            self._data = self._data[size:]
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")  # type: ignore[attr-defined]


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def bare(url: str, messages: int, at_once: int) -> float:
    requests, keys = Requests("structured", 1 << 20, 1), keys_for_signing("secrets", [SECRET])
    ready = [requests.request([requests.part(stored(n))], keys, time.time()) for n in range(1, messages + 1)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as session:

        async def work() -> None:
            while ready:
                body, headers = ready.pop()
                async with session.post(url, data=body, headers=headers) as response:
                    await response.read()
                    assert response.status == 204

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        return time.perf_counter() - began


def main() -> None:
    if sys.argv[1] == "serve":
        asyncio.run(serve())
        return
    url, messages, at_once = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    used = wait_for_go()
    seconds = asyncio.run(bare(url, messages, at_once))
    report(messages=messages, seconds=seconds, settings=f"{at_once} at once", starting_cpu_seconds=used)


if __name__ == "__main__":
    main()
