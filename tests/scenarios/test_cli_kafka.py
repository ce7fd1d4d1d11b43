"""The command line on a real Kafka: a file says where messages go, and the password is never shown."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroad import Outbox, Tombstone
from postroad.stores.sqlite import migrate_sqlite
from tests.destinations import kafka_headers
from tests.services.kafka import PLAIN_USERS, Kafka

PASSWORD = PLAIN_USERS["shop"]


def relay(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("relay", "--until-empty", "--log-format", "json", "--log-level", "debug")
    return subprocess.run(
        [sys.executable, "-m", "postroad", *command, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
    )


def logged(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.create_topic(partitions=3)
    kafka.allow("shop", name, "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    return name


@pytest.fixture
def folder(tmp_path: Path, kafka: Kafka, topic: str) -> Path:
    """Messages in a log, and a file that says where they go."""
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "postroad.toml").write_text(f"""
database = "sqlite:///shop.sqlite"
to = "kafka://shop@{kafka.sasl}"
outage_backoff = "100ms"

[kafka]
mechanism = "PLAIN"
password_file = "password"
topic = "{topic}"
confirm_timeout = "5s"
""")
    migrate_sqlite(tmp_path / "shop.sqlite")
    outbox = Outbox(source="/shop")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        for number in range(10):
            outbox.add(connection, {"number": number}, type="order.placed", key=number % 2)
        outbox.add(connection, Tombstone(), type="order.placed", key=0)
    return tmp_path


def values_of(kafka: Kafka, topic: str, key: bytes) -> list[bytes | None]:
    return [record.value() for record in kafka.records(topic) if record.key() == key]


def test_messages_go_where_the_file_says_in_order(folder: Path, kafka: Kafka, topic: str) -> None:
    done = relay(folder)
    assert done.returncode == 0, done.stderr
    assert values_of(kafka, topic, b"0") == [b'{"number":%d}' % number for number in (0, 2, 4, 6, 8)] + [None]
    assert values_of(kafka, topic, b"1") == [b'{"number":%d}' % number for number in (1, 3, 5, 7, 9)]
    assert {kafka_headers(record)["ce_source"] for record in kafka.records(topic)} == {"/shop"}
    (known,) = [line for line in logged(done) if line["event"] == "durability_known"]
    assert known["meaning"] == "written by all in-sync replicas, at least 1 (min.insync.replicas)"
    (weak,) = [line for line in logged(done) if line["event"] == "durability_weak"]
    assert "replication factor is 1" in weak["reason"]
    assert PASSWORD not in done.stderr


def test_each_page_in_a_transaction(folder: Path, kafka: Kafka, topic: str) -> None:
    for lane in range(4):
        kafka.allow("shop", f"{topic}-default-{lane}", "WRITE", "DESCRIBE", kind="TRANSACTIONAL_ID")
    done = relay(folder, "--kafka-transactional-id", topic)
    assert done.returncode == 0, done.stderr
    assert len(kafka.records(topic)) == 11
    assert kafka.size(topic) > 11, "the ends of transactions count, too"


def test_a_transactional_id_that_the_user_may_not_use_is_an_outage(folder: Path, topic: str) -> None:
    done = relay(folder, "--kafka-transactional-id", topic, "--until-empty-timeout", "1s")
    assert done.returncode == 1
    assert "Transactional Id authorization failed" in logged(done)[-1]["reason"]


def test_a_topic_that_is_missing_waits_and_the_log_says_why(folder: Path, kafka: Kafka, topic: str) -> None:
    missing = f"{topic}-later"
    kafka.allow("shop", missing, "WRITE", "DESCRIBE")
    done = relay(folder, "--kafka-topic", missing)
    assert done.returncode == 1, "messages are left"
    blocked = [line for line in logged(done) if line["event"] == "route_blocked"]
    assert {line["route"] for line in blocked} == {missing}
    assert not [line for line in logged(done) if line["event"] in {"message_refused", "message_dead"}]
    kafka.create_topic(missing)
    assert relay(folder, "--kafka-topic", missing).returncode == 0
    assert len(kafka.records(missing)) == 11


def test_a_wrong_password_ends_a_relay_and_is_not_shown(folder: Path) -> None:
    (folder / "password").write_text("Tr0ub4dor")
    done = relay(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert logged(done)[-1]["event"] == "command_failed"
    assert "uthentication failed" in logged(done)[-1]["reason"]
    assert "Tr0ub4dor" not in done.stderr


def test_a_broker_that_is_away_is_an_outage(folder: Path, kafka: Kafka) -> None:
    kafka.stop()
    done = relay(folder, "--until-empty-timeout", "1s", "--kafka-connect-timeout", "1s")
    assert done.returncode == 1
    assert "no broker has answered" in logged(done)[-1]["reason"]
