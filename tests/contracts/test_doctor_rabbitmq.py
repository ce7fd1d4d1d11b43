"""The checks of `postroad doctor` on a real RabbitMQ: made ill, found, and mended. Nothing is left on the broker."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.exceptions import ChannelClosed

from postroad import Message
from postroad.admin import By, ConsumerFacts, Filter, Finding, Level, Limits, examine, open_admin
from postroad.brokers.rabbitmq.checks import UNLIMITED
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.brokers.registry import publisher_for
from postroad.config import RelaySettings
from postroad.errors import InvalidSetting
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore
from tests.contracts.test_doctor import running
from tests.contracts.test_rabbitmq import largest_message
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import SQLiteLog
from tests.services.proxy import Proxy
from tests.services.rabbitmq import RabbitMQ

SECONDS = 60
DAY = 86_400.0


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(tmp_path / "shop.sqlite")
    yield log
    await log.close()


async def the_one(log: SQLiteLog, check: str, to: str, **options: Any) -> Finding:
    findings = await examine(f"sqlite:///{log.path}", to=to, watch_seconds=0, **options)
    (finding,) = [each for each in findings if each.check == check]
    assert "guest:guest" not in str(findings)
    assert finding.link == f"docs/doctor.md#{check}"
    return finding


async def until_found(level: Level, log: SQLiteLog, check: str, to: str, **options: Any) -> Finding:
    async with asyncio.timeout(SECONDS):
        while True:
            finding = await the_one(log, check, to, **options)
            if finding.level is level:
                return finding
            await asyncio.sleep(0.05)


async def exchanges_there(url: str, *names: str) -> list[bool]:
    found = []
    for name in names:
        async with rabbitmq_channel(url) as channel:
            try:
                await channel.declare_exchange(name, passive=True)
            except ChannelClosed:
                found.append(False)
            else:
                found.append(True)
    return found


# -- reaching it -----------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_away_or_refuses_the_user(log: SQLiteLog, vhost: str, rabbitmq: RabbitMQ) -> None:
    finding = await the_one(log, "broker", vhost)
    assert (finding.level, finding.evidence["server"][:10]) == (Level.OK, "RabbitMQ 3")
    for url, reason in (
        (vhost.replace("guest:guest", "guest:wrong"), "the login was refused"),
        (vhost + "-not", "the vhost does not exist"),
        ("amqp://guest:guest@127.0.0.1:1/", "Connect"),
    ):
        finding = await the_one(log, "broker", url)
        assert finding.level is Level.ERROR
        assert reason in finding.text
        assert (await the_one(log, "rabbitmq-alarms", url)).level is Level.SKIPPED


async def test_a_broker_that_does_not_answer(log: SQLiteLog, rabbitmq: RabbitMQ) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        url = f"amqp://guest@127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
        finding = await the_one(log, "broker", url, broker_settings=PublisherSettings(connect_timeout="500ms"))
        assert finding.level is Level.ERROR


async def test_a_url_without_a_broker(log: SQLiteLog) -> None:
    with pytest.raises(InvalidSetting, match="begins with 'ampq'"):
        await the_one(log, "broker", "ampq://host/")
    finding = await the_one(log, "broker", "null://")
    assert (finding.level, finding.text) == (Level.SKIPPED, "the null broker has no checks of its own")


def certificate(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    pair = folder / f"certificate{days}.pem", folder / f"key{days}.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days {days} -subj /CN=localhost -addext "
        f"subjectAltName=DNS:localhost -keyout {pair[1]} -out {pair[0]}".split(),
        check=True,
        capture_output=True,
    )
    return pair


async def test_certificates(log: SQLiteLog, vhost: str, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    assert (await the_one(log, "broker-certificate", vhost)).level is Level.SKIPPED
    for days, level in ((2, Level.WARNING), (100, Level.OK)):
        pair = certificate(tmp_path, days)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pair)
        async with Proxy(rabbitmq.port, context) as proxy:
            url = f"amqps://guest:guest@localhost:{proxy.port}/{vhost.rpartition('/')[2]}"
            finding = await the_one(log, "broker-certificate", url)
            assert finding.level is Level.ERROR
            assert "self-signed certificate" in finding.text
            assert (await the_one(log, "broker", url)).level is Level.ERROR
            unchecked = await the_one(log, "broker-certificate", f"{url}?no_verify_ssl=1")
            assert (unchecked.level, "not verified" in unchecked.text) == (Level.WARNING, True)
            finding = await the_one(log, "broker-certificate", f"{url}?cafile={pair[0]}")
            assert finding.level is level
            assert abs(finding.evidence["seconds_left"] - days * DAY) < DAY
            assert (await the_one(log, "broker", f"{url}?cafile={pair[0]}")).level is Level.OK


# -- what is on it ---------------------------------------------------------------------------------------------------


async def test_the_exchange(log: SQLiteLog, vhost: str) -> None:
    check, only_check = "rabbitmq-exchange", PublisherSettings(declare="check")
    assert (await the_one(log, check, vhost)).level is Level.OK
    assert (await the_one(log, check, vhost, broker_settings=only_check)).level is Level.ERROR
    assert await exchanges_there(vhost, "postroad") == [False], "doctor has not made it"
    async with rabbitmq_channel(vhost) as channel:
        exchange = await channel.declare_exchange("postroad", aio_pika.ExchangeType.DIRECT, durable=True)
        finding = await the_one(log, check, vhost)
        assert finding.level is Level.ERROR
        assert "'direct'" in finding.text
        assert (await the_one(log, check, vhost, broker_settings=only_check)).level is Level.WARNING
        await exchange.delete()
        await channel.declare_exchange("postroad", aio_pika.ExchangeType.TOPIC, durable=True)
    assert (await the_one(log, check, vhost, broker_settings=only_check)).level is Level.OK


async def test_an_alarm(log: SQLiteLog, vhost: str, rabbitmq: RabbitMQ) -> None:
    assert (await the_one(log, "rabbitmq-alarms", vhost)).level is Level.OK
    rabbitmq.block()
    try:
        finding = await the_one(log, "rabbitmq-alarms", vhost)
        assert finding.level is Level.ERROR
        assert "low on memory" in finding.text
    finally:
        rabbitmq.unblock()
    assert (await the_one(log, "rabbitmq-alarms", vhost)).level is Level.OK


async def test_the_size_of_messages(log: SQLiteLog, vhost: str, rabbitmq: RabbitMQ) -> None:
    assert (await the_one(log, "rabbitmq-message-size", vhost)).evidence["bytes"] is None
    await log.add(Message(b"x" * 5000, type="large"))
    assert (await the_one(log, "rabbitmq-message-size", vhost)).level is Level.OK
    with largest_message(rabbitmq, 1000):
        finding = await the_one(log, "rabbitmq-message-size", vhost)
        assert finding.level is Level.ERROR
        assert "takes messages of 1,000 bytes, and a recent one has 5,000" in finding.text
    assert (await the_one(log, "rabbitmq-message-size", vhost)).level is Level.OK


async def test_a_topic_without_a_queue(log: SQLiteLog, vhost: str) -> None:
    await log.add(Message({"n": 1}, type="order.created"))
    relay = Relay(SQLiteStore(log.path), publisher_for(vhost), settings=RelaySettings(lanes=1))
    async with running(relay):
        finding = await until_found(Level.ERROR, log, "unbound-topics", vhost)
        assert "1 message of sink 'default' waits for the route 'order.created'" in finding.text
        async with rabbitmq_channel(vhost) as channel:
            await bound_queue(channel, "orders", "order.created")
        await until_found(Level.OK, log, "unbound-topics", vhost)


async def test_the_dead_letter_topic(log: SQLiteLog, vhost: str) -> None:
    check = "rabbitmq-dead-letter-topic"
    assert (await the_one(log, check, vhost)).level is Level.OK
    finding = await the_one(log, check, vhost, relay=RelaySettings(dead_letter_topic="graveyard"))
    assert finding.level is Level.SKIPPED
    assert "rabbitmqctl list_bindings" in finding.text


async def test_a_dead_letter_topic_without_a_queue(log: SQLiteLog, vhost: str) -> None:
    settings = RelaySettings(lanes=1, dead_letter_topic="graveyard", route_timeout="1ms", poll_interval="10ms")
    ask = partial(until_found, log=log, check="rabbitmq-dead-letter-topic", to=vhost, relay=settings)
    await log.add(Message({"n": 1}, type="order.created"))  # no queue takes it, so that it dies
    async with running(Relay(SQLiteStore(log.path), publisher_for(vhost), settings=settings)):
        finding = await ask(Level.ERROR)
        assert "dead letters for topic 'graveyard' were refused, the last of sink 'default': " in finding.text
        assert "postroad dead retry" in str(finding.fix)
        async with rabbitmq_channel(vhost) as channel, open_admin(f"sqlite:///{log.path}") as admin:
            await bound_queue(channel, "dead", "graveyard")
            assert (await admin.retry(Filter(sink="default", all=True), By("anna", "a test"))).changed == 1
            queue = await channel.get_queue("dead")
            async with asyncio.timeout(SECONDS), queue.iterator() as letters:
                assert (await anext(letters)).headers["postroad-dead-type"] == "order.created"
        await ask(Level.SKIPPED)


async def test_a_quorum_queue_of_this_version(log: SQLiteLog, vhost: str) -> None:
    """What 4.0 does is judged in tests/unit/brokers/rabbitmq/test_checks.py: this server is older."""
    consumers = [ConsumerFacts("stock", None, 0, {"x-queue-type": "quorum"})]
    assert (await the_one(log, "rabbitmq-delivery-limit", vhost)).level is Level.SKIPPED
    assert (await the_one(log, "rabbitmq-delivery-limit", vhost, consumers=consumers)).level is Level.OK


async def test_the_dead_letter_queue_is_asked_for_its_limit(
    log: SQLiteLog, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this server were of a version that has a limit where none is given."""
    monkeypatch.setattr("postroad.brokers.rabbitmq.facts.server_version", lambda _: "4.0.0")
    consumers = [ConsumerFacts(name, None, 0, UNLIMITED, f"{name}.dead") for name in ("old", "new", "missing")]
    async with rabbitmq_channel(vhost) as channel:
        await channel.declare_queue("old.dead", durable=True, arguments={"x-queue-type": "quorum"})
        await channel.declare_queue("new.dead", durable=True, arguments=UNLIMITED)
    findings = await examine(f"sqlite:///{log.path}", to=vhost, watch_seconds=0, consumers=consumers)
    (warned,) = [each for each in findings if each.check == "rabbitmq-delivery-limit" and each.level is not Level.OK]
    assert warned.level is Level.WARNING
    assert "the dead-letter queue 'old.dead' of consumer 'old' may drop a letter" in warned.text
    assert "current is none" in warned.text
    assert "set_policy no-limit '^old\\.dead$'" in str(warned.fix)
    async with rabbitmq_channel(vhost) as channel:
        with pytest.raises(ChannelClosed, match="no queue 'missing.dead'"):
            await channel.declare_queue("missing.dead", passive=True)


async def test_nothing_is_left_on_the_broker(log: SQLiteLog, vhost: str, rabbitmq: RabbitMQ) -> None:
    name = vhost.rpartition("/")[2]

    def content() -> list[str]:
        kinds = ("exchanges", "queues", "bindings")
        return [rabbitmq.ctl(f"list_{kind}", "-p", name) for kind in kinds]

    await log.add(Message({"n": 1}, type="order.created"))
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "all")
    before = content()
    findings = await examine(f"sqlite:///{log.path}", to=vhost, watch_seconds=0, limits=Limits())
    assert not [each for each in findings if each.level in {Level.ERROR, Level.WARNING}]
    assert content() == before
