"""Settings and the log through the command line, in real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postroad import Outbox
from postroad.ops.cli import app
from postroad.ops.settings import all_settings
from postroad.ops.terminal import run
from postroad.stores.sqlite import migrate_sqlite

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
SECRET = "geheim"
FILE = f"""
database = "postgresql://me:{SECRET}@db.example/shop"
lanes = 8

[rabbitmq]
exchange = "orders"
password = "{SECRET}"
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def postroad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=ENVIRONMENT | environment,
    )


def written(text: str, name: str = "postroad.toml", mode: int = 0o600) -> None:
    Path(name).write_text(text)
    Path(name).chmod(mode)


def log_with(messages: int) -> str:
    migrate_sqlite("shop.sqlite")
    outbox = Outbox(source="/shop")
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        for number in range(messages):
            outbox.add(connection, {"number": number}, type="order.placed", key=number)
    return "sqlite:///shop.sqlite"


@pytest.mark.parametrize(
    ("variable", "arguments", "ending"),
    [
        ("LANES=0", ["relay"], "(environment POSTROAD_LANES; set by --lanes or POSTROAD_LANES)"),
        ("LANES=4", ["relay", "--lanes", "0"], "(command line; set by --lanes or POSTROAD_LANES)"),
        (
            "RABBITMQ_DECLARE=maybe",
            ["relay"],
            "POSTROAD_RABBITMQ_DECLARE; set by --rabbitmq-declare or POSTROAD_RABBITMQ_DECLARE)",
        ),
        ("LANES=4", ["relay", "--lease", "2h"], "it must be from 1s to 1h (set by --lease or POSTROAD_LEASE)"),
        ("DATABASE=mysql://h/x", ["status"], "(set by --database or POSTROAD_DATABASE)"),
        ("APP=no_such:thing", ["consume"], "(set by --app or POSTROAD_APP)"),
        ("TO=amqp://", ["relay", "--database", "sqlite:///x"], "(set by --to or POSTROAD_TO)"),
    ],
)
def test_an_error_says_how_its_setting_is_set(
    variable: str,
    arguments: list[str],
    ending: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, _, value = variable.partition("=")
    monkeypatch.setenv(f"POSTROAD_{name}", value)
    assert run(app, arguments) == 2
    assert capsys.readouterr().err.endswith(f"{ending}\n")


def test_an_error_about_a_setting_of_a_consumer_is_no_traceback(tmp_path: Path) -> None:
    """It is given in the consumer's code, and no option can set it."""
    (tmp_path / "shop.py").write_text(
        "from postroad import Consumer\n"
        "from contextlib import nullcontext\n"
        "consumer = Consumer('kafkas://localhost', name='c', begin=nullcontext, topic='orders', ca_file='/no/file')\n"
        "@consumer.on(dict, type='order.created')\n"
        "async def handle(event, tx, message): ...\n"
    )
    done = postroad("consume", "--app", "shop:consumer", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "postroad: ca_file is '/no/file', which is not a file\n")


# -- postroad config -------------------------------------------------------------------------------------------------


def test_config_shows_every_setting_and_where_it_comes_from() -> None:
    written(FILE)
    done = postroad("config", "--grace", "90s", POSTROAD_LANES="16", POSTROAD_TO=f"amqp://me:{SECRET}@rabbit/")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row[0]: tuple(row[1:]) for row in (line.split(maxsplit=2) for line in done.stdout.splitlines())}
    assert list(rows) == list(all_settings())
    assert rows["database"] == ("postgresql://me:***@db.example/shop", "file postroad.toml")
    assert rows["to"] == ("amqp://me:***@rabbit/", "environment POSTROAD_TO")
    assert rows["lanes"] == ("16", "environment POSTROAD_LANES")
    assert rows["grace"] == ("90s", "command line")
    assert rows["sink"] == ("default", "default")
    assert rows["retain"] == ("7d", "default")
    assert rows["rabbitmq.exchange"] == ("orders", "file postroad.toml")
    assert rows["rabbitmq.password"] == ("***", "file postroad.toml")
    assert SECRET not in done.stdout


def test_config_for_programs() -> None:
    written(FILE, "other.toml")
    done = postroad("config", "--json", "--config", "other.toml", POSTROAD_LANES="16")
    report = json.loads(done.stdout)
    assert (done.stderr, report["file"]) == ("", "other.toml")
    assert list(report["settings"]) == list(all_settings())
    shown = report["settings"]
    assert shown["lanes"] == {"value": 16, "from": "environment", "where": "POSTROAD_LANES", "used": True}
    assert shown["rabbitmq.password"] == {"value": "***", "from": "file", "where": "other.toml", "used": True}
    assert shown["lease"] == {"value": "15s", "from": "default", "where": None, "used": True}
    assert shown["to"] == {"value": None, "from": "default", "where": None, "used": True}
    assert SECRET not in done.stdout


def test_config_takes_every_option_of_the_relay() -> None:
    given = {
        setting.option: str(setting.default)
        for setting in all_settings().values()
        if setting.option and setting.default
    }
    arguments = [part for option in given.items() for part in option]
    without_default = (
        "--to", "null://", "--database", "postgresql://h/x", "--direct", "postgresql://h/d", "--app", "shop:stock",
        "--dead-letter-topic", "dead", "--lock-id", "-7", "--route-timeout", "1h", "--database-password-file", "secret",
        "--rabbitmq-username", "me", "--rabbitmq-password-file", "secret", "--rabbitmq-heartbeat", "9s",
        "--rabbitmq-cluster", "prod", "--rabbitmq-partitioned", "true", "--metrics-port", "9464",
        "--kafka-username", "me", "--kafka-password-file", "secret", "--kafka-mechanism", "OAUTHBEARER",
        "--kafka-token-url", "https://login/token", "--kafka-token-scope", "kafka", "--kafka-ca-file", "ca.pem",
        "--kafka-cert-file", "cert.pem", "--kafka-key-file", "key.pem", "--kafka-options", "client.rack=a",
        "--kafka-cluster", "prod", "--kafka-transactional-id", "shop",
        "--topics", "a.*", "--exclude-topics", "b", "--types", "t", "--sources", "/s",
        "--http-secrets-file", "secret", "--http-allow-plaintext", "true", "--http-allow-networks", "10.0.0.0/8",
        "--http-proxy", "http://proxy:3128", "--http-ca-file", "ca.pem", "--http-cert-file", "cert.pem",
        "--http-key-file", "key.pem",
        "--nats-username", "me", "--nats-password-file", "secret", "--nats-ca-file", "ca.pem",
        "--nats-cert-file", "cert.pem", "--nats-key-file", "key.pem", "--nats-tls-first", "true",
        "--nats-domain", "hub", "--nats-stream", "SHOP", "--nats-cluster", "prod",
        "--redis-username", "me", "--redis-password-file", "secret", "--redis-ca-file", "ca.pem",
        "--redis-cert-file", "cert.pem", "--redis-key-file", "key.pem", "--redis-partitions", "4",
        "--redis-max-length", "9", "--redis-max-age", "9d", "--redis-replicas", "1", "--redis-fsync", "true",
        "--redis-cluster", "prod",
    )  # fmt: skip
    Path("secret").write_text("geheim")
    done = postroad("config", "--json", *arguments, *without_default)
    settings = json.loads(done.stdout)["settings"]
    assert {name for name, each in settings.items() if each["from"] == "command line"} == {
        setting.name for setting in all_settings().values() if setting.option
    } - {
        "dead_letter_sink",  # which excludes dead_letter_topic
        "kafka.token_file",
        "nats.token_file",
        "nats.credentials_file",
        "nats.nkey_file",
        "nats.subjects",
        "nats.stream_config",
    }


def test_a_mistake_in_the_file_ends_every_command_in_one_line() -> None:
    written("bach_size = 5")
    for command in (["config"], ["status"], ["migrate"], ["relay"]):
        done = postroad(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "postroad: there is no setting 'bach_size'; did you mean 'batch_size'? (file postroad.toml)\n"
        )


def test_what_is_unwise_is_warned_about() -> None:
    written(FILE, mode=0o644)
    done = postroad("config", "--to", f"amqp://me:{SECRET}@rabbit/")
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert "WARNING  postroad.toml contains a password, and every user of this machine may read it; run: ch" in first
    assert "WARNING  --to contains a password, and every user of this machine can see the command line" in second
    assert second.endswith("use POSTROAD_TO or rabbitmq.password_file")
    assert SECRET not in done.stdout + done.stderr
    quiet = postroad("config", "--to", f"amqp://me:{SECRET}@rabbit/", "--log-level", "error")
    assert (quiet.stderr, quiet.stdout != "") == ("", True)


# -- settings that a command acts on ---------------------------------------------------------------------------------


def test_all_commands_take_their_values_from_wherever_they_are() -> None:
    written(f'database = "{log_with(0)}"\nto = "null://"\nsink = "audit"\nlanes = 2\nlog_level = "error"')
    assert postroad("migrate").stdout == "schema 'postroad' is already up to date\n"
    relay = postroad("relay", "--until-empty", POSTROAD_LANES="3")
    assert (relay.returncode, relay.stderr) == (0, "")
    (sink,) = json.loads(postroad("status", "--json").stdout)["sinks"]
    assert (sink["sink"], [lane["lane"] for lane in sink["lanes"]]) == ("audit", [0, 1, 2])
    assert json.loads(postroad("status", "--json", "--schema", "postroad").stdout)["sinks"] == [sink]


# -- the log ---------------------------------------------------------------------------------------------------------


def lines(stderr: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.splitlines()]


def test_a_relay_logs_json_line_by_line() -> None:
    database = log_with(25)
    done = postroad(
        "relay", "--database", database, "--to", "null://", "--until-empty", "--lanes", "2", "--batch-size", "10",
        "--log-format", "json", "--log-level", "debug", "--sink", "audit",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith("25 published in ")
    logged = lines(done.stderr)
    assert all(list(line)[:5] == ["time", "level", "logger", "event", "message"] for line in logged)
    assert {line["sink"] for line in logged} == {"audit"}
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in logged:
        by_event.setdefault(line["event"], []).append(line)
    pages = {"page_taken", "page_published"}
    assert set(by_event) == {"relay_started", "durability_known", "lanes_taken", "relay_ended", *pages}
    assert (by_event["lanes_taken"][0]["lanes"], by_event["lanes_taken"][0]["epochs"]) == (2, [1, 1])
    assert {line["level"] for line in by_event["page_taken"] + by_event["page_published"]} == {"debug"}
    assert sum(line["size"] for line in by_event["page_taken"]) == 25
    assert sum(line["published"] for line in by_event["page_published"]) == 25
    assert all(line["refused"] == 0 and line["duration_ms"] >= 0 for line in by_event["page_published"])
    (ended,) = by_event["relay_ended"]
    assert (ended["published"], ended["pages"], ended["level"]) == (25, len(by_event["page_taken"]), "info")


def test_a_signal_is_logged_in_json() -> None:
    command = [sys.executable, "-m", "postroad", "relay", "--database", log_with(1), "--to", "null://"]
    environment = ENVIRONMENT | {"POSTROAD_LOG_FORMAT": "json"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as relay:
        assert relay.stderr is not None
        assert any(json.loads(line)["event"] == "lanes_taken" for line in iter(relay.stderr.readline, ""))
        relay.send_signal(signal.SIGTERM)
        _, err = relay.communicate(timeout=60)
    assert relay.returncode == 0
    stopping, ended = lines(err)[-2:]
    assert (stopping["event"], stopping["signal"], ended["event"]) == ("stopping", "SIGTERM", "relay_ended")


def test_the_last_error_is_json_too() -> None:
    done = postroad("status", "--database", "sqlite:///nowhere.sqlite", "--log-format", "json")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = lines(done.stderr)
    assert (line["event"], line["level"], line["exit_code"]) == ("command_failed", "error", 1)
    assert line["message"] == line["reason"]
    assert "there is no file" in line["reason"]


def test_a_refusal_is_logged_once_in_json() -> None:
    program = """
import sys
from postroad.brokers.local import LocalPublisher
from postroad.ops.commands.relay import _end
from postroad.ops.logs import log_to_stderr
from postroad.ops.process import run_in_loop, run_relay
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore
import typer

async def picky(message):
    raise ValueError("not\\nthis")

log_to_stderr("warning", sys.argv[1])
try:
    relay = Relay(SQLiteStore("shop.sqlite"), LocalPublisher(picky))
    outcome, _ = run_in_loop(run_relay(relay, until_empty=True))
    _end([str(outcome.summary)], outcome.exit_code)
except typer.Exit as end:
    sys.exit(end.exit_code)
"""
    for form in ("json", "text"):
        Path("shop.sqlite").unlink(missing_ok=True)
        log_with(1)
        done = subprocess.run(
            [sys.executable, "-c", program, form],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=ENVIRONMENT,
        )
        assert done.returncode == 1
        if form == "text":
            first, *traceback = done.stderr.splitlines()
            assert "was refused, attempt 1 of 5: ValueError: not\\nthis" in first
            assert traceback[0] == "    Traceback (most recent call last):"
            assert traceback[-2:] == ["    ValueError: not", "    this"]
        else:
            (refused,) = lines(done.stderr)
            assert (refused["event"], refused["reason"]) == ("message_refused", "ValueError: not\nthis")
            assert (refused["position"], refused["attempts"], refused["level"]) == (1, 1, "warning")
            assert refused["error"] == "ValueError: not\nthis"
            assert "in picky" in refused["traceback"]
