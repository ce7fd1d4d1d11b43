"""docs/operating.md is done as an operator would: its commands typed in order, and what they print compared.

Where the page has a time, an age or an id, any other will do. What went wrong before its first command is made here.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from postroad import Message, Outbox, StoredMessage
from postroad.brokers.local import LocalPublisher
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
VARIES = re.compile(
    rf"{ID.pattern}|\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\dZ?|in \d+\.\d+ s|\([\d,]+/s\)"
    r"|\b(\d+[smhd] )?\d+[smhd]\b|[\d,]+ at most|\|.*\|$| +"
)


class Step(NamedTuple):
    command: str
    printed: list[str]


def steps() -> Iterator[Step]:
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *printed = part.rstrip("\n").split("\n")
            yield Step(command, printed)


def alike(line: str) -> str:
    """The line without what differs from run to run."""
    return VARIES.sub(lambda found: " " if found[0].isspace() else "#", line.strip())


def deliver(file: Path, handler: Callable[[StoredMessage], Awaitable[None]]) -> None:
    """What the relay does that runs all the time."""
    retry = Backoff(max_attempts=3, first=timedelta(0))
    publisher = LocalPublisher(handler, name="warehouse")
    asyncio.run(Relay(SQLiteStore(file), publisher, retry=retry).run_until_empty())


async def take_all(_: StoredMessage) -> None:
    """The warehouse, once it knows all carriers."""


def an_evening(file: Path) -> None:
    """Two hundred orders arrive; an unknown carrier, and an invoice without a queue, do not."""
    migrate_sqlite(file)
    orders = [Message({"order": n}, type="order.placed", key=f"customer-{n % 40}") for n in range(200)]
    orders.insert(150, Message({"order": 31, "carrier": "pigeon"}, type="order.shipped", key="customer-7"))
    orders.insert(160, Message({"order": 32, "carrier": "pigeon"}, type="order.shipped", key="customer-8"))
    orders.insert(170, Message({"invoice": 9}, type="invoice.sent", key="customer-9", correlation_id="request-81"))
    with closing(sqlite3.connect(file)) as connection, connection:
        Outbox(source="/shop").add_many(connection, orders)

    async def warehouse(message: StoredMessage) -> None:
        if message.type == "order.shipped":
            raise ValueError("422: unknown carrier 'pigeon'")
        if message.type == "invoice.sent":
            raise ValueError("404: no such customer")

    for _ in range(4):
        deliver(file, warehouse)
    with closing(sqlite3.connect(file)) as connection, connection:
        Outbox(source="/shop").add(connection, {"order": 201}, type="order.placed", key="customer-7")


def typed(command: str, file: Path) -> list[str]:
    """What the command prints, as in a pipe."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        env=environment | {"POSTROAD_DATABASE": f"sqlite:///{file}", "LOGNAME": "anna", "PYTHONIOENCODING": "utf-8"},
        cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_page_is_what_happens(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    an_evening(file)
    real: dict[str, str] = {}  # by the ids on the page

    def here(found: re.Match[str]) -> str:
        return real[found[0]]

    ran = 0
    for step in steps():
        printed = typed(ID.sub(here, step.command), file)
        assert [alike(line) for line in printed] == [alike(line) for line in step.printed], f"$ {step.command}"
        for on_page, line in zip(step.printed, printed, strict=True):
            real.update(zip(ID.findall(on_page), ID.findall(line), strict=True))
        ran += 1
        if step.command.startswith("postroad dead retry") and "--dry-run" not in step.command:
            deliver(file, take_all)
    assert ran >= 12


def test_the_program_on_the_page_works(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    an_evening(file)
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    assert asyncio.run(names["retry_orders"](f"sqlite:///{file}")) == 2
