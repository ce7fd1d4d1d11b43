"""Every code block of the documentation is run: by the test of its page, or here.

Pages that are not followed step by step have fragments. They run here one after the other, with the names that a page
takes for granted; settings are loaded, and of commands it is checked that they and their options exist.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sqlite3
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from postroad import Consumer, LogListener, Outbox, Received, Relay, Tombstone
from postroad.brokers.memory import MemoryBroker
from postroad.codecs import Encrypt, KeyRing
from postroad.ops.settings import Settings
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.sqlite import migrate_sqlite
from tests.documents.reader import ROOT, blocks, steps
from tests.documents.test_cli_reference import commands
from tests.documents.test_links import FENCED
from tests.logs import MemoryLog
from tests.services.postgresql import PostgreSQL

DOCS = ROOT / "docs"
DEPLOY = ROOT / "deploy"
FRAGMENTS = [
    "consuming", "debezium", "deployment", "kafka", "logging", "moving", "nats", "payloads", "rabbitmq", "redis",
    "sinks", "webhooks",
]  # fmt: skip
TESTED_BY = {
    "README": "documents/test_readme.py",
    "quickstart": "documents/test_start_pages.py",
    "fastapi": "documents/test_start_pages.py",
    "litestar": "documents/test_start_pages.py",
    "flask": "documents/test_start_pages.py",
    "django": "documents/test_start_pages.py",
    "first-broker": "documents/test_start_pages.py",
    "writing": "documents/test_writing_page.py",
    "evolving": "documents/test_evolving_page.py",
    "console": "documents/test_console_page.py",
    "migrations": "documents/test_migrations_page.py",
    "scheduling": "documents/test_scheduling_page.py",
    "testing": "documents/test_testing_page.py",
    "monitoring": "documents/test_monitoring_page.py",
    "operating": "documents/test_operating_page.py",
    "settings": "documents/test_settings_page.py",
    "tracing": "documents/test_tracing_page.py",
    "lifecycle": "documents/test_lifecycle.py",
    "relays": "scenarios/test_application.py",
    "benchmarks": "release/test_scale.py",
}
"""The tests of pages, which run their blocks."""
RUN = {"python", "console", "toml", "sql", "mermaid"}
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
COMMANDS = commands()
SECRETS = "/run/secrets/webhooks"


@dataclass
class OrderCreated:
    order: int


@dataclass
class OrderCanceled:
    order: int


@dataclass
class StockReserved:
    order: int


@dataclass
class CustomerChanged:
    name: str


@pytest.fixture
def names(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the fragments take for granted."""
    file = tmp_path / "shop.sqlite"
    migrate_sqlite(file)

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(file, isolation_level=None)) as inner, inner:
            inner.execute("begin immediate")
            yield inner

    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool)
    keys = KeyRing({"1": b"k" * 32}, current="1")
    with closing(sqlite3.connect(file)) as connection:
        yield {
            "__name__": "shop", "engine": engine, "Session": async_sessionmaker(engine), "begin": begin,
            "connection": connection, "tx": connection, "message_id": "1", "order": OrderCreated(1),
            "OrderCreated": OrderCreated, "OrderCanceled": OrderCanceled, "StockReserved": StockReserved,
            "CustomerChanged": CustomerChanged, "Consumer": Consumer, "Outbox": Outbox, "Received": Received,
            "Tombstone": Tombstone, "Relay": Relay, "LogListener": LogListener, "Encrypt": Encrypt, "KeyRing": KeyRing,
            "Sequence": Sequence, "AsyncSession": AsyncSession, "outbox": Outbox(source="/shop"),
            "store": MemoryLog().store, "publisher": MemoryBroker(), "old": b"o" * 32, "new": b"n" * 32,
            "person_keys": keys, "counter": None, "ship": None,
        }  # fmt: skip


def prepared(name: str, names: dict[str, Any]) -> None:
    """What a single page needs beside that."""
    if name == "moving":
        names["consumer"] = Consumer(name="stock", begin=names["begin"])
        names["order"] = type("Order", (), {"id": 1})()
        names["connection"].execute("begin")
    if name == "consuming":
        names["connection"].execute("begin")


@pytest.mark.parametrize("name", FRAGMENTS)
async def test_the_fragments_of_a_page_run(
    name: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAYLOAD_KEY", "00" * 32)
    monkeypatch.chdir(tmp_path)
    secrets = tmp_path / "secrets"
    for file in ("secrets", "secrets-a", "secrets-b"):
        (tmp_path / file).write_text("whsec_" + b64encode(b"s" * 24).decode())
    prepared(name, names)
    for kind, text in blocks(DOCS / f"{name}.md"):
        if kind == "python":
            await run(text.replace(SECRETS, str(secrets)), names, name)
        elif kind == "toml":
            (tmp_path / "postroad.toml").write_text(text)
            assert Settings.load(file=tmp_path / "postroad.toml", environment={}).file
        elif kind == "console":
            for step in steps(text):
                check_command(step.command)


async def run(text: str, names: dict[str, Any], name: str) -> None:
    if text.startswith("@consumer"):
        names["consumer"] = Consumer(name="inventory", begin=names["Session"].begin)
    code = compile(text, f"{name}.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    running = eval(code, names)
    if inspect.iscoroutine(running):
        await running


def check_command(line: str) -> None:
    """Fail unless it is a command of postroad with options that it has; other programs are not checked."""
    words = shlex.split(line.partition("|")[0].partition(" > ")[0])
    if "postroad" not in words:
        return
    words = words[words.index("postroad") :]
    name = max((each for each in COMMANDS if " ".join(words).startswith(each)), key=len)
    assert name != "postroad" or len(words) == 1, line
    known = {option for each in COMMANDS[name].params for option in (*each.opts, *each.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for line in ("postroad fly", "postroad relay --fast"):
        with pytest.raises(AssertionError):
            check_command(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_command_in_a_sentence_exists(page: Path) -> None:
    for command in re.findall(r"`(postroad [^`]+)`", FENCED.sub("", page.read_text(encoding="utf-8"))):
        check_command(re.sub(r"[…|].*", "", command.replace("'", "")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_command_in_a_block_exists(page: Path) -> None:
    """In `sh`, where nothing is printed, and after the `$ ` of a `console` or of a `text`, which is a sample."""
    for kind, text in all_blocks(page):
        if kind == "sh":
            for line in text.replace("\\\n", " ").replace("--tag postroad", "").splitlines():
                check_command(line)
        elif kind in {"console", "text"}:
            for step in steps(text):
                check_command(step.command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    assert {kind for kind, _ in all_blocks(page)} <= RUN | {"sh", "text", "yaml", "{toctree}"}


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page, with those that have no language."""
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^\1```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(kind, text) for _, kind, text in found]


def test_the_yaml_of_the_pages() -> None:
    """Prometheus reads alerts that exist; probes ask as those of the manifest do, or run a command that exists."""
    found = [yaml.safe_load(text) for page in PAGES for kind, text in blocks(page) if kind == "yaml"]
    prometheus, pod, commands = found
    assert prometheus.keys() == {"scrape_configs", "rule_files"}
    assert all((DEPLOY / "prometheus" / name).is_file() for name in prometheus["rule_files"])
    (container,) = pod["containers"]
    check_command(shlex.join(container["args"]))
    (deployment,) = [
        each
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "relay.yaml").read_text(encoding="utf-8"))
        if each["kind"] == "Deployment"
    ]
    (real,) = deployment["spec"]["template"]["spec"]["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] == real[probe]["httpGet"]["path"]
        check_command(shlex.join(commands[probe]["exec"]["command"]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_block_is_run_by_some_test(page: Path) -> None:
    kinds = {kind for kind, _ in blocks(page)} & RUN
    if not kinds or page.stem in FRAGMENTS:
        return
    test = ROOT / "tests" / TESTED_BY.get(page.stem, "")
    assert test.is_file(), f"{page.name} has blocks ({', '.join(sorted(kinds))}) that no test runs"
    assert page.stem in test.read_text(encoding="utf-8"), f"{test} does not name {page.name}"


def test_the_sql_of_the_pages(postgresql15: PostgreSQL) -> None:
    """On PostgreSQL: rows of an outbox of one's own are moved in their order, and what operators ask is answered."""
    postgresql15.start()
    url = postgresql15.create_database()
    postgresql15.execute(url, POSTGRESQL.migration_script("postroad"))
    (moving,) = [text for kind, text in blocks(DOCS / "moving.md") if kind == "sql"]
    postgresql15.execute(
        url,
        "create table old_outbox (number serial, event_id uuid default gen_random_uuid(), event_type text,"
        " aggregate_id text, body json);"
        "insert into old_outbox (event_type, aggregate_id, body) select 'a.b', i, '{}' from generate_series(1, 5) i",
    )
    postgresql15.execute(url, moving)
    postgresql15.execute(
        url,
        "do $$ begin assert (select array_agg(key order by position) from postroad.outbox) = '{1,2,3,4,5}'; "
        "assert not exists (select from old_outbox); end $$",
    )
    for kind, text in blocks(DOCS / "consuming.md"):
        if kind == "sql" and "inbox_attempts" in text:
            postgresql15.execute(url, text)
