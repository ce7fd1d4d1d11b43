"""The middlewares: the id a request came with, or a new one, is in force inside it and part of the answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import django
import httpx
import pytest
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import override_settings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from postroad import Outbox, correlation_id
from postroad.asgi import CorrelationMiddleware
from postroad.correlation import request_correlation_id
from postroad.django.middleware import CorrelationMiddleware as DjangoMiddleware
from postroad.stores.memory import MemoryStore
from postroad.trace_context import NO_CONTEXT, trusted_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="tests", USE_TZ=True)
    django.setup()


# -- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["a", "order-7", " padded ", "x" * 255, "a b"])
def test_a_well_formed_id_is_used(output: str) -> None:
    assert request_correlation_id(output, TRACEPARENT) == output.strip()


@pytest.mark.parametrize("output", ["", "   ", "x" * 256, "a\nb", "a\x00", "a\x7f", "é", "\u2028", None])
def test_any_other_id_is_ignored(output: str | None) -> None:
    assert request_correlation_id(output, TRACEPARENT) == TRACE
    new = UUID(request_correlation_id(output, None))
    assert new.version == 7
    assert str(new) != request_correlation_id(output, None)


@pytest.mark.parametrize(
    "traceparent",
    [
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-00f067aa0ba902b7-01-more",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7-01\n",
        TRACE,
        "",
    ],
)
def test_a_malformed_traceparent_is_ignored(traceparent: str) -> None:
    assert request_correlation_id(None, traceparent) != TRACE
    assert trusted_context(traceparent) is NO_CONTEXT


def test_a_well_formed_traceparent_is_passed_on() -> None:
    assert trusted_context(f" {TRACEPARENT}").traceparent == TRACEPARENT
    assert trusted_context(None) is NO_CONTEXT
    assert trusted_context(f"01-{TRACE}-00f067aa0ba902b7-01-{'x' * 255}") is NO_CONTEXT


def test_a_later_version_of_traceparent_may_say_more() -> None:
    assert request_correlation_id(None, f"01-{TRACE}-00f067aa0ba902b7-01-more") == TRACE


# -- ASGI ------------------------------------------------------------------------------------------------------------


async def say_id(_: Request) -> PlainTextResponse:
    return PlainTextResponse(str(correlation_id()), headers={"X-Correlation-ID": "the application's own"})


async def stream_id(_: Request) -> StreamingResponse:
    async def body() -> Any:
        yield str(correlation_id())

    return StreamingResponse(body())


def asgi_client() -> httpx.AsyncClient:
    routes = [Route("/", say_id), Route("/stream", stream_id)]
    app = Starlette(routes=routes, middleware=[Middleware(CorrelationMiddleware)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


async def test_asgi_gives_messages_the_trace_they_belong_to() -> None:
    store = MemoryStore()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with store.begin() as transaction:
            Outbox(source="/shop").add(transaction, "1", type="t")
            Outbox(source="/shop").add(transaction, "2", type="t", headers={"traceparent": "its own"})
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    transport = httpx.ASGITransport(CorrelationMiddleware(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        await client.get("/", headers={"traceparent": TRACEPARENT})
        await client.get("/", headers={"traceparent": "malformed", "tracestate": "rojo=1"})
        states = [("tracestate", "rojo=1"), ("tracestate", "congo=2")]  # one list, in two headers
        await client.get("/", headers=[("traceparent", TRACEPARENT), *states])
    own = {"traceparent": "its own"}
    traced = {"traceparent": TRACEPARENT}
    headers = [message.headers for message in store._log]
    assert headers == [traced, own, {}, own, traced | {"tracestate": "rojo=1,congo=2"}, own]


def test_django_gives_messages_the_trace_they_belong_to() -> None:
    store = MemoryStore()

    def view(_: HttpRequest) -> HttpResponse:
        with store.begin() as transaction:
            Outbox(source="/shop").add(transaction, "1", type="t")
        return HttpResponse()

    request = HttpRequest()
    request.META |= {"HTTP_TRACEPARENT": TRACEPARENT, "HTTP_TRACESTATE": "rojo=1"}
    DjangoMiddleware(view)(request)
    assert [message.headers for message in store._log] == [{"traceparent": TRACEPARENT, "tracestate": "rojo=1"}]


@pytest.mark.parametrize("path", ["/", "/stream"])
async def test_asgi(path: str) -> None:
    async with asgi_client() as client:
        given = await client.get(path, headers={"X-Correlation-Id": "order-7", "traceparent": TRACEPARENT})
        traced = await client.get(path, headers={"traceparent": TRACEPARENT})
        new = await client.get(path)
    assert (given.text, given.headers.get_list("x-correlation-id")) == ("order-7", ["order-7"])
    assert (traced.text, traced.headers.get_list("x-correlation-id")) == (TRACE, [TRACE])
    assert new.headers.get_list("x-correlation-id") == [new.text]
    assert UUID(new.text).version == 7
    assert correlation_id() is None


async def test_asgi_websocket_and_lifespan() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], correlation_id()))
        await send({"type": f"{scope['type']}.accept"})

    async def send(event: Any) -> None:
        seen.append(event)

    async def receive() -> Any:
        raise NotImplementedError

    middleware = CorrelationMiddleware(app)
    await middleware({"type": "lifespan"}, receive, send)
    await middleware({"type": "websocket", "headers": [(b"X-Correlation-Id", b"w1")]}, receive, send)
    assert seen == [
        ("lifespan", None),
        {"type": "lifespan.accept"},
        ("websocket", "w1"),
        {"type": "websocket.accept", "headers": [(b"x-correlation-id", b"w1")]},
    ]


# -- Django ----------------------------------------------------------------------------------------------------------


def view(_: HttpRequest) -> HttpResponse:
    return HttpResponse(str(correlation_id()))


async def async_view(_: HttpRequest) -> HttpResponse:
    return HttpResponse(str(correlation_id()))


def failing_view(_: HttpRequest) -> HttpResponse:
    raise LookupError("no such order")


def urls() -> Any:
    from django.urls import path

    return type("Urls", (), {"urlpatterns": [path("", view), path("async", async_view), path("failing", failing_view)]})


@pytest.fixture
def django_site() -> Any:
    with override_settings(ROOT_URLCONF=urls(), MIDDLEWARE=["postroad.django.middleware.CorrelationMiddleware"]):
        yield


@pytest.mark.parametrize("path", ["/", "/async"])
def test_django_sync(django_site: None, path: str) -> None:
    client = Client()
    given = client.get(path, headers={"X-Correlation-Id": "order-7"})
    traced = client.get(path, headers={"traceparent": TRACEPARENT})
    new = client.get(path, headers={"X-Correlation-Id": "x" * 300})
    assert (given.content, given["x-correlation-id"]) == (b"order-7", "order-7")
    assert (traced.content, traced["x-correlation-id"]) == (TRACE.encode(), TRACE)
    assert UUID(new.content.decode()) == UUID(new["x-correlation-id"])
    assert correlation_id() is None


@pytest.mark.parametrize("path", ["/", "/async"])
async def test_django_async(django_site: None, path: str) -> None:
    given = await AsyncClient().get(path, headers={"X-Correlation-Id": "order-7"})
    assert (given.content, given["x-correlation-id"]) == (b"order-7", "order-7")
    assert correlation_id() is None


def test_django_says_the_id_of_a_request_that_failed(django_site: None) -> None:
    failed = Client(raise_request_exception=False).get("/failing", headers={"X-Correlation-Id": "order-7"})
    assert (failed.status_code, failed["x-correlation-id"]) == (500, "order-7")


async def test_django_runs_the_middleware_as_what_the_view_is(
    django_site: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a thread in between, which Django says when it needs one."""

    async def asynchronous(_: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert iscoroutinefunction(DjangoMiddleware(asynchronous))
    assert not iscoroutinefunction(DjangoMiddleware(view))
    with caplog.at_level("DEBUG", logger="django.request"), override_settings(DEBUG=True):
        await AsyncClient().get("/async")
    assert not [each for each in caplog.messages if "adapted" in each]
