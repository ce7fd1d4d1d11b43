"""`postroad schema`, as CI runs it: what it writes, what it calls a break, its exit codes, and its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from postroad.ops.cli import app
from postroad.ops.terminal import run

SHOP = """
from contextlib import contextmanager
from dataclasses import dataclass
from postroad import Consumer, event

@event("order.created")
@dataclass
class OrderCreated:
    order: int
    {field}

@contextmanager
def begin():
    yield

consumer = Consumer(name="c", begin=begin)

@consumer.on(OrderCreated)
def handle(event, tx, message): ...

EVENTS = [OrderCreated]
NUMBER = 7
"""
MODULE = "shop_of_test_schema"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(field: str = "total: int") -> None:
        sys.modules.pop(MODULE, None)
        for each in tmp_path.rglob("*.pyc"):  # two versions within a second would look the same
            each.unlink()
        (tmp_path / f"{MODULE}.py").write_text(SHOP.replace("{field}", field))

    write()
    yield write
    sys.modules.pop(MODULE, None)


def ran(*arguments: str) -> int:
    return run(app, ["schema", *arguments])


@pytest.mark.parametrize("name", ["", ":consumer", ":EVENTS", ":OrderCreated"])
@pytest.mark.usefixtures("shop")
def test_it_writes_the_events_that_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(MODULE + name) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["title"] == MODULE + name
    assert list(written["events"]["order.created"]["properties"]) == ["order", "total"]


def test_a_change_that_breaks_nothing(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(MODULE, "--output", "schema.json") == 0
    assert ran(MODULE, "--check", "schema.json") == 0
    shop('total: int; note: str = ""')
    assert ran(MODULE, "--check", "schema.json") == 0
    assert capsys.readouterr().out.splitlines() == [
        "no change since schema.json",
        "ok      order.created: note: added; it is optional",
        "no consumer would break",
    ]


def test_a_change_that_breaks_consumers_fails(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran(MODULE, "--output", "schema.json")
    shop("total: str")
    assert ran(MODULE, "--check", "schema.json") == 1
    assert capsys.readouterr().out.splitlines() == [
        "breaks  order.created: total: was integer, is string (old and new consumers can't read each other's messages)",
        "1 of 1 changes would break consumers",
    ]
    assert ran(MODULE, "--check", "schema.json", "--json") == 1
    [change] = json.loads(capsys.readouterr().out)
    assert (change["event"], change["field"]) == ("order.created", "total")


@pytest.mark.usefixtures("shop")
def test_asyncapi_says_whether_events_are_sent_or_received(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(MODULE, "--asyncapi", "--api-version", "2.1") == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["info"]["version"], list(written["operations"])) == ("2.1", ["send.order.created"])
    assert ran(f"{MODULE}:consumer", "--asyncapi") == 0
    assert list(json.loads(capsys.readouterr().out)["operations"]) == ["receive.order.created"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "MODULE is 'nowhere'; there is no module 'nowhere', neither here nor installed"),
        ([f"{MODULE}:nothing"], f"MODULE is '{MODULE}:nothing'; '{MODULE}' has no 'nothing'"),
        ([f"{MODULE}:NUMBER"], "which is of type int; it must be a module, a consumer, a class or a list of classes"),
        (["json"], "the module 'json' defines no events"),
        ([MODULE, "--check", "none.json"], "--check is 'none.json', which can't be read: No such file"),
        ([MODULE, "--check", f"{MODULE}.py"], "which is no JSON"),
        ([MODULE, "--check", "async.json"], "has no events; an AsyncAPI document can't be compared"),
        ([MODULE, "--check", "a", "--asyncapi"], "--check is given beside --asyncapi; it writes nothing"),
        ([MODULE, "--check", "a", "--output", "b"], "--check is given beside --output; it writes nothing"),
        ([MODULE, "--json"], "--json is for --check"),
        ([MODULE, "--output", "no/such/folder"], "--output is 'no/such/folder', which can't be written: No such"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("async.json").write_text('{"asyncapi": "3.0.0"}')
    assert ran(*arguments) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
