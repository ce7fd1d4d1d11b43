"""The settings of the RabbitMQ publisher are checked where it is built, and keep its secrets."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroad import InvalidSetting
from postroad.brokers.rabbitmq.address import Address
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import ConnectionSettings, PublisherSettings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "Tr0ub4dor&3"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost/", "url does not begin with amqp:// or amqps://; it must look like amqp://"),
        ("localhost:5672", "it must look like amqp://"),
        ("amqp:///orders", "url names no host"),
        ("amqp://{/orders", "not a URL"),
        ("amqp://rabbit-1,{x}/orders", "not a URL"),
        ("amqp://localhost:port/", "not a URL"),
        (5672, "not a URL"),
        (f"amqp://me:{SECRET}@localhost:port/", "not a URL"),
        (f"amqp://me:{SECRET}#@localhost/", "'#'|not a URL|names no host"),
        (f"{SECRET}://localhost/", "it must look like"),
        ("amqp://localhost/?hartbeat=5", "the option 'hartbeat'; it may have cafile"),
        ("amqp://localhost/?heartbeat=often", "url has heartbeat='often'; it must be whole seconds"),
        ("amqps://localhost/?no_verify_ssl=yes", "no_verify_ssl='yes'; it must be 0 or 1"),
        ("amqps://localhost/?cafile=/nowhere.pem", "cafile='/nowhere.pem', which is not a file"),
    ],
)
def test_a_url_is_checked(url: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as wrong:
        RabbitMQPublisher(url)
    assert SECRET.lower() not in str(wrong.value).lower()
    assert wrong.value.__cause__ is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"exchange": ""}, "exchange is ''; it must be a text of 1 to 255 bytes"),
        ({"exchange": "x" * 256}, "exchange is 'xxx"),
        ({"exchange": None}, "exchange is None"),
        ({"declare": "maybe"}, "declare is 'maybe'; it must be one of 'create', 'check', 'no'"),
        ({"routing_key": "{"}, "routing_key is '{'"),
        ({"confirm_timeout": "soon"}, "confirm_timeout is 'soon'"),
        ({"confirm_timeout": "0"}, "confirm_timeout is '0'; it must be a number with its unit, .*, but not 0"),
        ({"connect_timeout": timedelta(seconds=-1)}, "connect_timeout"),
        (
            {"heartbeat": "500ms"},
            "heartbeat is '500ms'; it must be .*, whole seconds up to 65534s",
        ),
        ({"exchange": "ü" * 128}, "exchange is 'üüü"),
        ({"connect_timeout": "0"}, "connect_timeout is '0'"),
        ({"heartbeat": "65535s"}, "heartbeat is '65535s'"),
        ({"heartbeat": "1d"}, "heartbeat is '1d'"),
        ({"max_message_size": 0}, "max_message_size is 0"),
        ({"max_message_size": "1MB"}, "max_message_size is '1MB'"),
        ({"password": SECRET, "password_file": "/nowhere"}, "password and password_file are both given"),
        ({"password_file": "/nowhere"}, "password_file is '/nowhere', which can't be read"),
    ],
)
def test_other_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        RabbitMQPublisher("amqp://localhost/", PublisherSettings(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"exchange": "ü" * 127}, {"connect_timeout": "1ms"}, {"heartbeat": "0"}, {"heartbeat": "65534s"},
        {"max_message_size": 1}, {"routing_key": "{tenant}.{type}"}, {"username": "x" * 255},
    ],
)  # fmt: skip
def test_settings_that_are_just_right(settings: dict[str, Any]) -> None:
    RabbitMQPublisher("amqp://localhost/", PublisherSettings(**settings))


def test_no_secret_is_shown() -> None:
    publisher = RabbitMQPublisher(f"amqp://me:{SECRET.replace('&', '%26')}@localhost/orders")
    address = to("amqp://localhost/", username="me", password=SECRET)
    for text in (repr(publisher), publisher.name, repr(address), address.name, repr(vars(address)["name"])):
        assert "Tr0ub4dor" not in text
    assert publisher.name == "amqp://localhost/orders"
    assert repr(publisher) == "RabbitMQPublisher('amqp://localhost/orders', exchange='postroad')"


def test_settings_replace_what_the_url_says(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\r\n")
    url = "amqp://somebody:something@localhost:5673/orders?heartbeat=7&name=shop"
    assert credentials(to(url)) == ("somebody", "something")
    assert credentials(to(url, username="me")) == ("me", "something")
    assert credentials(to(url, password=SECRET)) == ("somebody", SECRET)
    assert credentials(to(url, username="me", password_file=file)) == ("me", SECRET)
    assert credentials(to("amqp://localhost", password_file=file)) == ("guest", SECRET)
    assert to(url).urls()[0].query["heartbeat"] == "7"
    assert to(url, heartbeat="20s").urls()[0].query["heartbeat"] == "20"
    assert to("amqp://localhost").urls()[0].query["heartbeat"] == "10"
    assert to("amqp://localhost", heartbeat=0).urls()[0].query["heartbeat"] == "0"
    assert to(url).urls()[0].query["name"] == "shop"
    assert Address("amqp://localhost", ConnectionSettings(), connection_name="relay").urls()[0].query["name"] == "relay"


def to(url: str, **settings: Any) -> Address:
    return Address(url, ConnectionSettings(**settings))


def credentials(address: Address) -> tuple[str | None, str | None]:
    return address.urls()[0].user, address.urls()[0].password


def test_without_its_packages_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["aiormq"] = None
from postroad import MissingExtra
from postroad.brokers import publisher_for
try:
    publisher_for("amqp://localhost")
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == (
        "amqp:// needs a package that is not installed; install it with: pip install 'postroad[rabbitmq]'"
    )


# -- several hosts ---------------------------------------------------------------------------------------------------


def test_several_hosts_are_tried_in_turn_and_the_password_is_for_all() -> None:
    address = to("amqp://shop:secret@one,two:5673,[::1]:5674/orders?heartbeat=7")
    urls = address.urls()
    assert [(url.host, url.port) for url in urls] == [("one", None), ("two", 5673), ("::1", 5674)]
    assert {(url.user, url.password, url.path, url.query["heartbeat"]) for url in urls} == {
        ("shop", "secret", "/orders", "7")
    }
    assert address.name == "amqp://one,two:5673,[::1]:5674/orders"
    assert "secret" not in repr(address)


def test_the_destination_has_all_hosts_in_any_order() -> None:
    here = to("amqp://one,two:5673/orders").destination(None, exchange="e")
    assert here == to("amqp://shop@two:5673,one:5672/orders").destination(None, exchange="e")
    assert here == "amqp://one:5672,two:5673/orders?exchange=e"
    assert to("amqp://one,two/orders").destination("rabbits", exchange="e") == "amqp://rabbits/orders?exchange=e"


@pytest.mark.parametrize("url", ["amqp://one,,two/", "amqp://shop:secret@one,/", "amqp://,/", "amqp://one,:5672/"])
def test_a_host_is_missing_between_commas(url: str) -> None:
    with pytest.raises(InvalidSetting, match="url names no host between commas"):
        to(url)


@pytest.mark.parametrize("url", ["amqp://one:a,two/", "amqp://shop:secret@one,two:99999/"])
def test_a_port_of_several_is_wrong(url: str) -> None:
    with pytest.raises(InvalidSetting, match="url") as error:
        to(url)
    assert "secret" not in str(error.value)
