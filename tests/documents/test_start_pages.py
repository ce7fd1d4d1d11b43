"""The pages of *Start* are followed as a reader would: files, commands, a web server, and what they print."""

from __future__ import annotations

import ast
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import event

from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import outbox_messages
from tests.documents.reader import PORT, ROOT, Reader, alike, blocks, curl, imported, installed, packages, steps
from tests.services.postgresql import PostgreSQL

DOCS = ROOT / "docs"
ON_SQLITE = ["quickstart", "fastapi", "litestar", "flask", "django"]
COMMANDS = {"uvicorn": "uvicorn", "flask": "flask", "django-admin": "django", "postroad": "postroad[cli"}
"""Commands that a page types, and what installs them."""


@pytest.mark.parametrize("name", ON_SQLITE)
def test_it_does_what_it_says(name: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(DOCS / f"{name}.md")
    assert len(reader.ran) >= 6


def test_postgresql_and_rabbitmq(tmp_path: Path, postgresql15: PostgreSQL, vhost: str) -> None:
    postgresql15.start()
    values = {"POSTROAD_DATABASE": postgresql15.create_database(), "POSTROAD_TO": vhost}
    reader = Reader(tmp_path, values, shown={RabbitMQPublisher(vhost).name: "amqp://localhost"})
    reader.follow(DOCS / "first-broker.md")
    assert len(reader.ran) >= 12


@pytest.mark.parametrize(("name", "file"), [("fastapi", "stock.py"), ("django", "orders/stock.py")])
def test_a_message_that_is_dead_is_handled_when_the_handler_is_mended(name: str, file: str, tmp_path: Path) -> None:
    page, reader, handler = DOCS / f"{name}.md", Reader(tmp_path), tmp_path / file
    reader.follow(page)
    printed = [step for kind, text in blocks(page) if kind == "console" for step in steps(text)]
    (server,) = [step for step in printed if step.command.endswith("&")]
    (place,) = [shlex.split(step.command.replace(PORT, reader.port)) for step in printed if "curl" in step.command]
    (relay,) = [shlex.split(step.command) for step in printed if "--until-empty" in step.command]
    section = page.read_text(encoding="utf-8").partition("\n## When a handler fails\n")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert "`--until-empty --max-attempts 1`" in section
    assert "add `--yes`" in section

    mended = handler.read_text()
    handler.write_text(re.sub(r"(def reserve\(.*\n)", r"\1    raise ValueError('no stock')\n", mended))
    reader.do(server)
    try:
        curl(place[1:])
    finally:
        reader.stop()
    reader.run([*relay, "--max-attempts", "1"], may_fail=True)
    handler.write_text(mended)
    look, retry = map(shlex.split, commands.splitlines())
    assert "no stock" in reader.run(look, may_fail=False)
    reader.run([*retry, "--yes"], may_fail=False)
    assert "reserved a kettle" in reader.run(relay, may_fail=False)
    assert "No dead message" in reader.run(look, may_fail=False)


CONSUMER = re.compile(r'Consumer\(name="stock", begin=[\w.]+\)')
ENGINE = re.compile(r"create_(?:async_)?engine\(.*?\)")


def changes(page: Path) -> dict[str, str]:
    """The table *PostgreSQL and a broker*."""
    section = page.read_text(encoding="utf-8").partition("\n## PostgreSQL and a broker\n")[2]
    return dict(re.findall(r"^\| (?!change|---)(.+?) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE))


@pytest.mark.parametrize("name", ["fastapi", "litestar", "flask", "django"])
def test_with_postgresql_and_a_broker(name: str, tmp_path: Path, postgresql15: PostgreSQL, vhost: str) -> None:
    """The page with the changes of its table: the event goes through the broker, and is handled."""
    postgresql15.start()
    url = postgresql15.create_database()
    table = changes(DOCS / f"{'fastapi' if name == 'litestar' else name}.md")
    reader = Reader(tmp_path, {"POSTROAD_DATABASE": url})

    def changed(text: str) -> str:
        text = CONSUMER.sub(lambda _: table["the consumer"].strip("`").replace("amqp://localhost", vhost), text)
        if "DATABASES" in text or "the engine" not in table:
            return text
        real = url.removeprefix("postgresql")
        return ENGINE.sub(lambda _: table["the engine"].strip("`").replace("://localhost/shop", real), text)

    def typed(command: str) -> str:
        words = shlex.split(f"{command.replace('amqp://localhost', vhost)} --until-empty --log-level error")
        return reader.run(words, may_fail=False)

    try:
        for kind, text in blocks(DOCS / f"{name}.md"):
            if kind == "python":
                reader.write(changed(text))
            for step in steps(text) if kind == "console" else ():
                if " relay " not in step.command and "_relay " not in step.command:
                    reader.do(step)
                if step.command.startswith("django-admin"):
                    place = urlsplit(url)
                    given = {"USER": place.username, "HOST": place.hostname, "PORT": place.port, "NAME": place.path[1:]}
                    settings = ast.literal_eval(table["`DATABASES`"].strip("`"))
                    settings["default"] |= given
                    file = tmp_path / "config" / "settings.py"
                    file.write_text(f"{file.read_text()}\nDATABASES = {settings}\n")
        consume, relay = re.findall(r"`([^`]+)`", table["run"])
        assert "handled" in typed(consume), "it creates its queue"
        assert typed(relay).startswith("1 published")
        assert "reserved a kettle\n1 handled" in typed(consume)
    finally:
        reader.stop()


@pytest.mark.parametrize("name", [*ON_SQLITE, "first-broker"])
def test_what_is_to_be_installed_is_enough(name: str) -> None:
    page = DOCS / f"{name}.md"
    requirements = installed(page)
    assert imported(page) <= packages(requirements)
    text = "".join(text for kind, text in blocks(page) if kind == "console")
    for command, requirement in COMMANDS.items():
        if f"\n$ {command} " in f"\n{text}":
            assert any(each.startswith(requirement) for each in requirements), command


async def test_the_endpoint_of_fastapi_answers_after_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect("shop.sqlite")) as connection:
        connection.execute("create table customers (id integer primary key)")
        connection.execute(
            "create table orders (id integer primary key, product text, state text, customer integer not null "
            "default 1 references customers deferrable initially deferred)"
        )
    (program,) = [text for kind, text in blocks(DOCS / "fastapi.md") if text.startswith("# shop.py")]
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(program, "fastapi.md", "exec", dont_inherit=True), names)
    engine = names["engine"]
    event.listen(engine.sync_engine, "connect", lambda connection, _: connection.execute("pragma foreign_keys = on"))
    transport = httpx.ASGITransport(names["app"], raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post("/orders/a")).status_code == 500, "the commit finds out that there is no customer"
        with closing(sqlite3.connect("shop.sqlite")) as connection:
            assert not outbox_messages(connection)
            with connection:
                connection.execute("insert into customers values (1)")
        assert (await client.post("/orders/a")).status_code == 201
    await engine.dispose()
    with closing(sqlite3.connect("shop.sqlite")) as connection:
        outbox_messages(connection).assert_added("order.created", times=1)


def test_what_differs_from_run_to_run_is_not_compared() -> None:
    assert alike("3 published in 0.09 s (32/s)") == alike("3 published in 1.20 s (3/s)")
    assert alike("3 published in 0.09 s") != alike("4 published in 0.09 s")


def test_a_command_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# hello.py\nprint('hello')\n```\n\n```console\n$ python hello.py\nbye\n```\n")
    with pytest.raises(AssertionError, match="python hello.py"):
        Reader(tmp_path).follow(page)
