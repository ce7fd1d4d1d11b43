"""`postroad.asgi.webhook`: signatures, one effect for each message, and 2xx only after the commit."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiosqlite
import httpx
import msgspec
import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks.webhooks import Webhook as OfficialWebhook
from starlette.applications import Starlette
from starlette.routing import Mount

from postroad import Consumer, InvalidSetting, Received, StoredMessage
from postroad.asgi import Webhook, webhook
from postroad.brokers.http.requests import Requests
from postroad.brokers.http.signatures import keys_for_signing
from postroad.events import Event, RequestFailed, RequestRefused, SecretsNotRead
from postroad.stores.sqlite import migrate_sqlite
from tests.destinations import a_page, stored

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Stock:
    """A consumer on SQLite: what its handlers have written and committed, and what was reported."""

    def __init__(self, path: Path) -> None:
        migrate_sqlite(path)
        self._path = path
        self.events: list[Event] = []
        self.down = False
        self.handling: asyncio.Event | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.consumer: Consumer[aiosqlite.Connection] = Consumer(
            name="stock", begin=self._begin, listeners=[self], heartbeat=None, handler_timeout="1m"
        )
        self.consumer.on(dict, type="order.created")(self._handle)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[aiosqlite.Connection]:
        if self.down:
            raise ConnectionRefusedError("no database")
        async with aiosqlite.connect(self._path, timeout=60) as connection:
            await connection.execute("create table if not exists effects (id text, number int)")
            yield connection
            await connection.commit()

    async def _handle(self, event: dict[str, Any], tx: aiosqlite.Connection, message: Received) -> None:
        if self.handling is not None:
            self.handling.set()
        await self.go_on.wait()
        await tx.execute("insert into effects values (?, ?)", (message.id, event["number"]))
        if event["number"] < 0:
            raise ValueError("a secret of the handler's")

    async def effects(self) -> list[int]:
        async with self._begin() as connection, connection.execute("select number from effects order by 1") as rows:
            return [row[0] async for row in rows]

    def refused(self) -> list[RequestRefused]:
        return [each for each in self.events if isinstance(each, RequestRefused)]


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    return Stock(tmp_path / "stock.sqlite")


@pytest.fixture
async def app(stock: Stock) -> AsyncIterator[Webhook]:
    async with webhook(stock.consumer, secrets=[SECRET, OLD_SECRET]) as app:
        yield app


@pytest.fixture
async def client(app: Webhook) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Starlette(routes=[Mount("/hooks", app)])) as client:
        yield client


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def request_of(
    *messages: StoredMessage, envelope: Any = "structured", secret: str = SECRET, age: float = 0
) -> dict[str, Any]:
    """What postroad's own publisher sends."""
    requests = Requests(envelope, 1 << 20, 100)
    now = datetime.now(UTC).timestamp() - age
    body, headers = requests.request([requests.part(each) for each in messages], keys_for_signing("s", [secret]), now)
    return {"content": body, "headers": headers}


@pytest.mark.parametrize("envelope", ["structured", "binary", "batched"])
async def test_a_message_has_its_effect_once(client: httpx.AsyncClient, stock: Stock, envelope: str) -> None:
    request = request_of(stored(7, headers={"tenant": "Zürich"}), envelope=envelope)
    for _ in range(3):
        answer = await client.post("/hooks/", **request)
        assert (answer.status_code, answer.content) == (204, b"")
    assert await stock.effects() == [7]
    assert (stock.consumer.stats().handled, stock.consumer.stats().duplicates) == (1, 2)


async def test_it_is_answered_only_after_the_commit(client: httpx.AsyncClient, stock: Stock) -> None:
    stock.handling = asyncio.Event()
    stock.go_on.clear()
    call = asyncio.create_task(client.post("/hooks/any/path", **request_of(stored(7))))
    await asyncio.wait_for(stock.handling.wait(), 60)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    stock.go_on.set()
    assert (await call).status_code == 204
    assert await stock.effects() == [7]


async def test_a_handler_that_fails_is_answered_with_500(client: httpx.AsyncClient, stock: Stock) -> None:
    bad = stored(7, payload=b'{"number":-1}')
    answer = await client.post("/hooks/", **request_of(bad))
    assert (answer.status_code, answer.text) == (500, "a handler failed")
    (event,) = (each for each in stock.events if isinstance(each, RequestFailed))
    assert (event.id, event.reason) == (str(bad.id), "ValueError: a secret of the handler's")
    assert await stock.effects() == []
    good = msgspec.structs.replace(bad, payload=b'{"number":7}')
    assert (await client.post("/hooks/", **request_of(good))).status_code == 204, "it does not count as processed"


async def test_a_batch_is_all_or_those_that_can_be(client: httpx.AsyncClient, stock: Stock) -> None:
    page = a_page(5)
    assert (await client.post("/hooks/", **request_of(*page, envelope="batched"))).status_code == 204
    bad = stored(8, payload=b'{"number":-1}')
    request = request_of(stored(6), bad, stored(7), envelope="batched")
    assert (await client.post("/hooks/", **request)).status_code == 500
    assert await stock.effects() == [1, 2, 3, 4, 5, 6, 7]


async def test_an_unavailable_database_is_answered_with_503(client: httpx.AsyncClient, stock: Stock) -> None:
    stock.down = True
    answer = await client.post("/hooks/", **request_of(stored(7)))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    stock.down = False
    assert (await client.post("/hooks/", **request_of(stored(7)))).status_code == 204


async def test_types_that_no_handler_takes_are_skipped(client: httpx.AsyncClient, stock: Stock) -> None:
    assert (await client.post("/hooks/", **request_of(stored(7, type="order.paid")))).status_code == 204
    assert await stock.effects() == []


async def test_what_no_handler_can_read_is_answered_with_422(client: httpx.AsyncClient) -> None:
    answer = await client.post("/hooks/", **request_of(stored(7, payload=b"[]")))
    assert answer.status_code == 422


# -- signatures ------------------------------------------------------------------------------------------------------


async def test_each_of_the_secrets_is_taken(client: httpx.AsyncClient) -> None:
    assert (await client.post("/hooks/", **request_of(stored(1), secret=OLD_SECRET))).status_code == 204


async def test_other_secrets_are_not(client: httpx.AsyncClient, stock: Stock) -> None:
    other = f"whsec_{b64encode(b'x' * 24).decode()}"
    answer = await client.post("/hooks/", **request_of(stored(1), secret=other))
    assert answer.status_code == 401
    assert await stock.effects() == []
    assert [each.status for each in stock.refused()] == [401]


@pytest.mark.parametrize("age", [301, -330, 86_400])
async def test_old_requests_are_not(client: httpx.AsyncClient, age: float) -> None:
    answer = await client.post("/hooks/", **request_of(stored(1), age=age))
    assert answer.status_code == 401
    assert "webhook-timestamp" in answer.text


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_nothing_that_is_signed_can_be_changed(client: httpx.AsyncClient, stock: Stock, change: str) -> None:
    request = request_of(stored(7))
    if change == "body":
        request["content"] = request["content"].replace(b"7", b"8")
    else:
        first = request["headers"][change]
        request["headers"][change] = first[:-1] + ("1" if first[-1] == "0" else "0")
    assert (await client.post("/hooks/", **request)).status_code == 401
    assert await stock.effects() == []


async def test_in_binary_mode_a_recorded_request_has_no_second_effect(client: httpx.AsyncClient, stock: Stock) -> None:
    """No header but webhook-id is signed, so none but that may decide what a message is."""
    request = request_of(stored(7), envelope="binary")
    assert (await client.post("/hooks/", **request)).status_code == 204
    request["headers"]["ce-source"] = "/elsewhere"
    assert (await client.post("/hooks/", **request)).status_code == 204
    request["headers"]["ce-id"] = "another"
    assert (await client.post("/hooks/", **request)).status_code == 422
    assert await stock.effects() == [7]


@pytest.mark.parametrize("envelope", ["structured", "batched"])
async def test_a_recorded_document_can_t_be_passed_off_as_another_message(
    client: httpx.AsyncClient, stock: Stock, envelope: str
) -> None:
    """Its content type is not signed: with another one, its body would be the payload of a message of any type."""
    request = request_of(stored(7), envelope=envelope)
    assert (await client.post("/hooks/", **request)).status_code == 204
    request["headers"]["content-type"] = "application/json"
    request["headers"]["ce-type"] = "order.created"
    handled = asyncio.Event()
    stock.handling = handled
    answer = await client.post("/hooks/", **request)
    assert (answer.status_code, handled.is_set()) == (422, False)
    assert "which its content type does not say" in answer.text


async def test_a_public_key(stock: Stock) -> None:
    key = Ed25519PrivateKey.generate()
    private = f"whsk_{b64encode(key.private_bytes_raw()).decode()}"
    public = f"whpk_{b64encode(key.public_key().public_bytes_raw()).decode()}"
    request = request_of(stored(7), secret=private)
    assert request["headers"]["webhook-signature"].startswith("v1a,")
    async with webhook(stock.consumer, secrets=public) as app, client_of(app) as client:
        assert (await client.post("/", **request)).status_code == 204
        request["headers"]["webhook-signature"] = "v1a," + b64encode(os.urandom(64)).decode()
        assert (await client.post("/", **request)).status_code == 401


async def test_a_file_with_secrets(stock: Stock, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{OLD_SECRET}\n")
    file.chmod(0o644)
    async with webhook(stock.consumer, secrets=file) as app, client_of(app) as client:
        assert (await client.post("/", **request_of(stored(1)))).status_code == 401
        file.write_text(f"{SECRET}\n{OLD_SECRET}\n")
        assert (await client.post("/", **request_of(stored(1)))).status_code == 204
    assert [type(each).__name__ for each in stock.events if hasattr(each, "file")] == ["PasswordFileReadable"]


async def test_a_file_that_is_changed_and_wrong_is_reported_once(stock: Stock, tmp_path: Path) -> None:
    """The last secrets that were right are used meanwhile, also when the file is gone."""
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)

    def reported() -> list[SecretsNotRead]:
        return [each for each in stock.events if isinstance(each, SecretsNotRead)]

    async with webhook(stock.consumer, secrets=file) as app, client_of(app) as client:

        async def post_twice() -> None:
            for _ in range(2):
                assert (await client.post("/", **request_of(stored(1)))).status_code == 204

        await post_twice()
        assert reported() == []
        file.write_text(f"{SECRET}\nhunter2\n")
        await post_twice()
        (event,) = reported()
        assert (event.setting, event.file) == ("secrets", str(file))
        assert "secret 2 has the wrong form" in str(event)
        assert "hunter2" not in str(event)
        file.unlink()
        await post_twice()
        assert "can't be read" in str(reported()[-1])
        assert len(reported()) == 2
        file.write_text(f"{SECRET}\n{OLD_SECRET}\n")
        await post_twice()
        assert (await client.post("/", **request_of(stored(1), secret=OLD_SECRET))).status_code == 204
        file.unlink()
        await post_twice()
        assert len(reported()) == 3, "another change"


# -- several senders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envelope", ["structured", "batched"])
async def test_the_secret_of_one_source_signs_no_other(stock: Stock, envelope: str) -> None:
    """Otherwise a partner could send a message of another one in advance, and the real one would be a duplicate."""
    secrets = {"/tests": [SECRET], "/partner": OLD_SECRET}
    async with webhook(stock.consumer, secrets=secrets) as app, client_of(app) as client:
        forged = request_of(stored(7), envelope=envelope, secret=OLD_SECRET)
        answer = await client.post("/", **forged)
        assert answer.status_code == 401
        assert answer.text == "its source is '/tests', which has another secret"
        assert (await client.post("/", **request_of(stored(7), envelope=envelope))).status_code == 204
    assert await stock.effects() == [7]


async def test_one_secret_of_two_sources_signs_both(stock: Stock) -> None:
    async with webhook(stock.consumer, secrets={"/a": SECRET, "/tests": SECRET}) as app, client_of(app) as client:
        assert (await client.post("/", **request_of(stored(7)))).status_code == 204
    assert await stock.effects() == [7]


async def test_where_the_source_is_not_signed_it_is_that_of_the_secret(stock: Stock) -> None:
    """So the same id of two senders are two messages, whatever the header ce-source says."""
    received: list[Received] = []

    @stock.consumer.on(dict, type="order.shipped")
    async def note(event: dict[str, Any], tx: aiosqlite.Connection, message: Received) -> None:
        received.append(message)

    secrets = {"/partner": SECRET, "/other": OLD_SECRET}
    request = stored(7, type="order.shipped")
    async with webhook(stock.consumer, secrets=secrets) as app, client_of(app) as client:
        for secret in (SECRET, OLD_SECRET, SECRET):
            answer = await client.post("/", **request_of(request, envelope="binary", secret=secret))
            assert answer.status_code == 204
    assert [(each.source, each.headers["ce-source"]) for each in received] == [
        ("/partner", "/tests"),
        ("/other", "/tests"),
    ]


async def test_the_official_library_signs(client: httpx.AsyncClient, stock: Stock) -> None:
    """A webhook of another program: its id is webhook-id, and its type is in the payload."""
    body = '{"type":"order.created","number":7}'
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "content-type": "application/json",
    }
    headers["webhook-signature"] = OfficialWebhook(SECRET).sign("msg_1", now, body)
    for _ in range(2):
        assert (await client.post("/hooks/", content=body, headers=headers)).status_code == 204
    assert await stock.effects() == [7]


@pytest.mark.parametrize("form", [to_binary_event, to_structured_event])
async def test_an_event_of_the_cloudevents_sdk(client: httpx.AsyncClient, stock: Stock, form: Any) -> None:
    event = CloudEvent({"type": "order.created", "source": "/x", "id": "1", "specversion": "1.0"}, {"number": 7})
    message = form(event)
    headers = dict(message.headers)
    now = datetime.now(UTC)
    headers |= {"webhook-id": "1", "webhook-timestamp": str(int(now.timestamp()))}
    headers["webhook-signature"] = OfficialWebhook(SECRET).sign("1", now, message.body.decode())
    assert (await client.post("/hooks/", content=message.body, headers=headers)).status_code == 204
    assert await stock.effects() == [7]


# -- wrong requests --------------------------------------------------------------------------------------------------


async def test_wrong_requests(client: httpx.AsyncClient, stock: Stock) -> None:
    assert (await client.get("/hooks/")).status_code == 405
    assert (await client.post("/hooks/")).status_code == 401
    assert (await client.post("/hooks/", content=b"x" * (5 << 20))).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    assert (await client.post("/hooks/", content=endless())).status_code == 413
    bad = request_of(stored(1))
    body = b"[{}, 1]"
    now = datetime.now(UTC)
    bad["headers"]["webhook-signature"] = OfficialWebhook(SECRET).sign(bad["headers"]["webhook-id"], now, body.decode())
    bad["headers"]["webhook-timestamp"] = str(int(now.timestamp()))
    bad["headers"]["content-type"] = "application/cloudevents-batch+json"
    assert (await client.post("/hooks/", content=body, headers=bad["headers"])).status_code == 422
    assert len(stock.refused()) == 1, "more are reported together, later"
    assert await stock.effects() == []


async def test_the_whole_application_has_a_lifespan(stock: Stock) -> None:
    app = webhook(stock.consumer, secrets=SECRET)
    sent: list[str] = []
    incoming = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(incoming)}

    async def send(event: Any) -> None:
        sent.append(event["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_lifespan_that_fails_says_why(stock: Stock) -> None:
    stock.down = True
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(event: Any) -> None:
        sent.append(event)

    await webhook(stock.consumer, secrets=SECRET)({"type": "lifespan"}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "no database" in sent[0]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"secrets": ""}, "secrets holds no secret"),
        ({"secrets": []}, "secrets holds no secret"),
        ({"secrets": "hunter2"}, "secret 1 has the wrong form"),
        ({"secrets": f"whsk_{b64encode(b'x' * 32).decode()}"}, "whpk_"),
        ({"secrets": Path("/no/such")}, "can't be read"),
        ({"secrets": 7}, "secrets must be texts"),
        ({"secrets": {}}, "secrets is a mapping, so it must have a secret for each source"),
        ({"secrets": {"": SECRET}}, "secrets is a mapping, so it must have a secret for each source"),
        ({"secrets": {"/a": SECRET, "/b": "hunter2"}}, r"secrets\['/b'\]: secret 1 has the wrong form"),
        ({"secrets": SECRET, "tolerance": "soon"}, "tolerance is 'soon'"),
        ({"secrets": SECRET, "max_size": 0}, "max_size is 0"),
    ],
)
def test_bad_input(stock: Stock, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as error:
        webhook(stock.consumer, **arguments)
    assert "hunter2" not in str(error.value)
