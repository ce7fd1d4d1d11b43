"""Sinks in the settings: tables of the file, variables, and what is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.ops.settings import Settings
from postroad.ops.sink_settings import settings_of_sinks, variable_of
from postroad.sink_filter import EVERYTHING, SinkFilter

TWO = """
max_attempts = 3
lanes = 2

[rabbitmq]
exchange = "shop"
envelope = "plain"

[sinks.orders]
to = "amqp://localhost"
topics = ["order.*", "payment.#"]
max_attempts = 7

[sinks.orders.rabbitmq]
exchange = "orders"

[sinks.audit]
to = "null://"
exclude_topics = ["debug.#"]
types = ["t"]
sources = ["/shop"]
on_dead = "hold"
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str = "", environment: dict[str, str] | None = None, options: dict[str, Any] | None = None) -> Settings:
    Path("given.toml").write_text(text)
    Path("given.toml").chmod(0o600)
    return Settings.load(options, file="given.toml", environment=environment or {})


def refused(text: str = "", environment: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidSetting) as wrong:
        load(text, environment)
    return str(wrong.value)


def test_a_sink_has_the_general_settings_and_its_own_in_their_place() -> None:
    settings = load(TWO)
    orders, audit = settings.sinks["orders"], settings.sinks["audit"]
    assert (orders.to, audit.to) == ("amqp://localhost", "null://")
    assert orders.filter == SinkFilter(topics=["order.*", "payment.#"])
    assert audit.filter == SinkFilter(exclude_topics=["debug.#"], types=["t"], sources=["/shop"])
    assert (orders.relay.max_attempts, audit.relay.max_attempts) == (7, 3)
    assert (orders.relay.lanes, audit.relay.lanes) == (2, 2)
    assert (orders.relay.on_dead, audit.relay.on_dead) == ("release", "hold")
    assert (orders.value("rabbitmq.exchange"), audit.value("rabbitmq.exchange")) == ("orders", "shop")
    assert orders.value("rabbitmq.envelope") == "plain"
    assert (settings.relay.max_attempts, settings.filter) == (3, EVERYTHING)
    assert list(orders.own) == ["to", "topics", "max_attempts", "rabbitmq.exchange"]


def test_a_sink_that_the_settings_do_not_have_has_the_general_ones() -> None:
    other = load('to = "null://"\nlanes = 3\ntopics = ["a"]').sink("other")
    assert (other.name, other.to, other.relay.lanes, other.filter) == ("other", "null://", 3, SinkFilter(topics=["a"]))


def test_variables_are_of_the_sink_whose_name_they_begin_with() -> None:
    settings = load(
        TWO.replace("[sinks.audit]", '[sinks."the-audit"]'),
        {
            "POSTROAD_SINKS_ORDERS_TOPICS": "a.b,c.#",
            "POSTROAD_SINKS_ORDERS_RABBITMQ_EXCHANGE": "other",
            "POSTROAD_SINKS_THE_AUDIT_MAX_BACKOFF": "7s",
            "POSTROAD_SINKS_NEW_ONE_TO": "null://",
            "POSTROAD_SINKS_NEW_ONE_EXCLUDE_TOPICS": "x",
        },
    )
    assert list(settings.sinks) == ["orders", "the-audit", "new_one"]
    assert settings.sinks["orders"].filter == SinkFilter(topics=["a.b", "c.#"])
    assert settings.sinks["orders"].value("rabbitmq.exchange") == "other"
    assert settings.sinks["the-audit"].relay.max_backoff == timedelta(seconds=7)
    new = settings.sinks["new_one"]
    assert (new.to, new.filter, new.relay.lanes) == ("null://", SinkFilter(exclude_topics=["x"]), 2)


def test_a_sink_of_the_file_is_meant_rather_than_one_with_a_shorter_setting() -> None:
    assert variable_of("POSTROAD_SINKS_EXCLUDE_TOPICS", ["exclude"])[0] == "exclude"
    sink, setting = variable_of("POSTROAD_SINKS_A_EXCLUDE_TOPICS", [])
    assert (sink, setting.name) == ("a", "exclude_topics")
    sink, setting = variable_of("POSTROAD_SINKS_A_EXCLUDE_TOPICS", ["a-exclude"])
    assert (sink, setting.name) == ("a-exclude", "topics")


def test_the_later_source_wins_and_within_one_the_sinks_own() -> None:
    both = {"POSTROAD_MAX_ATTEMPTS": "10", "POSTROAD_SINKS_AUDIT_MAX_ATTEMPTS": "11"}
    settings = load(TWO, both)
    assert settings.sinks["orders"].relay.max_attempts == 10
    assert settings.sinks["audit"].relay.max_attempts == 11
    settings = load(TWO, both, {"max_attempts": "12"})
    assert {sink.relay.max_attempts for sink in settings.sinks.values()} == {12}


def test_a_destination_is_not_general() -> None:
    settings = load('to = "null://"\n[sinks.a]\nlanes = 1', {"POSTROAD_SINKS_B_LANES": "1"})
    assert [sink.to for sink in settings.sinks.values()] == [None, None]


def test_what_concerns_the_whole_log_or_process_is_not_a_sinks() -> None:
    names = settings_of_sinks()
    assert not {"database", "schema", "retain", "cleanup_interval", "sink", "log_level", "metrics_port"} & set(names)
    assert {"to", "app", "topics", "max_attempts", "ordering", "batch_size", "rabbitmq.envelope"} <= set(names)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sinks = 5", r"sinks must have a table for each sink, such as \[sinks.orders\] \(file given.toml\)"),
        ("[sinks]\norders = 5", "sinks must have a table for each sink"),
        ("[sinks.a]\ntopic = ['x']", "sink 'a' has no setting 'topic'; did you mean 'topics'?"),
        ("[sinks.a]\nretain = '1d'", r"retain is not a setting of a single sink \('a'\); it stands above all tables"),
        ("[sinks.a]\nrabbitmq = 5", r"sinks.a.rabbitmq is a value; it must be a table, \[sinks.a.rabbitmq\]"),
        ("[sinks.a.rabbitmq]\nexchang = 'x'", "sink 'a' has no setting 'rabbitmq.exchang'; did you mean"),
        ("[sinks.a]\ntopics = ['x*']", r"sinks.a.topics has 'x\*'; it must be a list of patterns .*file given.toml"),
        ("[sinks.a]\nlanes = 0", r"sinks.a.lanes is 0; it must be a whole number from 1 to 64 \(file given.toml\)"),
        ("[sinks.a]\n[sinks.a]", "which is no TOML: Cannot declare"),
        ("[sinks.my-sink]\n[sinks.my_sink]", "two sinks of one name, 'my-sink' and 'my_sink'.*POSTROAD_SINKS_MY_SINK_"),
        ("[sinks.'a,b']", "a sink is called 'a,b'; it must be"),
        ("[sinks.a]\nlease = '1h'\nmax_idle_backoff = '1ms'", "sink 'a': max_idle_backoff is shorter than"),
    ],
)
def test_wrong_tables_are_refused(text: str, reason: str) -> None:
    assert re.search(reason, refused(text)), refused(text)


def test_wrong_variables_are_refused() -> None:
    assert "POSTROAD_SINKS_ORDERS_MAX_ATTEMPTS?" in refused(TWO, {"POSTROAD_SINKS_ORDERS_MAX_ATTEMPT": "1"})
    wrong = refused(TWO, {"POSTROAD_SINKS_ORDERS_LANES": "x"})
    assert wrong.startswith("sinks.orders.lanes is 'x'; it must be a whole number")
    assert wrong.endswith("(environment POSTROAD_SINKS_ORDERS_LANES)")
    assert "there is no setting of a sink for the variable" in refused(TWO, {"POSTROAD_SINKS_TO": "null://"})


def test_a_wrong_url_of_a_sink_is_not_shown() -> None:
    assert "geheim" not in refused("[sinks.a]\nto = 'amqp://me:geheim @h'")


def test_variables_of_kubernetes_services_are_no_settings() -> None:
    assert not load("", {"POSTROAD_SINKS_PORT": "tcp://10.0.0.1:80"}).sinks


def test_a_file_that_all_may_read_with_a_sinks_password_is_warned_of() -> None:
    Path("given.toml").write_text("[sinks.a]\nto = 'amqp://me:geheim@h'")
    Path("given.toml").chmod(0o644)
    warnings = Settings.load(file="given.toml", environment={}).warnings
    assert "FileReadable" in {type(each).__name__ for each in warnings}
