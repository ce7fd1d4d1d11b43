"""Brokers by their schemes. tests/scenarios/test_third_party_broker.py has those of other packages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroad import Consumer, InvalidSetting, Outbox, Received
from postroad.brokers import publisher_for
from postroad.brokers.registry import (
    Broker,
    all_brokers,
    broken_brokers,
    broker_for,
    known_schemes,
    subscriber_settings,
)
from postroad.relay import Relay
from postroad.setting import SettingsGroup
from postroad.stores import store_for
from postroad.stores.sqlite import migrate_sqlite


def test_the_brokers_of_postroad_itself() -> None:
    names = [broker.name for broker in all_brokers()]
    assert names[:8] == ["rabbitmq", "kafka", "nats", "http", "redis", "null", "memory", "local"]
    assert known_schemes()[:6] == ["amqp", "amqps", "kafka", "kafkas", "nats", "tls"]
    assert known_schemes()[6:10] == ["http", "https", "redis", "rediss"]
    assert known_schemes()[10:15] == ["redis+sentinel", "rediss+sentinel", "null", "memory", "local"]
    assert broken_brokers() == {}
    assert broker_for("amqp://host") is broker_for("amqps://host")


@pytest.mark.parametrize("broker", all_brokers(), ids=lambda broker: broker.name)
def test_every_setting_has_a_default_and_help(broker: Broker) -> None:
    for group in (broker.publisher_settings, broker.subscriber_settings):
        assert isinstance(group(), SettingsGroup)
        for each in group.declared(broker.name):
            assert each.help.endswith("."), each.name
            assert each.default is None or each.kind.check(each.name, each.default) is not None


def test_a_publisher_takes_its_settings_as_keywords() -> None:
    assert repr(publisher_for("amqp://host", exchange="orders")).endswith("exchange='orders')")
    with pytest.raises(
        InvalidSetting, match=r"^the publisher of RabbitMQ has no setting 'exchnage'; did you mean 'exch"
    ):
        publisher_for("amqp://host", exchnage="orders")
    with pytest.raises(InvalidSetting, match=r"^the publisher of the null broker has no setting 'a'; it has none$"):
        publisher_for("null://", a=1)


@pytest.mark.parametrize("url", ["nowhere://me:geheim@host", "me:geheim@host", "amqp://me:ge heim@host", 5])
def test_no_error_quotes_a_password(url: Any) -> None:
    with pytest.raises(InvalidSetting, match="^to ") as wrong:
        publisher_for(url)
    assert "heim" not in str(wrong.value)
    assert wrong.value.settings == ("to",)


@pytest.mark.parametrize("url", ["gopher://host", "host"])
def test_the_error_about_a_wrong_source_lists_what_can_be_consumed_from(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"amqps://user@host/vhost, .* or memory://name") as wrong:
        subscriber_settings(url, {})
    assert "null://" not in str(wrong.value)


async def test_a_queue_in_memory_by_its_url(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    migrate_sqlite(file)

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(file)) as connection, connection:
            yield connection

    with begin() as connection:
        for number in range(3):
            Outbox(source="/shop").add(connection, {"order": number}, type="order.created")
    url = f"memory://{uuid4()}"
    await Relay(store_for(f"sqlite:///{file}"), publisher_for(url)).run_until_empty()
    handled: list[int] = []
    consumer = Consumer(url, name="stock", begin=begin)

    @consumer.on(dict, type="order.created")
    def handle(event: dict[str, int], tx: sqlite3.Connection, message: Received) -> None:
        handled.append(event["order"])

    assert (await consumer.run_until_empty()).handled == 3
    assert sorted(handled) == [0, 1, 2]
