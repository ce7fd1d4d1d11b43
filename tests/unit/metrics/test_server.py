"""The server answers three paths, and neither a hostile client nor an error disturbs what runs beside it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from postroad import InvalidSetting
from postroad.brokers.memory import MemoryBroker
from postroad.metrics import Metrics, MetricsServer, server
from postroad.relay import Relay
from tests.logs import MemoryLog
from tests.polling import until


async def raw(port: int, request: bytes, *, end: bool = True) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except TimeoutError:
        raise  # the server did not close it
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def get(port: int, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.request(method, f"http://127.0.0.1:{port}{path}")


async def test_metrics_and_probes_are_served() -> None:
    metrics, log = Metrics(), MemoryLog()
    async with MetricsServer(metrics, port=0) as serving:
        assert (await get(serving.port, "/readyz")).status_code == 503
        assert (await get(serving.port, "/livez")).status_code == 200
        async with Relay(log.store, MemoryBroker(), listeners=[metrics]) as relay:
            ready = await get(serving.port, "/readyz?verbose")
            assert (ready.status_code, ready.json()["checks"][0]["subject"]) == (200, "relay default")
            relay.stop()
            assert (await get(serving.port, "/readyz")).status_code == 503
            assert (await get(serving.port, "/livez")).status_code == 200
        page = await get(serving.port, "/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'postroad_relay_lanes_lost_total{sink="default"} 0\n' in page.text


async def test_other_paths_and_methods_are_refused() -> None:
    async with MetricsServer(Metrics(), port=0) as serving:
        assert (await get(serving.port, "/")).status_code == 404
        assert (await get(serving.port, "/metrics/../etc")).status_code == 404
        assert (await get(serving.port, "/metrics", "POST")).status_code == 405
        head = await get(serving.port, "/metrics", "HEAD")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 100


@pytest.mark.parametrize(
    "request_",
    [
        b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET metrics HTTP/1.1\r\n\r\n",
        b"get /metrics HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/2\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X-Long: " + b"a" * 100_000 + b"\r\n\r\n", b"\0" * 50_000,
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused(request_: bytes) -> None:
    async with MetricsServer(Metrics(), port=0) as serving:
        answer = await raw(serving.port, request_)
        assert answer.startswith(b"HTTP/1.1 400 ") or not answer
        assert (await get(serving.port, "/livez")).status_code == 200


async def test_slow_clients_are_cut_off_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    async with MetricsServer(Metrics(), port=0) as serving:
        slow = [asyncio.create_task(raw(serving.port, b"GET /metr", end=False)) for _ in range(5)]
        assert (await get(serving.port, "/livez")).status_code == 200
        assert await asyncio.gather(*slow) == [b""] * 5


async def test_many_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 60.0)
    async with MetricsServer(Metrics(), port=0) as serving:
        idle = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(server.MOST_CONNECTIONS)]
        await until(lambda: len(serving._serving) == server.MOST_CONNECTIONS)
        assert await raw(serving.port, b"GET /livez HTTP/1.1\r\n\r\n") == b""
        for _, writer in idle:
            writer.transport.abort()
        await until(lambda: not serving._serving)
        assert (await raw(serving.port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_an_error_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Metrics):
        def read(self) -> Any:
            raise LookupError("broken")

    async with MetricsServer(Broken(), port=0) as serving:
        assert (await get(serving.port, "/metrics")).status_code == 500
        assert (await get(serving.port, "/livez")).status_code == 200
    assert "/metrics could not be answered: LookupError('broken')" in caplog.text


async def test_a_port_that_is_in_use_is_a_wrong_setting() -> None:
    async with MetricsServer(Metrics(), port=0) as serving:
        with pytest.raises(InvalidSetting, match=rf"metrics_port {serving.port}: .*[Aa]ddress already in use"):
            await MetricsServer(Metrics(), port=serving.port).__aenter__()
    with pytest.raises(InvalidSetting, match="metrics_host is 'nowhere.invalid'"):
        await MetricsServer(Metrics(), port=0, host="nowhere.invalid").__aenter__()


async def test_a_client_that_is_being_answered_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(30):
        async with MetricsServer(Metrics(), port=0) as serving:
            _, writer = await asyncio.open_connection("127.0.0.1", serving.port)
            await get(serving.port, "/livez")
        writer.transport.abort()


async def test_the_probes_are_json() -> None:
    async with MetricsServer(Metrics(), port=0) as serving:
        assert json.loads((await get(serving.port, "/livez")).text) == {"ok": True, "checks": []}
