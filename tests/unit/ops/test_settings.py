"""Where settings come from: the file, the environment, the command line; and the errors when they are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.brokers import publisher_for
from postroad.brokers.http.settings import PublisherSettings as HTTPSettings
from postroad.brokers.kafka.settings import PublisherSettings as KafkaSettings
from postroad.brokers.nats.settings import PublisherSettings as NATSSettings
from postroad.brokers.null import NullPublisher
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.brokers.redis.settings import PublisherSettings as RedisSettings
from postroad.config import RelaySettings
from postroad.events import FileReadable, PasswordInArguments
from postroad.ops.settings import Origin, Settings, all_settings, shown


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "given.toml", mode: int = 0o600) -> Path:
    path = Path(name)
    path.write_text(text)
    path.chmod(mode)
    return path


def load(
    text: str = "", environment: dict[str, str] | None = None, options: dict[str, Any] | None = None, **file: Any
) -> Settings:
    return Settings.load(options, file=written(text, **file), environment=environment or {})


def refused(text: str = "", environment: dict[str, str] | None = None, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(InvalidSetting) as wrong:
        load(text, environment, options)
    return str(wrong.value)


# -- the order of places ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", list(product([False, True], repeat=3)))
def test_the_later_place_wins_and_is_named(places: tuple[bool, bool, bool]) -> None:
    in_file, in_environment, in_options = places
    settings = load(
        "lanes = 2" if in_file else "",
        {"POSTROAD_LANES": "3"} if in_environment else {},
        {"lanes": "5"} if in_options else {},
    )
    expected = [(4, "default"), (2, "file given.toml"), (3, "environment POSTROAD_LANES"), (5, "command line")]
    last = max((place for place, there in enumerate(places, 1) if there), default=0)
    assert (settings.relay.lanes, str(settings.origins["lanes"])) == expected[last]


def test_with_nothing_given_all_is_as_the_library_has_it() -> None:
    settings = Settings.load(environment={})
    assert settings == Settings(origins=settings.origins, warnings=[])
    assert set(settings.origins) == set(all_settings())
    assert set(settings.origins.values()) == {Origin("default")}
    assert (settings.relay, settings.brokers, settings.file) == (
        RelaySettings(),
        {
            "rabbitmq": PublisherSettings(),
            "kafka": KafkaSettings(),
            "nats": NATSSettings(),
            "http": HTTPSettings(),
            "redis": RedisSettings(),
        },
        None,
    )


def test_every_setting_can_be_given_in_the_file_and_in_the_environment() -> None:
    given = {
        "database": "sqlite:///a.db", "direct": "postgresql://h/d",
        "schema": "s", "to": "null://", "sink": "audit", "app": "shop:stock", "log_level": "debug",
        "log_format": "json", "tracing": "off", "metrics_port": 9464, "metrics_host": "::1",
        "lanes": 2, "start": "now", "ordering": "none", "batch_size": 7, "page_bytes": 8,
        "wakeup": "off", "linger": "22ms", "tick": "23s",
        "poll_interval": "9ms", "max_idle_backoff": "9s", "settle_interval": "10ms", "outage_backoff": "11s",
        "grace": "12s", "report_interval": "13s", "until_empty_timeout": "14s",
        "max_attempts": 14, "max_backoff": "15m", "on_dead": "hold",
        "dead_letter_topic": "dead", "unroutable": "drop", "route_timeout": "25h",
        "retain": "16d", "cleanup_interval": "2m",
        "lease": "17s", "lock_id": -17, "channel": "c", "rabbitmq.exchange": "e", "rabbitmq.declare": "check",
        "rabbitmq.envelope": "plain", "rabbitmq.envelope_prefix": "ce_", "rabbitmq.routing_key": "{type}",
        "rabbitmq.cluster": "prod", "rabbitmq.partitioned": True,
        "rabbitmq.username": "me", "rabbitmq.password": "geheim", "rabbitmq.confirm_timeout": "18s",
        "rabbitmq.connect_timeout": "19s", "rabbitmq.heartbeat": "20s", "rabbitmq.max_message_size": 21,
        "kafka.username": "me", "kafka.password": "geheim", "kafka.mechanism": "PLAIN",
        "kafka.token_url": "https://login/token", "kafka.token_scope": "kafka", "kafka.ca_file": "ca.pem",
        "kafka.cert_file": "cert.pem", "kafka.key_file": "key.pem", "kafka.connect_timeout": "21s",
        "kafka.topic": "{type}", "kafka.envelope": "plain", "kafka.compression": "zstd", "kafka.cluster": "prod",
        "kafka.linger": "5ms", "kafka.confirm_timeout": "20s", "kafka.max_message_size": 2000,
        "kafka.transactional_id": "shop",
        "http.envelope": "binary", "http.batch_messages": 7, "http.concurrency": 3, "http.connect_timeout": "9s",
        "http.answer_timeout": "19s", "http.max_message_size": 9, "http.max_answer_size": 8,
        "http.allow_plaintext": True, "http.ca_file": "ca.pem", "http.cert_file": "cert.pem",
        "http.key_file": "key.pem",
        "nats.username": "me", "nats.password": "geheim", "nats.ca_file": "ca.pem", "nats.cert_file": "cert.pem",
        "nats.key_file": "key.pem", "nats.tls_first": True, "nats.connect_timeout": "21s", "nats.heartbeat": "20s",
        "nats.domain": "hub", "nats.inbox_prefix": "_MINE", "nats.subject": "{type}", "nats.envelope": "plain",
        "nats.stream": "SHOP", "nats.declare": "check", "nats.cluster": "prod", "nats.confirm_timeout": "20s",
        "redis.username": "me", "redis.password": "geheim", "redis.ca_file": "ca.pem", "redis.cert_file": "cert.pem",
        "redis.key_file": "key.pem", "redis.connect_timeout": "21s", "redis.stream": "{type}", "redis.partitions": 4,
        "redis.declare": "check", "redis.envelope": "plain", "redis.max_length": 9, "redis.max_age": "9d",
        "redis.trim": "acked", "redis.replicas": 1, "redis.fsync": True, "redis.cluster": "prod",
        "redis.confirm_timeout": "20s",
    }  # fmt: skip
    elsewhere = {"rabbitmq.password_file", "database_password_file", "kafka.password_file", "kafka.token_file"}
    elsewhere |= {"dead_letter_sink"}  # not together with dead_letter_topic
    lists = {"topics", "exclude_topics", "types", "sources", "kafka.options"}  # tests of their own
    elsewhere |= {"http.secrets", "http.secrets_file", "http.allow_networks", "http.proxy"}
    elsewhere |= {"redis.password_file", "nats.password_file", "nats.token", "nats.token_file"}
    elsewhere |= {"nats.credentials_file", "nats.nkey_file", "nats.subjects", "nats.stream_config"}
    assert set(given) | elsewhere | lists == set(all_settings())
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    from_file = load("\n".join(lines))
    variables = {all_settings()[name].variable: str(value) for name, value in given.items()}
    from_environment = Settings.load(environment=variables)
    for settings, source in ((from_file, "file"), (from_environment, "environment")):
        for name, value in given.items():
            assert shown(all_settings()[name], settings.value(name)) == ("***" if "password" in name else value)
            assert settings.origins[name].source == source
    assert from_file.relay.retain == timedelta(days=16)


def test_a_table_as_a_value() -> None:
    wanted = {"client.rack": "a", "batch.size": "1000"}
    assert load("[kafka]\noptions = {'client.rack' = 'a', 'batch.size' = '1000'}").value("kafka.options") == wanted
    environment = {"POSTROAD_KAFKA_OPTIONS": "client.rack=a,batch.size=1000"}
    assert Settings.load(environment=environment).value("kafka.options") == wanted
    for wrong in ("", "x", "a=1,b"):
        with pytest.raises(InvalidSetting, match="it must be a mapping of names to values"):
            Settings.load(environment={"POSTROAD_KAFKA_OPTIONS": wrong})


def test_tables_may_be_written_in_any_way_that_toml_has() -> None:
    for text in ("[rabbitmq]\nexchange = 'e'", "rabbitmq.exchange = 'e'", "rabbitmq = {exchange = 'e'}"):
        assert load(text).value("rabbitmq.exchange") == "e"


def test_the_later_place_says_where_the_password_is() -> None:
    text = "[rabbitmq]\npassword_file = '/run/secret'"
    settings = load(text, {"POSTROAD_RABBITMQ_PASSWORD": "geheim"})
    assert tuple(map(settings.value, ("rabbitmq.password", "rabbitmq.password_file"))) == ("geheim", None)
    both = f"{text}\npassword = 'geheim'"
    assert refused(both) == (
        "[rabbitmq]: password and password_file are both given; give one of them "
        "(set by POSTROAD_RABBITMQ_PASSWORD, --rabbitmq-password-file or POSTROAD_RABBITMQ_PASSWORD_FILE)"
    )


# -- the file --------------------------------------------------------------------------------------------------------


def test_the_file_is_the_given_one_else_that_of_the_environment_else_the_one_here() -> None:
    assert Settings.load(environment={}).file is None
    here, named, given = (written(f"lanes = {n}", f"{n}.toml") for n in (1, 2, 3))
    here.rename("postroad.toml")
    assert Settings.load(environment={}).relay.lanes == 1
    assert Settings.load(environment={"POSTROAD_CONFIG": str(named)}).relay.lanes == 2
    assert Settings.load(environment={"POSTROAD_CONFIG": str(named)}, file=given).relay.lanes == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config is 'x.toml', which cannot be read: No such file or directory"),
        (b"lanes = ", "config is 'x.toml', which is no TOML: Invalid value (at "),
        (b"lanes = 1\nlanes = 2", "config is 'x.toml', which is no TOML: Cannot overwrite a value (at "),
        (b'sink = "\xff"', "config is 'x.toml', which is not in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, words: str) -> None:
    if content is not None:
        Path("x.toml").write_bytes(content)
    with pytest.raises(InvalidSetting, match=re.escape(words)):
        Settings.load(file="x.toml", environment={})


def test_a_folder_is_no_file() -> None:
    Path("x.toml").mkdir()
    with pytest.raises(InvalidSetting, match=r"^config is 'x.toml', which cannot be read: Is a directory"):
        Settings.load(file="x.toml", environment={})


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batchsize = 5", "there is no setting 'batchsize'; did you mean 'batch_size'? (file given.toml)"),
        ("batch-size = 5", "there is no setting 'batch-size'; did you mean 'batch_size'? (file given.toml)"),
        ("LANES = 5", "there is no setting 'LANES'; did you mean 'lanes'? (file given.toml)"),
        ("[rabitmq]\nexchange = 'e'", "there is no setting 'rabitmq'; did you mean 'rabbitmq'? (file given.toml)"),
        ("[rabbitmq]\nexchnage = 'e'", "'rabbitmq.exchnage'; did you mean 'rabbitmq.exchange'? (file given.toml)"),
        ("[rabbitmq]\nlanes = 5", "'rabbitmq.lanes'; 'lanes' must stand above the line [rabbitmq] (file given.toml)"),
        ("exchange = 'e'", "there is no setting 'exchange'; did you mean 'rabbitmq.exchange'? (file given.toml)"),
        ("xyzzy = 1", "there is no setting 'xyzzy'; `postroad config` lists all settings (file given.toml)"),
        ("rabbitmq = 5", "rabbitmq is a value; it must be a table, [rabbitmq] (file given.toml)"),
        (
            "lanes = '4'",
            "lanes is '4'; it must be a whole number from 1 to 64 (file given.toml; set by --lanes or POSTROAD_LANES)",
        ),
        (
            "[lanes]",
            (
                "lanes is a table; it must be a whole number from 1 to 64 (file given.toml; set by --lanes "
                "or POSTROAD_LANES)"
            ),
        ),
        ("grace = 5", "grace is 5; it must be a number with its unit, such as '50ms', '5s',"),
        (
            "start = 'middle'",
            "start is 'middle'; it must be one of 'oldest', 'now' (file given.toml; set by --start or POSTROAD_START)",
        ),
        ("retain = 2026-01-01", "retain is datetime.date(2026, 1, 1); it must be a number with its unit"),
        ("[rabbitmq]\nheartbeat = '1ms'", "rabbitmq.heartbeat is '1ms'; it must be a number with its unit"),
        ("poll_interval = '5s'", "max_idle_backoff is shorter than poll_interval; it must be at least as long"),
    ],
)
def test_what_is_wrong_in_the_file(text: str, words: str) -> None:
    assert words in refused(text)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("POSTROAD_LANE", "5", "no setting for the variable POSTROAD_LANE; did you mean 'POSTROAD_LANES'?"),
        ("POSTROAD_EXCHANGE", "e", "for the variable POSTROAD_EXCHANGE; did you mean 'POSTROAD_RABBITMQ_EXCHANGE'?"),
        ("POSTROAD_CONFG", "x", "for the variable POSTROAD_CONFG; did you mean 'POSTROAD_CONFIG'?"),
        ("POSTROAD_Q7", "x", "for the variable POSTROAD_Q7; "),
        (
            "POSTROAD_LANES",
            "4.5",
            (
                "lanes is '4.5'; it must be a whole number from 1 to 64 (environment POSTROAD_LANES; "
                "set by --lanes or POSTROAD_LANES)"
            ),
        ),
        (
            "POSTROAD_LANES",
            "",
            (
                "lanes is ''; it must be a whole number from 1 to 64 (environment POSTROAD_LANES; "
                "set by --lanes or POSTROAD_LANES)"
            ),
        ),
        (
            "POSTROAD_LANES",
            "9" * 5000,
            "it must be a whole number from 1 to 64 (environment POSTROAD_LANES; set by --lanes or POSTROAD_LANES)",
        ),
        ("POSTROAD_LANES", "-1", "lanes is -1; it must be"),
    ],
)
def test_what_is_wrong_in_the_environment(variable: str, value: str, words: str) -> None:
    assert words in refused(environment={variable: value})


def test_what_is_wrong_is_wrong_also_where_it_is_overruled() -> None:
    assert refused("lanes = 0", {"POSTROAD_LANES": "4"}) == (
        "lanes is 0; it must be a whole number from 1 to 64 (file given.toml; set by --lanes or POSTROAD_LANES)"
    )


def test_an_option_that_is_no_setting() -> None:
    assert refused(options={"lane": "4"}) == "there is no setting 'lane'; did you mean 'lanes'?"


@pytest.mark.parametrize(
    "variable",
    [
        "POSTROAD_SERVICE_HOST", "POSTROAD_SERVICE_PORT", "POSTROAD_SERVICE_PORT_METRICS", "POSTROAD_PORT",
        "POSTROAD_PORT_8000_TCP", "POSTROAD_PORT_8000_TCP_ADDR", "POSTROAD_DB_SERVICE_HOST", "POSTROAD_DB_PORT",
        "POSTROAD_METRICS_PORT", "POSTROAD_METRICS_SERVICE_HOST",
        "POSTROAD_DEBUG", "POSTROADS", "PATH",
    ],
)  # fmt: skip
def test_what_others_put_into_the_environment_is_left_alone(variable: str) -> None:
    assert set(load(environment={variable: "tcp://10.0.0.1:8000"}).origins.values()) == {Origin("default")}


def test_a_setting_with_a_name_like_those_of_kubernetes_is_read() -> None:
    assert load(environment={"POSTROAD_METRICS_PORT": "9464"}).command.metrics_port == 9464
    assert "metrics_port is 'ninety'" in refused(environment={"POSTROAD_METRICS_PORT": "ninety"})


def test_what_must_be_given_says_how() -> None:
    settings = load("to = 'null://'")
    assert settings.needed("to") == "null://"
    with pytest.raises(
        InvalidSetting, match="^database is not set; give it as --database URL, as POSTROAD_DATABASE, or in"
    ):
        settings.needed("database")


# -- what is unwise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["[rabbitmq]\npassword = 'p'", "to = 'amqp://me:p@h'", "database = 'postgresql://h/x?password=p'"]
)
def test_a_file_with_a_password_that_everybody_may_read(text: str) -> None:
    assert load(text, mode=0o604).warnings == [FileReadable(file="given.toml")]
    assert load(text, mode=0o640).warnings == []
    assert load("lanes = 1\nto = 'amqp://me@h'", mode=0o644).warnings == []


def test_a_password_on_the_command_line() -> None:
    secret = {"database": "postgresql://me:p@h/x", "to": "amqp://me:p@h"}
    assert load(options=secret).warnings == [
        PasswordInArguments(option="--database", instead="POSTROAD_DATABASE or database_password_file"),
        PasswordInArguments(option="--to", instead="POSTROAD_TO or rabbitmq.password_file"),
    ]
    assert load(options={"database": "postgresql://me@h/x"}).warnings == []
    assert Settings.load(environment={"POSTROAD_TO": "amqp://me:p@h"}).warnings == []


# -- what becomes of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["rabbitmq.password_file", "database_password_file"])
def test_a_password_file_that_everybody_may_read(setting: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    given = {all_settings()[setting].variable: str(secret), "POSTROAD_DATABASE": "postgresql://me@host/shop"}
    secret.chmod(0o640)
    assert Settings.load(environment=given).warnings == []
    secret.chmod(0o644)
    (warning,) = Settings.load(environment=given).warnings
    assert str(warning) == f"{setting} is {secret}, which every user of this machine may read; run: chmod o-r {secret}"


@pytest.mark.parametrize(
    ("setting", "url", "option"),
    [
        *(
            ("database", f"postgresql://me@db/shop?sslmode={mode}", f"sslmode={mode}")
            for mode in ("allow", "prefer", "require")
        ),
        ("direct", "postgresql://me@db/shop?a=b&sslmode=require", "sslmode=require"),
        ("to", "amqps://me@broker/?no_verify_ssl=1", "no_verify_ssl=1"),
    ],
)
def test_tls_that_verifies_nothing(setting: str, url: str, option: str) -> None:
    (warning,) = Settings.load({setting: url}, environment={}).warnings
    assert str(warning).startswith(f"{setting} has {option}, so the server's certificate is not verified")


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("database", "postgresql://me@db/shop"), ("database", "postgresql://me@db/shop?sslmode=verify-full"),
        ("database", "postgresql://me@db/shop?sslmode=verify-ca"), ("database", "postgresql://db/x?sslmode=disable"),
        ("database", "postgresql://me@db/shop?sslmode=require&sslrootcert=/ca.pem"),
        ("to", "amqps://me@broker/"), ("to", "amqps://me@broker/?no_verify_ssl=0"), ("to", "amqp://b/?no_verify_ssl=1"),
    ],
)  # fmt: skip
def test_tls_that_verifies_or_that_there_is_none_of(setting: str, url: str) -> None:
    assert Settings.load({setting: url}, environment={}).warnings == []


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("postgresql://me@host:5432/shop?a=b", "postgresql://me:ge%2Fhe%40im@host:5432/shop?a=b"),
        ("postgresql://one:1,two:2/shop?user=me", "postgresql://:ge%2Fhe%40im@one:1,two:2/shop?user=me"),
        ("postgres://me@corp@host", "postgres://me@corp:ge%2Fhe%40im@host"),
    ],
)
def test_the_password_of_the_database_from_a_file(url: str, whole: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ge/he@im\r\n")
    secret.chmod(0o600)
    loaded = Settings.load({"database": url, "direct": url, "database_password_file": str(secret)}, environment={})
    assert (loaded.needed("database"), loaded.needed("direct")) == (whole, whole)
    assert "im" not in str(shown(all_settings()["database"], loaded.value("database"))).partition("@")[0]
    assert "ge%2F" not in repr(loaded)


@pytest.mark.parametrize(
    ("url", "file", "wrong"),
    [
        ("postgresql://me:QzXgeheim@host/shop", "secret", "and database has a password; give one of them"),
        ("sqlite:///a.db", "secret", "and database is no PostgreSQL database"),
        ("postgresql://me@host/shop", "missing", "which cannot be read"),
    ],
)
def test_a_password_file_that_is_wrong(url: str, file: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim")
    with pytest.raises(InvalidSetting, match=f"^database_password_file is .*{wrong}") as refused:
        Settings.load({"database": url, "database_password_file": str(tmp_path / file)}, environment={})
    assert "QzX" not in str(refused.value)


def test_the_publisher_is_that_of_the_url() -> None:
    assert isinstance(publisher_for("null://"), NullPublisher)
    settings = load("[rabbitmq]\nexchange = 'orders'\nenvelope = 'structured'\nconfirm_timeout = '3s'")
    for scheme in ("amqp", "amqps"):
        publisher = publisher_for(f"{scheme}://me@host/x", settings.brokers["rabbitmq"])
        assert isinstance(publisher, RabbitMQPublisher)
        assert repr(publisher) == f"RabbitMQPublisher('{scheme}://host/x', exchange='orders')"
        assert (publisher._envelope.mode, publisher._confirm_timeout) == ("structured", 3)
    assert isinstance(publisher_for("amqp://host"), RabbitMQPublisher)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "pigeon://roof",
            "^to is a URL that begins with 'pigeon'; it must look like amqp://user@host/vhost, .*memory://name or slot://",
        ),
        ("ampq://roof", "^to is a URL that begins with 'ampq'; did you mean amqp://[?] it must look like amqp://user@"),
        ("local://x", "^to begins with local://, and handlers in this process have no URL; pass LocalPublisher"),
        ("geheim", "^to is not a valid URL; it must look like amqp://user@host/vhost, "),
    ],
)
def test_an_unknown_destination(url: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        publisher_for(url)


def test_without_its_driver_a_destination_says_what_to_install() -> None:
    program = """
import sys
sys.modules["aiormq"] = None
from postroad import MissingExtra
from postroad.brokers import publisher_for
publisher_for("null://")
try:
    publisher_for("amqp://host")
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert "pip install 'postroad[rabbitmq]'" in done.stdout
