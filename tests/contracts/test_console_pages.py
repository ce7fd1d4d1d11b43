"""What the pages of the console show: on SQLite and PostgreSQL, with hostile content, and of several databases."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from postroad import Message, Outbox, Received, Refusal
from postroad.admin import Admin, By, DeadLetterFilter, State, examine
from postroad.brokers.memory import MemoryBroker, MemoryQueue
from postroad.codecs import Zlib
from postroad.console import Redaction
from postroad.console.pages.message import PAYLOAD_BYTES
from postroad.retry import Backoff
from postroad.stores.sqlite import migrate_sqlite
from tests.consoles import Browser, browsing, url_of
from tests.consumers import Numbered, consumed, consumer, put
from tests.contracts.test_admin import LATER, admin_of, id_of, refusing, run_relay
from tests.contracts.test_admin_dead_letters import Inboxes, inboxes, with_dead  # noqa: F401 - a fixture
from tests.logs import Arrivals, Log, log_fixture, numbered
from tests.places import on_sqlite

log = log_fixture("sqlite", "postgresql15", "postgresql18")
ONCE = Backoff(max_attempts=1)
HOSTILE = "<script>alert(1)</script>\u202e'\"><img src=x onerror=alert(1)>"
PAGES = ("", "trouble", "messages", "lanes", "latency", "time-machine", "inbox", "audit", "doctor", "key")


@pytest.fixture
async def admin(log: Log) -> AsyncIterator[Admin]:
    async with admin_of(log) as admin:
        yield admin


@pytest.fixture
async def browser(log: Log) -> AsyncIterator[Browser]:
    async with browsing(url_of(log)) as browser:
        yield browser


async def test_an_empty_database_says_what_to_do(browser: Browser) -> None:
    assert "The first relay creates one" in (await browser.get("")).text
    assert "No message fails" in (await browser.get("trouble")).text
    assert "No relay has run yet" in (await browser.get("messages")).text
    assert "No consumer runs on this database" in (await browser.get("inbox")).text
    assert "No change is recorded" in (await browser.get("audit")).text
    for page in PAGES:
        assert (await browser.get(page)).status == 200


async def test_now_has_a_sentence_and_a_button_for_what_is_wrong(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1, 2))
    await run_relay(log, Arrivals())
    assert "No relay is running, and no message waits" in (await browser.get("")).text
    await log.add(*numbered(3, 4))
    await run_relay(log, refusing(3), retry=ONCE)
    await admin.pause("default", By("ben", "upgrade of the broker"))
    page = await _fresh(browser)
    assert "Paused, by ben since" in page.text
    assert "upgrade of the broker" in page.text
    assert "1 dead message, since" in page.text
    assert page.links["Resume"].endswith("/do/resume?sink=default")
    assert page.links["See what is dead"].endswith("/trouble")
    assert "postroad resume default" in page.text
    assert re.search(r'<svg class="chart throughput".*role="img"', page.source)
    assert "ben: pause sink default" in page.source  # a mark in the chart


async def test_trouble_without_failures_says_that_something_else_is_wrong(
    log: Log, admin: Admin, browser: Browser
) -> None:
    await log.add(*numbered(1, 2))
    await run_relay(log, Arrivals())
    assert "Something else needs attention" not in (await browser.get("trouble")).text
    await admin.pause("default", By("ben", "upgrade of the broker"))
    await log.add(*numbered(3, 3))
    await _fresh(browser)
    page = await browser.get("trouble")
    assert "No message fails" in page.text
    assert "Something else needs attention: see Now" in page.text


async def _fresh(browser: Browser) -> Any:
    """Now, as the database is now: a look is shared for a second."""
    console: Any = browser.client._transport.app  # type: ignore[attr-defined]
    console._shared.databases[browser.name].poller.forget()
    return await browser.get("")


async def test_a_message_has_its_history_and_the_reason(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1, 2, key="k"))
    await run_relay(log, refusing(1), retry=LATER)
    head = await browser.get(f"message/{await id_of(admin, 1)}")
    assert "attempt 1 failed: no 1" in head.text
    behind = await browser.get(f"message/{await id_of(admin, 2)}")
    assert behind.links["k"].endswith("/key?key=k")
    found = await browser.get("find", q=str(await id_of(admin, 1))[-6:])
    assert found.headers["location"].endswith(f"/message/{await id_of(admin, 1)}")
    key = await browser.get("key", key="k")
    assert 'class="head"' in key.source
    unknown = await browser.get(f"message/{UUID(int=7)}")
    assert (unknown.status, "no message has" in unknown.text.lower()) == (200, True)


async def test_a_payload_needs_its_right_and_each_look_is_in_the_audit(log: Log, admin: Admin) -> None:
    secret = {"card": {"number": "4242"}, "password": "hunter2", "items": [{"api_key": "k-123"}]}
    await log.add(Message(secret, type="order"))
    await run_relay(log, Arrivals())
    id = await id_of(admin, 1)
    async with browsing(url_of(log), payloads=False) as browser:
        page = await browser.get(f"message/{id}")
        assert "You may not read payloads" in page.text
        assert "4242" not in page.source
    async with browsing(url_of(log), payloads=True) as browser:
        page = await browser.get(f"message/{id}")
        assert "4242" not in page.source
        assert await admin.audit() == []
        shown = await browser.send(page.form("/payload"), reason="a complaint")
        assert '"number": "4242"' in shown.text
        assert "hunter2" not in shown.source
        assert "k-123" not in shown.source
        assert "some values are hidden by their names" in shown.text
    (entry,) = await admin.audit()
    assert (entry.who, entry.command, entry.reason) == ("anna", "view_payload", "a complaint")
    assert str(id) in str(entry.arguments)
    async with browsing(url_of(log), redaction=Redaction(["number"])) as browser:
        shown = await browser.send((await browser.get(f"message/{id}")).form("/payload"))
        assert "4242" not in shown.source
        assert "hunter2" in shown.source


@pytest.mark.parametrize("size", [70_000, PAYLOAD_BYTES + 1])
async def test_a_large_payload_is_redacted(log: Log, admin: Admin, browser: Browser, size: int) -> None:
    await log.add(Message({"id": 1, "credentials": {"user": "hunter2"}, "note": "\u20ac" * (size // 3)}, type="large"))
    shown = await browser.send((await browser.get(f"message/{await id_of(admin, 1)}")).form("/payload"))
    assert re.search(r'"id": ?1', shown.text)
    assert "[hidden]" in shown.text
    assert "hunter2" not in shown.source
    assert "some values are hidden by their names" in shown.text


async def test_a_compressed_payload_is_said_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    migrate_sqlite(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        id = Outbox(source="/tests", codecs=[Zlib()]).add(connection, {"text": "x" * 5000}, type="large")
    async with browsing(f"sqlite:///{file}") as browser:
        page = await browser.get(f"message/{id}")
        assert "compressed (" in page.text
        shown = await browser.send(page.form("/payload"))
        assert "The payload is not shown: it is compressed" in shown.text


async def test_hostile_content_is_shown_and_does_nothing(log: Log, admin: Admin, browser: Browser) -> None:
    broker = MemoryBroker()
    broker.refuse(lambda message: Refusal(message.position, f"refused: {HOSTILE}", permanent=True))
    await log.add(Message(HOSTILE, type=HOSTILE, key=HOSTILE, headers={"x": HOSTILE}))
    await run_relay(log, broker)
    await admin.hold("default", HOSTILE, By(HOSTILE, HOSTILE))
    id = await id_of(admin, 1)
    for path in (*PAGES, f"message/{id}", "do/drop?all=1", f"do/hold?key={HOSTILE}", f"key?key={HOSTILE}"):
        page = await browser.follow(f"/log/{path}")
        assert page.status in {200, 400}
        assert "<script>alert" not in page.source
        assert "<img" not in page.source
        assert "\u202e" not in page.source
    shown = await browser.send((await browser.get(f"message/{id}")).form("/payload"))
    assert "<script>alert" not in shown.source
    assert "\\u202e" in shown.source
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.source
    done = await browser.change("release", key=HOSTILE, sink="default")
    assert "<img" not in done.source
    assert await admin.held_keys() == []


async def test_passwords_in_errors_are_masked(log: Log, browser: Browser) -> None:
    broker = MemoryBroker()
    broker.refuse(lambda message: Refusal(message.position, "amqp://user:hunter2@rabbit refused", permanent=True))
    await log.add(*numbered(1))
    await run_relay(log, broker)
    for path in ("trouble", "messages", "do/drop?all=1"):
        page = await browser.follow(f"/log/{path}")
        assert "hunter2" not in page.text
        assert "user:***@rabbit" in page.text


async def test_messages_are_filtered(log: Log, browser: Browser) -> None:
    await log.add(*numbered(1, 2, 3), Message(b"4", type="other", key="k"))
    await run_relay(log, refusing(2), retry=ONCE)
    assert (await browser.get("messages")).source.count("<tr>") == 5
    assert (await browser.get("messages", state="dead")).source.count("<tr>") == 2
    assert (await browser.get("messages", type="other")).source.count("<tr>") == 2
    assert "No message matches" in (await browser.get("messages", key="none")).text
    assert "State is 'x'; it must be" in (await browser.get("messages", state="x")).text
    assert "Since is 'x'; it must be a time" in (await browser.get("messages", since="x")).text


async def test_the_audit_is_searched_and_exported(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(*numbered(1))
    await run_relay(log, Arrivals())
    await admin.pause("default", By("ben", "=cmd()|'x'!A1"))
    await admin.resume("default", By("carla", "mended"))
    assert "carla" in (await browser.get("audit")).text
    assert "ben" not in (await browser.get("audit", who="carla")).text
    assert "No line matches" in (await browser.get("audit", text="none")).text
    (header, line) = csv.reader(io.StringIO((await browser.get("audit.csv", who="ben")).source))
    assert dict(zip(header, line, strict=True))["reason"] == "'=cmd()|'x'!A1"
    exported = msgspec.json.decode((await browser.get("audit.json")).source)
    assert [entry["who"] for entry in exported] == ["carla", "ben"]


async def test_passwords_are_masked_in_what_is_exported(log: Log, admin: Admin, browser: Browser) -> None:
    await run_relay(log, Arrivals())
    reason = 'connected with password="hunter2" and amqp://anna:hunter2@host'
    await admin.hold("default", 'pwd="hunter2"', By("ben", reason))
    exported = await browser.get("audit.json")
    (entry,) = msgspec.json.decode(exported.source)
    assert entry["reason"] == "connected with password=*** and amqp://anna:***@host"
    assert entry["arguments"] == {"sink": "default", "key": "pwd=***"}
    table = await browser.get("audit.csv")
    (header, line) = csv.reader(io.StringIO(table.source))
    assert msgspec.json.decode(dict(zip(header, line, strict=True))["arguments"]) == entry["arguments"]
    assert "hunter2" not in exported.source + table.source


async def test_a_key_of_digits_is_found(log: Log, admin: Admin, browser: Browser) -> None:
    await log.add(Message(b"1", type="order"))
    ending = str(await id_of(admin, 1))[-4:]
    found = await browser.get("find", q=ending)
    assert found.headers["location"].endswith(f"/message/{await id_of(admin, 1)}")
    await log.add(Message(b"2", type="order", key=ending))
    assert (await browser.get("find", q=ending)).headers["location"].endswith(f"/key?key={ending}")
    whole = await browser.get("find", q=str(await id_of(admin, 1)))
    assert whole.headers["location"].endswith(f"/message/{await id_of(admin, 1)}")


async def test_an_examination_is_shared(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.console.database.EXAMINED_SECONDS", 1000.0)
    asked: list[str] = []

    async def counting(url: str, **options: Any) -> Any:
        asked.append(url)
        return await examine(url, **options)

    monkeypatch.setattr("postroad.console.database.examine", counting)
    async with browsing(url_of(log)) as browser:
        pages = await asyncio.gather(*(browser.get("doctor") for _ in range(10)))
        assert {page.status for page in pages} == {200}
        assert len(set(re.findall(r'As of <time datetime="([^"]+)"', "".join(page.source for page in pages)))) == 1
        assert len(asked) == 1
        await run_relay(log, Arrivals())
        await browser.change("pause", sink="default")
        await browser.get("doctor")
        assert len(asked) == 2, "a change is seen at once"


async def test_a_database_that_can_not_be_reached(tmp_path: Path) -> None:
    async with browsing("postgresql://nobody@127.0.0.1:1/none") as browser:
        page = await browser.get("")
        assert (page.status, "The database can't be read" in page.text) == (200, True)
        assert (await browser.get("messages")).status == 503
        assert (await browser.get("doctor")).status == 200
    async with browsing(f"sqlite:///{tmp_path}/none.sqlite") as browser:
        assert "postroad migrate" in (await browser.get("messages")).text


# -- consumers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()


async def test_dead_letters_are_shown_retried_and_dropped(inboxes: Inboxes, queue: MemoryQueue) -> None:  # noqa: F811
    it, failing = await with_dead(inboxes, queue, 1, 2)
    async with browsing(inboxes.url, consumers=[it]) as browser, inboxes.admin() as admin:
        page = await browser.get("inbox")
        assert "no shelf for 1" in page.text
        first = (await admin.dead_letters(DeadLetterFilter())).letters[-1]
        letter = await browser.get("inbox/letter", consumer="stock", id=first.id)
        assert "LookupError: no shelf for 1" in letter.text
        shown = await browser.send(letter.form("/payload"))
        assert '"number": 1' in shown.text
        assert (await admin.audit(1))[0].command == "view_payload"
        failing.numbers.clear()
        done = await browser.change("retry-letters", consumer="stock", id=first.id, reason="a new shelf")
        assert "1 dead letter will be handled again" in done.text
        assert (await consumed(it)).handled == 1
        await browser.change("drop-letters", consumer="stock", all="1", reason="not needed")
        assert (await admin.dead_letters(DeadLetterFilter())).letters == []
        assert [entry.who for entry in await admin.audit()] == ["anna"] * 3


async def test_letters_of_an_unknown_consumer_are_listed_only(inboxes: Inboxes, queue: MemoryQueue) -> None:  # noqa: F811
    await with_dead(inboxes, queue, 1)
    async with browsing(inboxes.url) as browser:
        page = await browser.get("inbox")
        assert "start the console with" in page.text
        refused = await browser.get("do/retry-letters", consumer="stock", all="1")
        assert "Consumer is 'stock', and this console knows none" in refused.text


# -- several databases -----------------------------------------------------------------------------------------------


async def test_the_causation_graph_crosses_databases(log: Log, admin: Admin, tmp_path: Path) -> None:
    queue = MemoryQueue()
    place = on_sqlite("aiosqlite", tmp_path / "stock.sqlite")
    it = consumer(place, queue)
    outbox = Outbox(source="/stock")

    @it.on(Numbered, type="order")
    async def handle(event: Numbered, tx: Any, _: Received) -> None:
        await outbox.add(tx, Numbered(event.number), type="parcel")

    await log.add(Message(b'{"number":1}', type="order"))
    await run_relay(log, MemoryBroker(queue))
    await consumed(it)
    put(queue)
    urls = {"log": url_of(log), "stock": f"sqlite:///{tmp_path}/stock.sqlite"}
    async with browsing(urls) as browser:
        page = await browser.get(f"message/{await id_of(admin, 1)}")
        assert "stock handled it" in page.text
        assert re.search(r"parcel.*stock, …", page.text)
        (caused,) = set(re.findall(r'href="(/stock/message/[^"]+)"', page.source))
        back = await browser.follow(caused)
        assert f'href="/log/message/{await id_of(admin, 1)}"' in back.source
        overview = await browser.follow("/")
        assert {"log", "stock"} <= set(overview.links)


@asynccontextmanager
async def hung() -> AsyncIterator[tuple[str, list[int]]]:
    """The URL of a database that takes connections and never answers, and how many it has taken."""
    taken = [0]

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken[0] += 1
        while await reader.read(1000):
            pass
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        yield f"postgresql://anna:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/hung", taken


async def test_a_database_that_hangs_is_left_out_after_its_first_try(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    migrate_sqlite(file)
    ids: list[UUID] = []
    with closing(sqlite3.connect(file)) as connection, connection:
        for _ in range(4):
            ids.append(
                Outbox(source="/tests").add(connection, b"x", type="link", causation_id=str(ids[-1]) if ids else None)
            )
    async with hung() as (url, taken), browsing({"log": f"sqlite:///{file}", "hung": url}) as browser:
        page = await browser.get(f"message/{ids[0]}")
        assert "4 steps, in 1 databases" in page.source
        assert "Not asked, because it can't be read: hung" in page.text
        overview = await browser.follow("/")
        assert "The database can't be read. the database has not answered within 3 seconds" in overview.text
        assert "No relay has run yet" in overview.text
        assert taken == [1], "it is not asked again while it hangs"


def test_states_are_shown_as_words() -> None:
    assert all(re.fullmatch("[a-z]+", state) for state in State)
