"""What templates show: harmless, with times for the viewer's zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.admin import Count
from postroad.console.context import environment
from postroad.console.text import ago, argument_text, exact, number, prose, sentence, time_element

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rendered(template: str, **values: object) -> str:
    return environment().from_string(template).render(**values)


def test_every_value_is_escaped_and_made_harmless() -> None:
    hostile = "<b>\u202e\x1b amqp://user:hunter2@host"
    shown = rendered("{{ x }}<i title='{{ x }}'>", x=hostile)
    assert "<b>" not in shown
    assert "\u202e" not in shown
    assert "hunter2" not in shown
    assert "\\u202e\\x1b amqp://user:***@host" in shown


def test_only_exact_gives_back_what_it_got() -> None:
    assert rendered('<input value="{{ x|exact }}">', x='a"\u202e') == '<input value="a&#34;\u202e">'
    assert exact(None) == ""


def test_a_time_is_an_element() -> None:
    assert time_element(NOW) == (
        '<time datetime="2026-03-01T12:00:00.000Z" title="2026-03-01 12:00:00Z">2026-03-01 12:00:00Z</time>'
    )
    assert "-" in time_element(None)


def test_times_and_commands_in_sentences_are_found() -> None:
    shown = prose("paused since 2026-03-01 12:00:00Z (2m ago) <b>; see `postroad resume`")
    assert '<time datetime="2026-03-01T12:00:00Z"' in shown
    assert "<code>postroad resume</code>" in shown
    assert "&lt;b&gt;" in shown
    assert sentence("it is").startswith("It is")


def test_numbers_and_distances() -> None:
    assert (number(1234), number(Count(5)), number(Count(5000, exact=False))) == ("1,234", "5", "about 5,000")
    assert (ago(NOW - timedelta(minutes=2), NOW), ago(NOW + timedelta(hours=1), NOW)) == ("2m ago", "in 1h")
    assert argument_text({"sink": "s", "ids": list("abcd"), "key": None}) == "sink s, ids a b c and 1 more"
