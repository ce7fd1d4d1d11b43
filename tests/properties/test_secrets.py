"""A secret that was given in any place, rightly or wrongly, appears in nothing that postroad says."""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from postroad import InvalidSetting
from postroad.brokers import Subscription, publisher_for, subscriber_for
from postroad.brokers.base import Subscriber
from postroad.listeners import tell
from postroad.ops.cli import app
from postroad.ops.logs import JsonLines, Lines
from postroad.ops.settings import Settings, all_settings, shown
from postroad.safe_text import without_passwords
from postroad.stores import dialect_of, open_admin, store_for

# Long enough not to stand in a text by chance; with everything that has a meaning in URLs, TOML and SQL.
SECRETS = st.text(st.sampled_from("QXZ%/:@?#&='\" \\[]{}ßñ\t"), min_size=6, max_size=20).map(
    lambda text: f"Qz9{text}9zQ"
)
URLS = st.sampled_from(
    [
        "postgresql://me:{}@host:5432/shop",
        "postgresql://me:{}@host:5432/shop?sslmode=require",
        "postgresql://host/shop?user=me&password={}",
        "amqp://me:{}@host/vhost",
        "amqps://:{}@host/",
        "postgresql://me@corp:{}@host/shop",
        "postgresql://me/corp:{}@host/shop",
        "postgresql://me:12{}@host/shop",
        "postgresql://me:12@{}@host/shop",
        "postgresql://me:12/{}@host/shop",
        "postgresql://me:?{}@host/shop?user=x",
        "postgresql://me:/a={}@host/shop",
        "postgresql://me:{}@one:5432,two:5433/shop",
        "postgresql:///shop?host=/tmp&password={}",
        "postgresql:///shop?host=/tmp&pass%77ord={}",
        "postgresql://host/shop?sslpassword={}&sslmode=require",
        "postgresql://host/shop#password={}",
        "host=db user=me password={}",
        "host=db user=me password='{}' dbname=shop",
        "user=me password = {} dbname=shop",
        "sqlite://me:{}@host/x",
        "pigeon://me:{}@roof",
        "me:{}@host",
        "{}",
    ]
)
URL_SETTINGS = st.sampled_from(["database", "to"])


def toml(value: str) -> str:
    return '"' + "".join(f"\\u{ord(each):04x}" for each in value) + '"'


def output(text: str | None, environment: dict[str, str], options: dict[str, str]) -> list[str]:
    """All that postroad says about these settings: the values, reprs, warnings, errors and tracebacks."""
    with tempfile.TemporaryDirectory() as folder:
        file = None
        if text is not None:
            file = Path(folder) / "x.toml"
            file.write_text(text, encoding="utf-8")
            file.chmod(0o644)
        try:
            loaded = Settings.load(options, file=file, environment=environment)
            return [*known(loaded), *used(loaded)]
        except InvalidSetting as error:
            return [str(error), without_passwords(traceback.format_exc())]


def known(loaded: Settings) -> list[str]:
    values = [str(shown(setting, loaded.value(name))) for name, setting in all_settings().items()]
    return [*values, repr(loaded), *logged(loaded)]


def logged(loaded: Settings) -> list[str]:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Keep(), logging.getLogger("postroad.ops")
    logger.addHandler(handler)
    try:
        for warning in loaded.warnings:
            tell(warning)
    finally:
        logger.removeHandler(handler)
    return [form.format(record) for record in records for form in (Lines(debug=True), JsonLines(debug=True))]


def used(loaded: Settings) -> list[str]:
    """What stores and publishers say when they are made of these settings."""
    texts = []
    for make in (
        lambda: publisher_for(loaded.needed("to"), loaded.for_broker(loaded.needed("to"))),
        lambda: store_for(loaded.needed("database")),
    ):
        try:
            texts.append(repr(make()))
        except InvalidSetting as error:
            texts += [without_passwords(str(error)), without_passwords("".join(traceback.format_exception(error)))]
    return texts


def assert_hidden(secret: str, texts: list[str]) -> None:
    for text in texts:
        assert secret[:3] not in text, "not even its beginning"
        assert secret[-3:] not in text, "not even its end"


@settings(deadline=None)
@given(URL_SETTINGS, URLS, SECRETS, st.booleans(), st.sampled_from(["file", "environment", "options"]))
def test_a_password_in_a_url(setting: str, url: str, secret: str, encoded: bool, place: str) -> None:
    value = url.format(quote(secret, safe="") if encoded else secret)
    text = f"{setting} = {toml(value)}" if place == "file" else None
    environment = {all_settings()[setting].variable: value} if place == "environment" else {}
    options = {setting: value} if place == "options" else {}
    assert_hidden(secret, output(text, environment, options))


@settings(deadline=None)
@given(URLS, SECRETS, st.booleans())
def test_a_password_in_a_url_that_a_program_gives(url: str, secret: str, encoded: bool) -> None:
    value = url.format(quote(secret, safe="") if encoded else secret)
    texts: list[str] = []
    for make in (store_for, open_admin, publisher_for, dialect_of, subscribed):
        try:
            made = make(value)
            texts += [repr(made), str(getattr(made, "name", ""))]
        except InvalidSetting as error:
            texts.append(str(error))
    assert_hidden(secret, texts)


def subscribed(url: str) -> Subscriber:
    return subscriber_for(url, Subscription("stock"), queue="q")


QUOTING = st.sampled_from(
    [
        "can't reach postgresql://me:{}@host/shop now", "'postgresql://me@corp:{}@host'", "(amqp://:{}@host/)",
        "https://host/?a=b&password={}&c=d", "host=db password={} user=me", "host=db password='{}' user=me",
        'host=db PASSWORD = "{}" user=me', "PGPASSWORD={} psql", "connect(user='me', password='{}')",
    ]
)  # fmt: skip


@settings(deadline=None)
@given(QUOTING, SECRETS)
def test_a_password_that_a_driver_quotes(text: str, secret: str) -> None:
    """In a text a password ends where its quotes do, or at a blank."""
    in_text = "".join(secret.split()).replace("'", "").replace('"', "").replace("\\", "")
    assert_hidden(secret, [without_passwords(text.format(in_text))])


@settings(deadline=None)
@given(SECRETS, st.booleans())
def test_the_password_of_a_broker(secret: str, in_file: bool) -> None:
    text = f'to = "amqp://me@host/"\n[rabbitmq]\npassword = {toml(secret)}' if in_file else None
    environment = {} if in_file else {"POSTROAD_RABBITMQ_PASSWORD": secret, "POSTROAD_TO": "amqp://me@host/"}
    assert_hidden(secret, output(text, environment, {}))


WRONG_PLACES = st.sampled_from(
    [
        "pasword = {}", "password = {} x", "[rabitmq]\npassword = {}", "[rabbitmq]\npaswort = {}", "rabbitmq = {}",
        "[rabbitmq]\npassword = [{}]", "[rabbitmq.password]\nvalue = {}", "database = [{}]", "lanes = [{}]",
        "to = {{url = {}}}",
    ]
)  # fmt: skip


@settings(deadline=None)
@given(SECRETS, WRONG_PLACES)
def test_a_password_in_the_wrong_place_of_the_file(secret: str, wrong: str) -> None:
    assert_hidden(secret, output(wrong.format(toml(secret)), {}, {}))


@settings(deadline=None)
@given(SECRETS, st.sampled_from(["POSTROAD_PASSWORD", "POSTROAD_RABBITMQ_PASSWORDS", "POSTROAD_DATABSE"]))
def test_a_password_in_a_variable_that_does_not_exist(secret: str, variable: str) -> None:
    assert_hidden(secret, output(None, {variable: secret}, {}))


@settings(max_examples=20, deadline=None)
@given(SECRETS, st.sampled_from([["config"], ["config", "--json"], ["status"], ["relay", "--until-empty"]]))
def test_a_password_and_the_command_line(secret: str, command: list[str]) -> None:
    url = f"postgresql://me:{quote(secret, safe='')}@127.0.0.1:1/shop"
    environment: dict[str, Any] = {name: None for name in os.environ if name.startswith("POSTROAD_")}
    environment |= {
        "POSTROAD_RABBITMQ_PASSWORD": secret,
        "POSTROAD_TO": "null://",
        "POSTROAD_DEBUG": "1",
        "POSTROAD_UNTIL_EMPTY_TIMEOUT": "0",
    }
    before = logging.getLogger().handlers[:]
    try:
        result = CliRunner().invoke(app, [*command, "--database", url], env=environment)
    finally:
        logging.getLogger().handlers = before
    assert result.exit_code == (0 if command[0] == "config" else 1)
    assert "--database contains a password" in result.stderr
    assert_hidden(secret, [result.stdout, result.stderr])


def test_the_check_itself_notices() -> None:
    with pytest.raises(AssertionError):
        assert_hidden("Qz9:/?9zQ", ["it is Qz9%3A%2F%3F9zQ"])
