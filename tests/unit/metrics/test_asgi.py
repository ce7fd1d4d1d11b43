"""The same answers through an ASGI server, mounted anywhere."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from postroad.metrics import Metrics, metrics_app


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/postroad/metrics", 200), ("/postroad/", 200), ("/postroad/livez", 200), ("/postroad/readyz", 503),
        ("/postroad/other", 404),
    ],
)  # fmt: skip
async def test_mounted(path: str, status: int) -> None:
    app = Starlette(routes=[Mount("/postroad", metrics_app(Metrics()))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.example") as client:
        answer = await client.get(path)
        assert answer.status_code == status
        if status == 200 and "livez" not in path:
            assert "postroad_build_info" in answer.text
        assert (await client.head(path)).content == b""


async def test_alone() -> None:
    transport = httpx.ASGITransport(metrics_app(Metrics()))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        assert "postroad_build_info" in (await client.get("/metrics")).text
        assert (await client.post("/metrics")).status_code == 405
