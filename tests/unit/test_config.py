"""Settings check themselves and say what would be right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import InvalidSetting
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.brokers.routing import RoutingKey
from postroad.config import CommandSettings, RelaySettings, checked_schema
from postroad.ops.settings import all_settings, tables

# -- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lanes", 0), ("lanes", 65), ("lanes", "4"), ("lanes", True), ("lanes", 4.0), ("lanes", None),
        ("batch_size", 0), ("page_bytes", -1), ("poll_interval", 50), ("poll_interval", "0"), ("grace", "soon"),
        ("start", "middle"), ("start", "OLDEST"), ("ordering", "random"), ("max_attempts", 0), ("max_backoff", 0),
        ("retain", 7), ("lease", "0"), ("channel", "Post Road"), ("channel", "x" * 64), ("report_interval", "0"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value_and_what_would_be_right(setting: str, value: Any) -> None:
    expected = all_settings()[setting].kind.expected
    with pytest.raises(InvalidSetting) as wrong:
        RelaySettings(**{setting: value})
    assert str(wrong.value) == f"{setting} is {value!r}; it must be {expected}"


@pytest.mark.parametrize(("value", "shown"), [({"a": 1}, "a table"), ([1, 2], "a list")])
def test_what_is_no_single_value_is_not_written_out(value: Any, shown: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^lanes is {shown}; it must be"):
        RelaySettings(lanes=value)


def test_durations_of_settings_are_read() -> None:
    assert RelaySettings(grace="2s").seconds("grace") == 2
    assert RelaySettings(retain=timedelta(days=1)).retain == timedelta(days=1)
    assert RelaySettings(grace="0", settle_interval="0", retain="0").seconds("grace") == 0


def test_waiting_never_grows_shorter() -> None:
    assert RelaySettings(poll_interval="1s", max_idle_backoff="1s").lanes == 4
    with pytest.raises(InvalidSetting, match="max_idle_backoff is shorter than poll_interval"):
        RelaySettings(poll_interval="2s")


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "a.b", "1a", "x" * 51, 'a"; drop table', "a\n", None])
def test_a_schema_is_a_plain_identifier(name: Any) -> None:
    with pytest.raises(InvalidSetting, match="schema is"):
        checked_schema(name)


def test_the_level_and_the_format_of_the_log_may_be_shouted() -> None:
    assert CommandSettings(log_level="ERROR", log_format="Json") == CommandSettings(  # type: ignore[arg-type]
        log_level="error", log_format="json"
    )


@pytest.mark.parametrize("sink", ["", "a\nb", "\x1b[31m", "x" * 256, "\udcff", 5])
def test_a_sink_can_be_printed(sink: Any) -> None:
    with pytest.raises(InvalidSetting, match="^sink is "):
        CommandSettings(sink=sink)


# -- URLs and secrets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:p%2Fw@host:5432/x",
        "postgresql://me@one:5432,two:5433/x",
        "postgresql://[::1]:5432/x",
        "postgresql:///x?host=/run/postgresql",
        "postgresql://host:5432/x?user=me@work",
        "sqlite:////a/b c@d.db",
        "null://",
    ],
)
def test_a_url_that_can_be_read_is_left_alone(url: str) -> None:
    assert CommandSettings(database=url).database == url


@pytest.mark.parametrize(
    "password",
    ["geh/eim", "geh#eim", "geh?eim", "[geheim", "ge heim", "ge'heim", 'ge"heim', "1/heim", "2#heim", "3?heim"],
)
def test_a_password_that_breaks_the_url_is_refused_and_not_quoted(password: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^database is wrong .* percent-encoded") as refused:
        CommandSettings(database=f"postgresql://me:{password}@host/x")
    assert "heim" not in str(refused.value)


@pytest.mark.parametrize("value", ["geheim", "geheim:", "://geheim", 12345, ["geheim"], "", "GEHEIM://host"])
def test_what_is_no_url_is_not_quoted_either(value: Any) -> None:
    with pytest.raises(InvalidSetting, match="^to is wrong") as refused:
        CommandSettings(to=value)
    assert "geheim" not in str(refused.value).lower()
    assert "12345" not in str(refused.value)


def test_a_password_is_a_text_and_is_not_quoted() -> None:
    number: Any = 12345
    with pytest.raises(InvalidSetting, match="^password is wrong .* it must be a text$") as refused:
        PublisherSettings(password=number)
    assert "12345" not in str(refused.value)


def test_no_repr_shows_a_secret() -> None:
    settings = (
        CommandSettings(database="postgresql://me:geheim@host/x", to="amqp://me:geheim@host"),
        PublisherSettings(password="geheim"),
    )
    assert "geheim" not in repr(settings)


# -- what other modules must agree with ------------------------------------------------------------------------------


@given(st.text(st.sampled_from("{}a. "), max_size=12))
def test_a_routing_key_is_right_here_when_it_is_right_there(template: str) -> None:
    assert accepted(lambda: PublisherSettings(routing_key=template)) == accepted(lambda: RoutingKey(template))


def accepted(make: Any) -> bool:
    try:
        make()
    except InvalidSetting:
        return False
    return True


def test_every_setting_is_declared_whole() -> None:
    for classes in tables().values():
        for each in classes:
            assert each() == each.of("it", {setting.key: getattr(each(), setting.key) for setting in each.declared()})
    for name, setting in all_settings().items():
        assert setting.help.endswith("."), name
        assert setting.default is None or setting.kind.check(name, setting.default) is not None


def test_names_are_unique_in_every_place() -> None:
    settings = all_settings().values()
    assert len({setting.variable for setting in settings}) == len(settings)
    options = [setting.option for setting in settings if setting.option]
    assert len(set(options)) == len(options)
