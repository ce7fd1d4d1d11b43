"""URLs and settings of Kafka as configuration of librdkafka: what is refused, and that no password is shown."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from postroad.brokers.kafka.address import Address
from postroad.brokers.kafka.producers import Producers
from postroad.brokers.kafka.publisher import KafkaPublisher
from postroad.brokers.kafka.settings import ConnectionSettings, PublisherSettings
from postroad.brokers.registry import publisher_for
from postroad.errors import BrokerUnavailable, InvalidSetting
from postroad.kinds import is_url
from postroad.safe_text import without_passwords
from tests.kafka_source import kafka_subscriber


def address(url: str, **settings: Any) -> Address:
    return Address(url, ConnectionSettings(**settings))


def test_hosts_have_ports() -> None:
    config = address("kafka://a,b:9093,[::1],[::1]:9094").config({})
    assert config["bootstrap.servers"] == "a:9092,b:9093,[::1]:9092,[::1]:9094"
    assert config["security.protocol"] == "PLAINTEXT"


def test_several_hosts_and_a_password_are_a_url_that_is_shown_without_it() -> None:
    url = "kafkas://shop:s3cr3t@a:9092,b:9092/?mechanism=PLAIN"
    assert is_url(url)
    assert without_passwords(f"failed: {url}") == "failed: kafkas://shop:***@a:9092,b:9092/?mechanism=PLAIN"


def test_the_destination_does_not_depend_on_the_order_of_hosts_or_on_users() -> None:
    first = publisher_for("kafka://shop:s3cr3t@b,a:9092", topic="orders.{type}")
    second = publisher_for("kafka://a,b:9092", topic="orders.{type}", envelope="plain")
    assert first.destination == second.destination == "kafka://a:9092,b:9092/?topic=orders.{type}"
    assert publisher_for("kafka://c", cluster="main").destination == "kafka://main/?topic={topic}"


@pytest.mark.parametrize(
    ("url", "settings", "protocol", "mechanism"),
    [
        ("kafka://a", {}, "PLAINTEXT", None),
        ("kafkas://a", {}, "SSL", None),
        ("kafka://u:p@a", {}, "SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("kafkas://u:p@a?mechanism=PLAIN", {}, "SASL_SSL", "PLAIN"),
        ("kafkas://u:p@a?mechanism=PLAIN", {"mechanism": "SCRAM-SHA-256"}, "SASL_SSL", "SCRAM-SHA-256"),
    ],
)
def test_security(url: str, settings: dict[str, Any], protocol: str, mechanism: str | None) -> None:
    config = address(url, **settings).config({})
    assert (config["security.protocol"], config.get("sasl.mechanisms")) == (protocol, mechanism)


def test_settings_replace_what_the_url_says(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    config = address("kafka://u:p%40ss@a").config({})
    assert (config["sasl.username"], config["sasl.password"]) == ("u", "p@ss")
    config = address("kafka://u:p@a", username="v", password="q").config({})
    assert (config["sasl.username"], config["sasl.password"]) == ("v", "q")
    reading = address("kafka://u@a", password_file=file)
    assert reading.config({})["sasl.password"] == "from the file"
    file.write_text("another one\n")
    assert reading.config({})["sasl.password"] == "another one"


def test_oauth_with_a_client_and_its_secret() -> None:
    config = address(
        "kafkas://client:s3cr3t@a",
        mechanism="OAUTHBEARER",
        token_url="https://login.example/token",
        token_scope="kafka",
    ).config({})
    assert config["sasl.oauthbearer.method"] == "oidc"
    assert config["sasl.oauthbearer.client.id"] == "client"
    assert config["sasl.oauthbearer.client.secret"] == "s3cr3t"
    assert config["sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert config["sasl.oauthbearer.scope"] == "kafka"


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("kafka://", {}, "names no host"),
        ("kafka://a:b", {}, "can't be split"),
        ("kafka://u:p@ss@a/x@y", {}, "can't be split"),
        ("amqp://a", {}, "does not begin with kafka://"),
        ("kafka://a/orders", {}, "the topic is a setting of its own"),
        ("kafka://a?acks=1", {}, "the option 'acks'"),
        ("kafka://u@a?mechanism=GSSAPI", {}, "mechanism='GSSAPI'"),
        ("kafka://a", {"mechanism": "PLAIN"}, "there is no username"),
        ("kafka://a", {"mechanism": "OAUTHBEARER"}, "needs token_file, or token_url"),
        ("kafka://a", {"ca_file": "/x"}, "does not begin with kafkas://"),
        ("kafkas://a", {"ca_file": "/no/such/file"}, "is not a file"),
        ("kafkas://a", {"cert_file": "/x"}, "belong together"),
        ("kafka://u@a", {"password": "a", "password_file": "/x"}, "both given"),
        ("kafka://u@a", {"password_file": "/no/such/file"}, "can't be read"),
        ("kafka://a", {"options": {"sasl.password": "s3cr3t"}}, "the settings for users"),
        ("kafka://a", {"options": {"ssl.key.password": "s3cr3t"}}, "the settings for users"),
        ("kafka://a", {"options": {"bootstrap.servers": "b"}}, "the URL's hosts"),
        (
            "kafkas://a",
            {"options": {"ssl.endpoint.identification.algorithm": "none"}},
            "use ca_file, and certificates that have the names of the brokers' hosts",
        ),
        ("kafka://a", {"options": {"no.such.option": "1"}}, "No such configuration property"),
        ("kafka://a", {"options": {"acks": "1"}}, "all in-sync replicas"),
        ("kafka://a", {"options": {"enable.idempotence": False}}, "all in-sync replicas"),
        ("kafka://a", {"options": {"partitioner": "random"}}, "the default"),
        ("kafka://a", {"options": {"message.timeout.ms": 5}}, "confirm_timeout"),
        ("kafka://a", {"topic": "{"}, "topic is '{'"),
        ("kafka://a", {"topic": "a b"}, "topic is 'a b'; Kafka accepts"),
        ("kafka://a", {"topic": ".."}, "topic is '..'; Kafka accepts"),
        ("kafka://a", {"topic": "{tenant}/orders"}, "topic is '{tenant}/orders'; Kafka accepts"),
        ("kafka://a:0", {}, "a port that is not from 1 to 65535"),
        ("kafka://a,b:70000", {}, "a port that is not from 1 to 65535"),
        ("kafka://a", {"compression": "rar"}, "compression is 'rar'"),
        ("kafka://a", {"max_message_size": 10}, "max_message_size is 10"),
    ],
)
def test_what_is_wrong(url: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        KafkaPublisher(url, PublisherSettings(**settings))
    assert words in str(error.value)
    assert "s3cr3t" not in str(error.value)


def jwt(claims: str) -> str:
    return f"e30.{urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.s3cr3t"


@pytest.mark.parametrize(
    ("token", "words"),
    [("s3cr3t", "no JSON Web Token"), ("", "no JSON Web Token"), (jwt('{"exp":1}'), "has expired")],
)
async def test_a_token_that_is_none(token: str, words: str, tmp_path: Path) -> None:
    """At the start it is an error. Later it may be good again."""
    file = tmp_path / "token"
    file.write_text(jwt('{"exp":99999999999}'))
    settings: dict[str, Any] = {"mechanism": "OAUTHBEARER", "token_file": file}
    subscriber = kafka_subscriber("kafka://a", topic="orders", **settings)
    file.write_text(token)
    with pytest.raises(BrokerUnavailable, match=words) as outage:
        await subscriber.open()
    with pytest.raises(InvalidSetting, match=words) as error:
        KafkaPublisher("kafka://a", PublisherSettings(**settings))
    assert "s3cr3t" not in f"{outage.value} {error.value}"


def test_no_secret_is_shown() -> None:
    settings = PublisherSettings(password="s3cr3t", username="u")
    publisher = KafkaPublisher("kafka://x:s3cr3t@a", settings)
    shown = f"{settings!r} {publisher!r} {publisher.name} {publisher.destination} {address('kafka://u:s3cr3t@a')!r}"
    assert "s3cr3t" not in shown


def test_options_that_break_nothing_are_passed_on() -> None:
    settings = PublisherSettings(options={"client.rack": "north", "batch.size": 10_000})
    config = Producers(Address("kafka://a", settings), settings)._config()
    assert (config["client.rack"], config["batch.size"], config["acks"]) == ("north", 10_000, "all")
