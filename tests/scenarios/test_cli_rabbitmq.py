"""The command line on a real RabbitMQ: a file says where messages go, and the password is never shown."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from yarl import URL

from postroad import Outbox
from postroad.stores.sqlite import migrate_sqlite
from tests.destinations import bound_queue, consumed, rabbitmq_channel


def relay(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("relay", "--until-empty", "--log-format", "json", "--log-level", "debug")
    return postroad(folder, *command, *options)


def postroad(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
    )


@pytest.fixture
def folder(tmp_path: Path, vhost: str) -> Path:
    """Five messages in a log, and a file that says where they go."""
    url = URL(vhost)
    assert url.password
    (tmp_path / "password").write_text(url.password)
    (tmp_path / "postroad.toml").write_text(f"""
database = "sqlite:///shop.sqlite"
to = "{url.with_user(None)}"

[rabbitmq]
username = "{url.user}"
password_file = "password"
exchange = "shop"
routing_key = "{{tenant}}.{{type}}"
envelope = "structured"
""")
    migrate_sqlite(tmp_path / "shop.sqlite")
    outbox = Outbox(source="/shop")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        for number in range(5):
            outbox.add(connection, {"number": number}, type="order.placed", headers={"tenant": "acme"})
    return tmp_path


async def test_messages_go_where_the_file_says(folder: Path, vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "acme.#", exchange="shop")
    done = relay(folder)
    assert done.returncode == 0, done.stderr
    arrived = [json.loads(message.body) for message in await consumed(vhost, "orders")]
    assert {event["type"] for event in arrived} == {"order.placed"}
    assert sorted(event["data"]["number"] for event in arrived) == [0, 1, 2, 3, 4]
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"relay_started", "page_published", "relay_ended"} <= {line["event"] for line in logged}


async def test_what_no_queue_takes_waits_and_the_log_says_why(folder: Path, vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "other.#", exchange="shop")
    done = relay(folder)
    assert done.returncode == 1, "messages are left"
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    out = [line for line in logged if line["event"] == "route_blocked"]
    assert {line["route"] for line in out} == {"acme.order.placed"}
    assert all("NO_ROUTE" in line["reason"] for line in out)
    assert not [line for line in logged if line["event"] in {"message_refused", "message_dead"}]

    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "acme.#", exchange="shop")
    done = relay(folder)
    assert done.returncode == 0, done.stderr
    assert len(await consumed(vhost, "orders")) == 5


async def test_a_wrong_password_is_an_outage_and_is_not_shown(folder: Path) -> None:
    (folder / "password").write_text("Tr0ub4dor")
    done = relay(folder, "--until-empty-timeout", "1s")
    assert (done.returncode, done.stdout) == (1, "")
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (last["event"], last["exit_code"]) == ("command_failed", 1)
    assert "Tr0ub4dor" not in done.stderr


async def test_an_exchange_that_is_missing_is_named_when_the_time_is_over(folder: Path) -> None:
    with (folder / "postroad.toml").open("a") as file:
        file.write('declare = "no"\n')
    done = relay(folder, "--until-empty-timeout", "1s")
    assert done.returncode == 1
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert last["event"] == "command_failed"
    assert "gave up after waiting 1 s (until_empty_timeout)" in last["reason"]
    assert "exchange 'shop' is gone" in last["reason"]


async def test_what_no_queue_takes_is_dropped_if_that_is_wanted(folder: Path, vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "other.#", exchange="shop")
    done = relay(folder, "--unroutable", "drop")
    assert (done.returncode, ", 5 dropped in " in done.stdout) == (0, True), done.stderr
    assert "5 messages dropped because no consumer had subscribed" in postroad(folder, "status").stdout
    listed = postroad(folder, "messages", "--state", "dropped").stdout
    assert listed.count("dropped") >= 5
    assert "NO_ROUTE" in listed


async def test_a_sink_of_rabbitmq_is_not_taken_over_and_is_moved_on_purpose(folder: Path, vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "acme.#", exchange="shop")
    assert relay(folder, "--sink", "audit").returncode == 0
    url = URL(vhost)
    kept = f"amqp://{url.host}:{url.port}{url.path}?exchange=shop&routing_key={{tenant}}.{{type}}"
    for to, wanted in (
        ("null://", "null://"),
        ("amqp://nowhere.example/", "amqp://nowhere.example:5672/%2F?exchange=shop"),
    ):
        refused = postroad(folder, "relay", "--until-empty", "--sink", "audit", "--to", to)
        assert refused.returncode == 2
        assert kept in refused.stderr
        assert wanted in refused.stderr
        assert str(url.password) not in refused.stderr
    assert kept in json.loads(postroad(folder, "sink", "list", "--json").stdout)["sinks"][0]["destination"]
    unasked = postroad(folder, "sink", "retarget", "audit", "--to", "amqp://nowhere.example/", "--reason", "why not")
    assert (
        unasked.returncode,
        "Retarget sink 'audit' from " in unasked.stderr and "to amqp://nowhere" in unasked.stderr,
    ) == (2, True)
    moving = ("sink", "retarget", "audit", "--to", "amqp://nowhere.example/", "--reason", "a test", "--yes")
    assert "delivers to amqp://nowhere.example:5672/%2F?exchange=shop" in postroad(folder, *moving).stdout
    assert postroad(folder, "relay", "--until-empty", "--sink", "audit").returncode == 2
    assert "sink retarget" in postroad(folder, "audit").stdout
    removing = ("sink", "remove", "audit", "--reason", "a test", "--yes")
    assert "it has delivered every message" in postroad(folder, *removing).stdout
    assert postroad(folder, "sink", "list").stdout.startswith("There is no sink yet")
