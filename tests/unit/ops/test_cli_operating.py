"""The operators' commands on a file: what they say, their exit codes, and that what goes wrong changes nothing."""

from __future__ import annotations

import asyncio
import codecs
import io
import json
import logging
import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from rich.cells import cell_len

from postroad import Outbox, StoredMessage, Tombstone
from postroad.brokers.local import LocalPublisher
from postroad.codecs import ClaimCheck, Codec, Encrypt, KeyRing, Zlib
from postroad.config import RelaySettings
from postroad.message import new_id
from postroad.ops.cli import app
from postroad.ops.terminal import run
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.command_line import command_line

HOSTILE = "\x1b[2J\x9b31m\u202edrowssap\u2066[bold red]{}%s'\"\\\U0001f600\u4e2d\u6587"


class Output(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shop:
    """An SQLite file, what is added to it, and the command line beside it, in this process."""

    def __init__(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = file
        self._capsys = capsys
        migrate_sqlite(file)

    def postroad(self, *arguments: str) -> Output:
        before = logging.getLogger().handlers[:]
        self._capsys.readouterr()
        try:
            code = run(app, [*arguments, "--database", f"sqlite:///{self.file}"])
        finally:
            logging.getLogger().handlers = before
        return Output(code, *self._capsys.readouterr())

    def add(self, event: Any, type: str = "order.placed", codecs: Sequence[Codec] = (), **fields: Any) -> UUID:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            return Outbox(source="/shop", codecs=codecs).add(connection, event, type=type, **fields)

    def run_relay(self, refused: Callable[[StoredMessage], bool] = lambda _: False, sink: str = "default") -> None:
        async def deliver(message: StoredMessage) -> None:
            if refused(message):
                raise ValueError(f"no {message.type}, said amqp://me:geheim@host/ {HOSTILE}")

        settings = RelaySettings(max_attempts=1, lanes=2)
        relay = Relay(SQLiteStore(self.file), LocalPublisher(deliver), sink=sink, settings=settings)
        asyncio.run(relay.run_until_empty())

    def content(self) -> str:
        with closing(sqlite3.connect(self.file)) as connection:
            return "\n".join(connection.iterdump())


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("POSTROAD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path / "shop.sqlite", capsys)


class Orders(NamedTuple):
    fine: UUID
    dead: UUID
    odd: UUID
    waiting: UUID


@pytest.fixture
def orders(shop: Shop) -> Orders:
    """Two that are dead, one that was published, and one that waits."""
    fine = shop.add({"total": 1}, key="customer-1")
    dead = shop.add({"total": 2}, type="order.refused", key="customer-2")
    odd = shop.add(b"\x00\x01\xff", type="order.odd", topic="oddities", key=HOSTILE, headers={"tenant": HOSTILE})
    shop.run_relay(lambda message: message.type in {"order.refused", "order.odd"})
    return Orders(fine, dead, odd, shop.add({"total": 4}, key="customer-4"))


# -- looking ---------------------------------------------------------------------------------------------------------


def test_messages_are_found_by_whatever_is_known_of_them(shop: Shop, orders: Orders) -> None:
    def found(*options: str) -> list[UUID]:
        return [UUID(row["id"]) for row in shop.postroad("messages", "--json", *options).json["messages"]]

    assert found() == [orders.waiting, orders.odd, orders.dead, orders.fine]
    assert found("--state", "Waiting") == [orders.waiting]
    assert found("--state", "dead") == [orders.odd, orders.dead]
    assert found("--key", "customer-1") == [orders.fine]
    assert found("--key", HOSTILE) == [orders.odd]
    assert found("--type", "order.refused") == [orders.dead]
    assert found("--topic", "oddities") == [orders.odd]
    assert found("--error", "NO ORDER.ODD") == [orders.odd]
    assert found("--sink", "default", "--limit", "1") == [orders.waiting]
    assert found("--since", "1h") == [orders.waiting, orders.odd, orders.dead, orders.fine]
    assert found("--since", "2999-01-01") == []


def test_a_list_says_how_much_of_it_is_shown(shop: Shop, orders: Orders) -> None:
    assert shop.postroad("messages").err == "4 messages.\n"
    assert shop.postroad("messages", "--limit", "2").err == "2 of 4 messages shown; see --limit.\n"
    assert shop.postroad("dead", "list").err == "2 dead messages.\n"
    assert shop.postroad("dead", "list", "--type", "x") == (0, "No dead message matches.\n", "")


def test_a_message_is_shown_with_its_history(shop: Shop, orders: Orders) -> None:
    output = shop.postroad("message", "show", str(orders.dead))
    assert output.code == 0
    for words in (
        f"message {orders.dead}", "order.refused", "customer-2", "position 2", "source   /shop", "11 bytes of appl",
        "at sink 'default', lane ", "added", "attempt 1 failed: ValueError: no order.refused, said amqp://me:***@host/",
        "now dead", "after 1 attempt; use `postroad dead retry ID`",
    ):  # fmt: skip
        assert words in output.out
    assert "published" in shop.postroad("message", "show", str(orders.fine)).out
    assert "no relay has read it yet" in shop.postroad("message", "show", str(orders.waiting)).out


def test_a_tombstone_is_shown_as_one(shop: Shop) -> None:
    gone = shop.add(Tombstone(), type="customer", key=7)
    for options in ((), ("--payload",)):
        output = shop.postroad("message", "show", str(gone), *options)
        assert (output.code, "payload  none: it is a tombstone\n" in output.out) == (0, True)
    assert shop.postroad("message", "show", str(gone), "--json").json["payload_size"] == 0


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (Zlib(above=10), "compressed (deflate)"),
        (Encrypt(KeyRing({"2026-11": bytes(32)}, current="2026-11")), "encrypted with the key 2026-11"),
        (ClaimCheck("memory:///", above=10), "stored elsewhere"),
    ],
    ids=["compressed", "encrypted", "elsewhere"],
)
def test_what_codecs_made_of_a_payload_is_named_and_not_shown(shop: Shop, codec: Codec, says: str) -> None:
    id = shop.add("secret " * 100, codecs=[codec])
    assert f", {says}\n" in shop.postroad("message", "show", str(id)).out
    shop.run_relay(lambda _: True)
    output = shop.postroad("dead", "show", str(id), "--payload").out
    assert f"  | not shown: it is {says}\n" in output
    assert "secret" not in output
    stored = b64decode(shop.postroad("message", "show", str(id), "--payload", "--json").json["payload"])
    assert b"secret secret" not in stored


def test_a_payload_is_shown_when_it_is_asked_for(shop: Shop, orders: Orders) -> None:
    assert "total" not in shop.postroad("message", "show", str(orders.dead)).out
    assert '  |   "total": 2\n' in shop.postroad("dead", "show", str(orders.dead), "--payload").out
    assert "  | 00000000  00 01 ff" in shop.postroad("message", "show", str(orders.odd), "--payload").out
    assert "payload" not in shop.postroad("message", "show", str(orders.odd), "--json").json
    assert shop.postroad("message", "show", str(orders.odd), "--json", "--payload").json["payload"] == "AAH/"
    large = shop.add("x" * 100_000, type="order.large")
    output = shop.postroad("message", "show", str(large), "--payload").out
    assert "100,000 bytes of text/plain" in output
    assert "... cut: 4,096 of 100,000 bytes shown" in output
    assert len(output) < 6000


@pytest.mark.parametrize(
    "command",
    [
        ["messages"], ["messages", "--json"], ["dead", "list"], ["message", "show", "{odd}", "--payload"],
        ["message", "show", "{odd}", "--json", "--payload"], ["status"], ["status", "--by-lane"], ["status", "--json"],
        ["why", "{odd}"], ["why", "{odd}", "--json"], ["why", "--key", HOSTILE],
        ["audit"], ["audit", "--json"], ["messages", "--key", HOSTILE], ["key", "hold", HOSTILE, "--reason", HOSTILE],
        ["key", "release", HOSTILE], ["key", "skip", HOSTILE, "--yes", "--reason", HOSTILE], ["pause", HOSTILE],
        ["dead", "list", "--state", HOSTILE], ["message", "show", HOSTILE], ["messages", "--since", HOSTILE],
    ],
)  # fmt: skip
def test_nothing_hostile_reaches_the_terminal(shop: Shop, orders: Orders, command: list[str]) -> None:
    shop.postroad("key", "hold", HOSTILE, "--reason", HOSTILE, "--who", HOSTILE)
    output = shop.postroad(*[each.replace("{odd}", str(orders.odd)) for each in command])
    for text in output[1:]:
        assert all(each.isprintable() or each == "\n" for each in text), ascii(text)
        assert "geheim" not in text


def test_status_says_what_needs_a_person(shop: Shop, orders: Orders) -> None:
    output = shop.postroad("status").out
    assert re.search(
        r"^! sink 'default': 2 dead messages, since .* ago\); see `postroad dead list`$", output, re.MULTILINE
    )
    assert re.search(
        r"^! sink 'default': no relay has served it since .* ago\); 1 message waits; start one with "
        "`postroad relay --sink default`$", output, re.MULTILINE,
    )  # fmt: skip
    totals = shop.postroad("status", "--json").json["totals"]
    assert totals | {"lag_seconds": 0, "oldest_unsent_seconds": 0} == {
        "sinks": 1, "lanes": 2, "pending": 1, "exact": True, "lag_seconds": 0, "oldest_unsent_seconds": 0,
        "failing": 0, "held": 0, "dead": 2, "unroutable": 0, "published_last_hour": 1,
    }  # fmt: skip
    shop.postroad("pause", "default")
    shop.postroad("key", "hold", "customer-1", "--who", "anna", "--reason", "customs")
    output = shop.postroad("status").out
    assert "PAUSED" in output
    assert "! sink 'default' is paused, by " in output
    assert "; resume it with `postroad resume default`\n" in output
    assert "! sink 'default': key 'customer-1' is held by anna since " in output
    assert ": customs; release it with `postroad key release customer-1`\n" in output


def test_a_column_for_the_sink_is_there_when_there_are_several(shop: Shop, orders: Orders) -> None:
    assert not shop.postroad("messages").out.startswith("sink")
    shop.run_relay(sink="audit")
    assert shop.postroad("messages").out.startswith("sink")
    assert "all" in shop.postroad("status").out


def test_an_empty_database_is_no_error(shop: Shop) -> None:
    assert shop.postroad("audit") == (0, "No changes are recorded.\n", "")
    assert shop.postroad("audit", "--json").json == []
    assert shop.postroad("messages") == (0, "No message matches.\n", "")
    assert "no sink yet" in shop.postroad("status").out


# -- changing --------------------------------------------------------------------------------------------------------


def states(shop: Shop) -> dict[UUID, str]:
    return {UUID(row["id"]): row["state"] for row in shop.postroad("messages", "--json").json["messages"]}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["dead", "retry", "--all"], "2 dead messages would be retried. Nothing was changed.\n"),
        (["dead", "retry", "--error", "odd"], "1 dead message would be retried. Nothing was changed.\n"),
        (["dead", "drop", "--older-than", "0"], "2 dead messages would be dropped. Nothing was changed.\n"),
        (["message", "skip", "{waiting}"], "would be skipped at sink 'default' (waiting). Nothing was changed.\n"),
        (["message", "poison", "{waiting}"], "would be dead at sink 'default' (waiting). Nothing was changed.\n"),
        (
            ["key", "hold", "customer-4"],
            "would be held at sink 'default', with 1 message of it not published yet. Nothing",
        ),
        (["key", "skip", "customer-2"], "1 message of key 'customer-2' at sink 'default' would be skipped. Nothing"),
        (["cleanup", "--older-than", "0"], "1 message older than 0 would be deleted. Nothing was changed.\n"),
        (["rewind", "--to", "1"], "would re-publish 1 message to sink 'default', from position 1 on, with the same"),
    ],
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    shop: Shop, orders: Orders, command: list[str], says: str
) -> None:
    before = shop.content()
    given = [each.replace("{waiting}", str(orders.waiting)) for each in command]
    output = shop.postroad(*given, "--dry-run")
    assert (output.code, output.err) == (0, "")
    assert says in output.out
    in_json = shop.postroad(*given, "--dry-run", "--json").json
    assert in_json["dry_run"] is True
    assert in_json["would_change"] >= 1
    assert shop.content() == before


def test_what_was_done_is_printed_and_audited(shop: Shop, orders: Orders) -> None:
    done = shop.postroad("dead", "retry", str(orders.dead), "--yes", "--who", "anna", "--reason", "it is back")
    assert done == (0, "1 dead message will be retried\n", "")
    done = shop.postroad("dead", "drop", "--all", "--yes", "--who", "ben", "--reason", "no use", "--json")
    assert done.json == {"dry_run": False, "changed": 1, "unchanged": {}}
    assert states(shop)[orders.odd] == "dropped"
    entries = shop.postroad("audit", "--json").json
    assert [(each["who"], each["reason"], each["changed"]) for each in entries] == [
        ("ben", "no use", 1),
        ("anna", "it is back", 1),
    ]
    listed = shop.postroad("audit").out
    assert "anna" in listed
    assert "it is back" in listed
    assert len(shop.postroad("audit", "--limit", "1", "--json").json) == 1


def test_a_drop_is_undone(shop: Shop, orders: Orders) -> None:
    done = shop.postroad("dead", "drop", "--error", "odd", "--yes", "--reason", "no use")
    assert done == (0, "dropped 1 dead message\n", "")
    would = shop.postroad("dead", "restore", "--all", "--dry-run")
    assert would == (0, "1 dropped message would be restored. Nothing was changed.\n", "")
    done = shop.postroad("dead", "restore", str(orders.odd), "--yes")
    assert done == (0, "restored 1 dropped message; retry them with `postroad dead retry`\n", "")
    assert states(shop)[orders.odd] == "dead"
    again = shop.postroad("dead", "restore", "--error-pattern", "no <n>", "--yes")
    assert (again.code, again.err) == (
        1,
        "postroad: no dropped message matches; `postroad messages --state dropped` shows all dropped messages\n",
    )
    assert "only a message that is dropped can be restored" in shop.postroad("dead", "restore", str(orders.odd)).err
    assert "--all selects every dropped message" in shop.postroad("dead", "restore", "--all", "--key", "k").err


def test_a_hold_of_an_unknown_key_needs_a_yes_and_suggests_a_known_one(shop: Shop, orders: Orders) -> None:
    before = shop.content()
    output = shop.postroad("key", "hold", "custmer-4", "--reason", "customs")
    assert (output.code, output.out) == (2, "")
    assert "No message has the key 'custmer-4'; did you mean 'customer-4'? Hold it anyway?" in output.err
    assert shop.content() == before
    assert shop.postroad("key", "hold", "custmer-4", "--reason", "customs", "--yes").code == 0


WHOLE = "--all selects every dead message; omit it, or what else selects messages"
A_TIME = "it must be a time such as '2026-03-01 04:30' (UTC)"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        # what is not there
        (["message", "show", "{unknown}"], 1, "there is no message {unknown}; it was never committed, or it was del"),
        (["dead", "show", "{unknown}"], 1, "there is no message {unknown}"),
        (["dead", "show", "{fine}"], 1, "message {fine} is not dead but published"),
        (["dead", "retry", "{unknown}", "--yes"], 1, "there is no message {unknown}"),
        (["dead", "retry", "{dead}", "{unknown}", "--yes"], 1, "there is no message {unknown}"),
        (["dead", "retry", "{fine}", "--yes"], 1, "published at sink 'default'; only a message that is dead can"),
        (
            ["dead", "drop", "{waiting}", "--yes", "--reason", "x"],
            1,
            "waiting at sink 'default'; only a message that is dead",
        ),
        (["dead", "retry", "--type", "order.placed", "--yes"], 1, "no dead message matches; `postroad dead list`"),
        (["dead", "drop", "--older-than", "9d", "--yes", "--reason", "x"], 1, "no dead message matches"),
        (["message", "skip", "{unknown}", "--yes", "--reason", "x"], 1, "there is no message {unknown}"),
        (
            ["message", "skip", "{fine}", "--yes", "--reason", "x"],
            1,
            "message {fine} is published at sink 'default'; o",
        ),
        (["message", "poison", "{fine}", "--reason", "x"], 1, "message {fine} is published at sink 'default'; only"),
        (["key", "release", "customer-1"], 1, "key 'customer-1' is not held at sink 'default'; there is none yet"),
        (
            ["key", "skip", "customer-1", "--yes", "--reason", "x"],
            1,
            "no message of key 'customer-1' is retrying, held",
        ),
        (["resume", "default"], 1, "sink 'default' is not paused"),
        (["cleanup", "--older-than", "9d", "--yes"], 1, "no message is older than 9d and delivered to every"),
        (["rewind", "--to", "99", "--yes", "--reason", "x"], 1, "no retained message that was delivered to sink"),
        # sinks
        (["messages", "--sink", "defualt"], 2, "there is no sink 'defualt'; did you mean 'default'?"),
        (["dead", "list", "--sink", "x"], 2, "there is no sink 'x'; there is 'default'"),
        (["dead", "retry", "--all", "--sink", "x", "--yes"], 2, "there is no sink 'x'"),
        (["message", "skip", "{waiting}", "--sink", "x", "--yes", "--reason", "x"], 2, "there is no sink 'x'"),
        (["key", "hold", "customer-1", "--sink", "x", "--reason", "x"], 2, "there is no sink 'x'"),
        (["key", "release", "customer-1", "--sink", "x"], 2, "there is no sink 'x'"),
        (["pause", "defaultt"], 2, "there is no sink 'defaultt'; did you mean 'default'?"),
        (["resume", "x"], 2, "there is no sink 'x'"),
        (["rewind", "--sink", "x", "--to", "1h", "--yes", "--reason", "x"], 2, "there is no sink 'x'"),
        # what would mean everything
        (["dead", "retry", "--yes"], 2, "no messages are selected; give ids, options that"),
        (["dead", "drop", "--sink", "default", "--yes", "--reason", "x"], 2, "no messages are selected"),
        (["dead", "retry", "--all", "--type", "x", "--yes"], 2, WHOLE),
        (["dead", "drop", "{dead}", "--all", "--yes", "--reason", "x"], 2, WHOLE),
        # what can't be understood
        (["message", "show", "12"], 2, "ID is '12'; it must be a message id, such as"),
        (["dead", "retry", "{dead}x", "--yes"], 2, "it must be a message id"),
        (["messages", "--since", "yesterday"], 2, f"--since is 'yesterday'; {A_TIME}"),
        (["messages", "--state", "ded"], 2, "--state is 'ded'; did you mean 'dead'?"),
        (["messages", "--limit", "0"], 2, "Invalid value for '--limit'"),
        (["messages", "--key", ""], 2, "--key is empty"),
        (["messages", "--type", "\udcff"], 2, "--type is '\\udcff', which is not valid text"),
        (["dead", "list", "--older-than", "3"], 2, "--older-than is '3'; it must be a number with its unit"),
        (
            ["rewind", "--to", "noon", "--yes", "--reason", "x"],
            2,
            "--to is 'noon'; it must be a position, which is a w",
        ),
        (["rewind", "--yes", "--reason", "x"], 2, "Missing option '--to'"),
        (["cleanup", "--older-than", "-3d", "--yes"], 2, "--older-than is '-3d'; it must be"),
        (["message", "show"], 2, "Missing argument 'ID'"),
        (["key", "hold"], 2, "Missing argument 'KEY'"),
        (["dead", "fly"], 2, "No such command 'fly'; see: postroad dead --help"),
        # why, who, and whether
        (["dead", "drop", "--all", "--yes"], 2, "--reason is missing; `postroad audit` shows"),
        (["message", "skip", "{waiting}", "--yes", "--reason", " "], 2, "--reason is missing"),
        (["message", "poison", "{waiting}"], 2, "--reason is missing"),
        (["key", "hold", "customer-1"], 2, "--reason is missing"),
        (["rewind", "--to", "1", "--yes"], 2, "--reason is missing"),
        (["pause", "default", "--who", ""], 2, "--who is empty"),
        (["pause", "default", "--reason", "\udcff"], 2, "--reason is '\\udcff', which is not valid text"),
        (["dead", "retry", "--all"], 2, "Retry 2 dead messages? Without a terminal, confirm it with --yes"),
        (
            ["dead", "drop", "{dead}", "--reason", "x"],
            2,
            "Drop 1 dead message? They will never be published. W",
        ),
        (["cleanup", "--older-than", "0"], 2, "Delete 1 message older than 0? Without a terminal"),
        (["rewind", "--to", "1", "--reason", "x"], 2, "from position 1 on, with the same ids? Without a"),
        (["key", "skip", "customer-2", "--reason", "x"], 2, "They will never be published there. Without a terminal"),
    ],
)
def test_what_goes_wrong_is_one_line_and_changes_nothing(
    shop: Shop, orders: Orders, command: list[str], code: int, words: str
) -> None:
    before = shop.content()
    names = orders._asdict() | {"unknown": new_id()}
    output = shop.postroad(*[each.format_map(names) for each in command])
    assert (output.code, output.out) == (code, "")
    assert output.err.startswith("postroad: ")
    assert output.err.count("\n") == 1
    assert words.format_map(names) in output.err
    assert shop.content() == before


def test_with_two_sinks_a_key_needs_to_know_which(shop: Shop, orders: Orders) -> None:
    shop.run_relay(sink="audit")
    output = shop.postroad("key", "hold", "customer-1", "--reason", "x")
    assert (output.code, output.err) == (2, "postroad: --sink is missing; there are 'audit', 'default'\n")
    assert shop.postroad("key", "hold", "customer-1", "--reason", "x", "--sink", "audit").code == 0


# -- less to type ----------------------------------------------------------------------------------------------------


def test_an_id_may_be_shortened_wherever_one_is_asked_for(shop: Shop, orders: Orders) -> None:
    later = shop.add({"total": 5}, deliver_in="1h")
    for id in (orders.fine, orders.dead, later):
        assert f"message {id}\n" in shop.postroad("message", "show", str(id)[-8:]).out
    assert f"message {orders.dead}\n" in shop.postroad("dead", "show", orders.dead.hex[-9:].upper()).out
    output = shop.postroad("dead", "retry", str(orders.dead)[-15:], str(orders.odd)[:-1], "--yes")
    assert (output.code, output.out) == (0, "2 dead messages will be retried\n")
    assert shop.postroad("message", "skip", str(orders.waiting)[-9:], "--reason", "x", "--yes").code == 0


def test_a_part_of_several_ids_names_them_and_does_nothing(shop: Shop) -> None:
    ids = [UUID(f"01a1e1a4-b273-7de5-a691-00000000{number:04x}") for number in range(8)]
    for id in ids:
        shop.add({}, id=id)
    output = shop.postroad("message", "show", "01a1-E1A4")
    assert output.code == 2
    assert output.err == (
        f"postroad: '01a1e1a4' is ambiguous: {', '.join(map(str, ids[:5]))} and more; give more digits\n"
    )
    assert f"message {ids[7]}\n" in shop.postroad("message", "show", "0007").out
    output = shop.postroad("message", "show", "beef")
    assert (output.code, output.err) == (
        1, "postroad: no message id begins or ends with 'beef'; give more digits, or the whole id\n",
    )  # fmt: skip


def test_messages_before_the_first_relay_are_those_in_the_log(shop: Shop) -> None:
    first, second = shop.add({}, key="a"), shop.add({}, key="b", type="order.paid")
    output = shop.postroad("messages")
    assert [line.split()[:2] for line in output.out.splitlines()[1:]] == [
        [str(second), "waiting"],
        [str(first), "waiting"],
    ]
    assert output.err == "2 messages; no relay has run yet, so none was published.\n"
    assert [row["id"] for row in shop.postroad("messages", "--json", "--key", "a").json["messages"]] == [str(first)]
    assert shop.postroad("messages", "--state", "published").out == "No message matches.\n"
    assert shop.postroad("messages", "--json", "--limit", "1").json["total"] == {"number": 2, "exact": True}


def test_held_keys_are_listed(shop: Shop, orders: Orders) -> None:
    assert shop.postroad("key", "list").out == "No key is held.\n"
    shop.postroad("key", "hold", "customer-1", "--who", "anna", "--reason", "customs")
    names, held = shop.postroad("key", "list").out.splitlines()
    assert names.split() == ["sink", "key", "since", "(UTC)", "who", "reason"]
    assert re.fullmatch(r"default +customer-1 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +anna +customs", held)
    (key,) = shop.postroad("key", "list", "--json").json
    assert (key["sink"], key["key"], key["who"], key["reason"]) == ("default", "customer-1", "anna", "customs")
    assert shop.postroad("key", "list", "--sink", "defualt").code == 2


# -- in a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A process whose stdin, stdout and stderr are a terminal."""

    def __init__(self, file: Path, *arguments: str, columns: int = 100) -> None:
        self._main, there = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroad", *arguments, "--database", f"sqlite:///{file}"],
            stdin=there, stdout=there, stderr=there, cwd=file.parent,
            env=environment | {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(there)
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def answer(self, question: str, answer: str) -> None:
        while question not in self.output:
            assert self._read(), self.output
        os.write(self._main, f"{answer}\n".encode())

    def ended(self) -> int:
        while self._read():
            pass
        os.close(self._main)
        return self.process.wait(60)

    def _read(self) -> bool:
        assert select.select([self._main], [], [], 60)[0], self.output
        try:
            more = os.read(self._main, 65536)
        except OSError:  # how Linux reports that the other end is closed
            return False
        self.output += self._decoder.decode(more)
        return bool(more)


@pytest.fixture
def terminal(shop: Shop) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def opens(*arguments: str, columns: int = 100) -> Terminal:
        opened.append(Terminal(shop.file, *arguments, columns=columns))
        return opened[-1]

    yield opens
    for each in opened:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("command", ["relay", "config"])
def test_help_fits_on_a_screen_and_all_of_it_is_there_when_asked_for(
    shop: Shop, terminal: Callable[..., Terminal], command: str
) -> None:
    short, long = terminal(command, "--help", columns=80), terminal(command, "--help-all", columns=80)
    assert (short.ended(), long.ended()) == (0, 0)
    assert len(short.output.splitlines()) <= 50
    assert all(cell_len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in short.output.splitlines())
    assert "From where, to where" in short.output
    assert "Fine tuning" not in short.output
    assert "Fine tuning" in long.output


def words_of(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Every group and every command."""
    yield before
    for name, command in getattr(group, "commands", {}).items():
        yield from words_of(command, *before, name)


@pytest.mark.parametrize("command", list(words_of(command_line())), ids=" ".join)
def test_no_help_has_boxes_in_a_pipe(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    assert run(app, [*command, "--help"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Usage: {' '.join(('postroad', *command))} ")
    assert output.isascii()


@pytest.mark.parametrize("command", [[], ["relay"], ["key"], ["dead", "list"]])
def test_no_box_is_drawn_into_a_pipe(shop: Shop, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *command, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("Usage: postroad ")
    assert done.stdout.isascii()


def test_a_person_is_asked_with_the_count(shop: Shop, orders: Orders, terminal: Callable[..., Terminal]) -> None:
    before = shop.content()
    refused = terminal("dead", "retry", "--all")
    refused.answer("Retry 2 dead messages? [y/N]", "n")
    assert refused.ended() == 1
    assert "Nothing was changed." in refused.output
    assert shop.content() == before

    agreed = terminal("dead", "retry", "--all")
    agreed.answer("Retry 2 dead messages? [y/N]", "y")
    assert agreed.ended() == 0
    assert "2 dead messages will be retried" in agreed.output


def test_a_reason_is_asked_for(shop: Shop, orders: Orders, terminal: Callable[..., Terminal]) -> None:
    asked = terminal("key", "hold", "customer-1")
    asked.answer("Reason", "customs")
    assert asked.ended() == 0
    assert shop.postroad("audit", "--json").json[0]["reason"] == "customs"


def test_ctrl_c_at_a_question_changes_nothing(shop: Shop, orders: Orders, terminal: Callable[..., Terminal]) -> None:
    before = shop.content()
    asked = terminal("dead", "retry", "--all")
    asked.answer("messages? [y/N]", "\x03")
    assert asked.ended() == 1
    assert "Traceback" not in asked.output
    assert shop.content() == before


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_table_fits_its_terminal_whatever_it_shows(
    shop: Shop, orders: Orders, terminal: Callable[..., Terminal], columns: int
) -> None:
    shop.add({}, type="\u4e2d\u6587" * 40, key="\u4e2d\u6587" * 80)
    shop.postroad("key", "hold", HOSTILE, "--reason", HOSTILE * 5, "--who", HOSTILE)
    for command in (["messages"], ["dead", "list"], ["status"], ["audit"]):
        shown = terminal(*command, columns=columns)
        assert shown.ended() == 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", shown.output)  # colours
        assert all(each.isprintable() or each in "\r\n" for each in text), ascii(text)
        if columns >= 80 and command != ["status"]:  # whose sentences go on in the next line
            assert max(cell_len(line) for line in text.splitlines()) <= columns


# -- forgetting ------------------------------------------------------------------------------------------------------


def test_forget_says_what_it_would_erase_asks_and_erases(
    shop: Shop, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.add({"name": "Ann"}, key="customer-1")
    before = shop.content()
    output = shop.postroad("forget", "--key", "customer-1", "--dry-run")
    assert output.out == (
        "1 delivered message of this key would be erased; "
        "1 undelivered message will stay, to be erased later. Nothing was changed.\n"
    )
    output = shop.postroad("forget", "--key", "customer-1", "--reason", "asked")
    assert output.code == 2
    assert "--yes" in output.err
    assert shop.content() == before
    monkeypatch.setattr("sys.stdin", io.StringIO("customer-1\n"))
    output = shop.postroad("forget", "--key", "-", "--reason", "asked", "--yes")
    assert output.out == "erased 1 message; 1 undelivered message will stay, to be erased later\n"
    assert "customer-1" not in shop.postroad("audit", "--json").out
    assert "forget" in shop.postroad("audit").out


def test_forget_names_no_key_that_has_nothing_to_erase(shop: Shop, orders: Orders) -> None:
    output = shop.postroad("forget", "--key", "customer-4", "--reason", "asked", "--yes")
    assert output.code == 1
    assert "no delivered message of this key is in the log; 1 undelivered message will stay" in output.err


# -- retargeting -----------------------------------------------------------------------------------------------------


NO_DESTINATIONS = ["rabbit://user:SECRET@host/", "user:SECRET@host", "local:amqp://user:SECRET@host/", "local: ",
                   "amqp://user:SECRET@ho st/\x07", "AMQP://user:SECRET@host:port/"]  # fmt: skip


@pytest.mark.parametrize("url", NO_DESTINATIONS)
def test_a_sink_is_moved_to_a_destination_and_to_no_other_text(shop: Shop, url: str) -> None:
    shop.run_relay()
    output = shop.postroad("sink", "retarget", "default", "--to", url, "--reason", "a move", "--yes")
    assert output.code == 2
    assert "SECRET" not in output.out + output.err
    assert "it must look like amqp://user@host/vhost" in " ".join(output.err.split())
    assert "SECRET" not in shop.postroad("sink", "list", "--json").out + shop.postroad("audit").out


def test_a_scheme_may_be_written_in_any_case_and_no_password_is_kept(shop: Shop) -> None:
    shop.run_relay()
    output = shop.postroad(
        "sink", "retarget", "default", "--to", "AMQP://user:SECRET@host/", "--reason", "a move", "--yes"
    )
    assert output.code == 0
    assert shop.postroad("sink", "list", "--json").json["sinks"][0]["destination"].startswith("amqp://host")
    listed = shop.postroad("sink", "list").out + shop.postroad("audit", "--json").out
    assert "SECRET" not in output.out + output.err + listed
    output = shop.postroad("sink", "retarget", "default", "--to", "local:orders", "--reason", "back", "--yes")
    assert output.code == 0
    assert shop.postroad("sink", "list", "--json").json["sinks"][0]["destination"] == "local:orders"
