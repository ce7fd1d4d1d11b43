"""Which sinks a process serves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.ops.serving import chosen_sinks
from postroad.ops.settings import Settings
from postroad.ops.sink_settings import SinkSettings

TWO = '[sinks.orders]\nto = "null://"\nlanes = 1\n[sinks.audit]\nto = "null://"\n'


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def chosen(text: str = "", environment: dict[str, str] | None = None, **options: Any) -> list[SinkSettings]:
    Path("given.toml").write_text(text)
    return list(chosen_sinks(Settings.load(options, file="given.toml", environment=environment or {})))


def names(text: str = "", environment: dict[str, str] | None = None, **options: Any) -> list[str]:
    return [sink.name for sink in chosen(text, environment, **options)]


def test_all_sinks_of_the_settings_are_served_or_those_that_are_named() -> None:
    assert names(TWO) == ["orders", "audit"]
    assert names(TWO, sink="audit") == ["audit"]
    assert names(TWO, sink="audit, orders,audit") == ["audit", "orders"]
    assert names(TWO, {"POSTROAD_SINK": "audit"}) == ["audit"]


def test_without_sinks_it_is_the_one_of_the_general_settings() -> None:
    (sink,) = chosen('to = "null://"\nlanes = 3')
    assert (sink.name, sink.to, sink.relay.lanes) == ("default", "null://", 3)
    assert names('to = "null://"', sink="a,b") == ["a,b"]


def test_a_destination_on_the_command_line_is_that_of_one_sink() -> None:
    assert names(TWO, to="null://") == ["default"]
    (sink,) = chosen(TWO, to="amqp://h", sink="orders")
    assert (sink.name, sink.to, sink.relay.lanes) == ("orders", "amqp://h", 1)


def test_handlers_are_a_sink_with_the_consumers_name_unless_it_has_another() -> None:
    assert [(each.name, each.app) for each in chosen('app = "shop:consumer"')] == [("", "shop:consumer")]
    assert [(each.name, each.app) for each in chosen('app = "shop:consumer"', sink="s")] == [("s", "shop:consumer")]
    assert [(each.name, each.app) for each in chosen('[sinks.s]\napp = "shop:consumer"')] == [("s", "shop:consumer")]


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("", {}, "to is not set"),
        (TWO, {"sink": "orderz"}, "sink is 'orderz', .* no such sink; did you mean 'orders'. they have orders, audit"),
        (TWO, {"sink": "orders,xyz"}, "sink is 'xyz', and the settings have no such sink; they have orders, audit"),
        (
            'to = "null://"\n' + TWO,
            {},
            r"to is set for no sink \(file .*\), and there are sinks: orders, audit",
        ),
        ("[sinks.a]", {}, "sinks.a.to and sinks.a.app are both missing; a sink has one destination"),
        ('[sinks.a]\nto = "null://"\napp = "m:c"', {}, "sinks.a.to and sinks.a.app are both given"),
        ('[sinks.a]\nto = "memory://x"', {}, "sinks.a.to is memory://x, whose queues end with this process"),
        ('[sinks.a]\nto = "nothing://x"', {}, "to is a URL that begins with 'nothing'"),
        ("lock_id = 5\n" + TWO, {}, "lock_id is 5 for the sinks 'orders' and 'audit'; no two sinks can have the same"),
        ('to = "null://"\napp = "m:c"', {}, "to and app are both given"),
    ],
)
def test_what_can_not_be_served_is_refused(text: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting) as wrong:
        chosen(text, **options)
    assert re.search(reason, str(wrong.value)), str(wrong.value)


def test_one_of_two_sinks_with_the_same_lock_can_be_served_alone() -> None:
    assert names("lock_id = 5\n" + TWO, sink="orders") == ["orders"]


GRAVEYARD = '[sinks.a]\nto = "null://"\n{a}\n[sinks.b]\nto = "null://"\n{b}\n[sinks.c]\nto = "null://"\n{c}\n'


def dead_letter_sinks(text: str, **which: str) -> dict[str, str | None]:
    filled = text + GRAVEYARD.format(**{"a": "", "b": "", "c": ""} | which)
    return {sink.name: sink.relay.dead_letter_sink for sink in chosen(filled)}


def test_copies_of_dead_messages_go_to_another_sink() -> None:
    assert dead_letter_sinks("", a='dead_letter_sink = "b"') == {"a": "b", "b": None, "c": None}
    general = 'dead_letter_sink = "c"\n'
    assert dead_letter_sinks(general) == {"a": "c", "b": "c", "c": None}, "all others, not the sink itself"
    assert dead_letter_sinks(general, a='dead_letter_topic = "dead"') == {"a": None, "b": "c", "c": None}
    assert dead_letter_sinks("", a='dead_letter_sink = "elsewhere"')["a"] == "elsewhere", "another process serves it"


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"a": 'dead_letter_sink = "a"'}, "circle: from 'a' to 'a'; the last sink"),
        ({"a": 'dead_letter_sink = "b"', "b": 'dead_letter_sink = "a"'}, "circle: from 'a' to 'b' to 'a'"),
        (
            {name: f'dead_letter_sink = "{other}"' for name, other in zip("abc", "bca", strict=True)},
            "dead_letter_sink goes in a circle: from 'a' to 'b' to 'c' to 'a'",
        ),
        (
            {"a": 'dead_letter_sink = "b"\ndead_letter_topic = "dead"'},
            "sink 'a': dead_letter_topic is 'dead' and dead_letter_sink is 'b'; give one of them",
        ),
        ({"a": "dead_letter_sink = 5"}, "sinks.a.dead_letter_sink is 5; it must be"),
    ],
)
def test_copies_that_would_come_back_are_refused(which: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        dead_letter_sinks("", **which)
