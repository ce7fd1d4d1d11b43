"""Asks a RabbitMQ server what `checks` judges, without changing anything there.

Messages are sent to the default exchange, with a routing key that no queue has: the broker returns them and keeps none.
An exchange or a queue is declared only if it is there already, which tells whether it is as we would declare it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from postroad.brokers.certificates import ask_certificate
from postroad.brokers.rabbitmq.address import Address
from postroad.brokers.rabbitmq.channel import CLOSE_SECONDS, AlarmConnection, LinkLost, server_version
from postroad.brokers.rabbitmq.checks import QUEUE_TYPE, UNLIMITED
from postroad.brokers.rabbitmq.frames import Properties, publish_frames
from postroad.brokers.rabbitmq.publisher import limit_named_in
from postroad.errors import InvalidSetting
from postroad.findings import Facts, NotKnown
from postroad.message import StoredMessage, new_id

if TYPE_CHECKING:
    from yarl import URL

    from postroad.brokers.rabbitmq.channel import ConfirmChannel
    from postroad.brokers.rabbitmq.settings import PublisherSettings

__all__ = ["gather"]

ANSWER_SECONDS: Final = 5.0
_OF_SERVER: Final = (
    "rabbitmq_version", "rabbitmq_exchange", "rabbitmq_alarm", "rabbitmq_size", "rabbitmq_dead_letter_queues",
)  # fmt: skip
_MISSING: Final = 404
_DIFFERS: Final = 406


async def gather(url: str, settings: PublisherSettings, known: Facts) -> Facts:
    """The facts of `checks`, and `broker_connection` and `broker_certificate`."""
    facts = Facts()
    address = Address(url, settings, connection_name="postroad doctor")
    seconds = settings.seconds("connect_timeout")
    await _certificate(address.urls()[0], seconds, facts)
    try:
        connection = await address.connect(lambda host: AlarmConnection(host, ANSWER_SECONDS), seconds)
    except LinkLost as lost:
        facts.know("broker_connection", {"place": address.name, "error": str(lost)})
        for name in _OF_SERVER:
            facts.miss(name, "the broker can't be reached")
        return facts
    try:
        version = server_version(connection)
        facts.know("broker_connection", {"place": address.name, "error": None, "server": f"RabbitMQ {version}"})
        facts.know("rabbitmq_version", version)
        await _exchange(connection, settings, facts)
        await _alarm(connection, facts)
        await _size(connection, settings, known, facts)
        await _dead_letter_queues(connection, known, facts)
    finally:
        await connection.disconnect("doctor is done", CLOSE_SECONDS)
    return facts


# -- the certificate -------------------------------------------------------------------------------------------------


async def _certificate(url: URL, seconds: float, facts: Facts) -> None:
    if url.scheme != "amqps":
        facts.miss("broker_certificate", "the URL is amqp://, without TLS")
        return
    try:
        context = _context(url)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidSetting(f"to has a certificate or key that can't be used: {error}", settings=("to",)) from error
    fix = "renew the certificate, name the host that it was issued for, or give its CA: ?cafile=FILE"
    try:
        found = await ask_certificate(url.host or "", url.port or 5671, context, seconds, fix=fix)
    except NotKnown as reason:
        facts.miss("broker_certificate", str(reason))
    else:
        facts.know("broker_certificate", found)


def _context(url: URL) -> ssl.SSLContext:
    """As aiormq makes it of the same URL."""
    options = url.query
    context = ssl.create_default_context(
        cafile=options.get("cafile"), capath=options.get("capath"), cadata=options.get("cadata")
    )
    if "certfile" in options:
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    if options.get("no_verify_ssl") == "1":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# -- what the broker answers -----------------------------------------------------------------------------------------


async def _exchange(connection: AlarmConnection, settings: PublisherSettings, facts: Facts) -> None:
    found = {"exchange": settings.exchange, "declare": settings.declare, "exists": True, "differs": None}
    try:
        await _declare(connection, settings.exchange, only_check=True)
        await _declare(connection, settings.exchange, only_check=False)
    except LinkLost as lost:
        if lost.code == _MISSING:
            found["exists"] = False
        elif lost.code == _DIFFERS:
            found["differs"] = str(lost)
        else:
            facts.miss("rabbitmq_exchange", f"the exchange {settings.exchange!r} can't be checked: {lost}")
            return
    facts.know("rabbitmq_exchange", found)


async def _declare(connection: AlarmConnection, name: str, *, only_check: bool) -> None:
    """On a channel of its own, which the broker closes if it refuses."""
    channel = await connection.take()
    async with asyncio.timeout(ANSWER_SECONDS):
        await channel.declare_exchange(name, only_check=only_check)
    connection.give_back(channel)


async def _dead_letter_queues(connection: AlarmConnection, known: Facts, facts: Facts) -> None:
    """How each dead-letter queue of a quorum queue differs from one without a limit of deliveries; None: not at all.
    One that is not there is left out.
    """
    found: dict[str, str | None] = {}
    if "consumers_given" not in known:
        return
    for consumer in known["consumers_given"]:
        name = consumer.dead_letter_queue
        if name is None or consumer.queue_arguments.get(QUEUE_TYPE) != "quorum":
            continue
        try:
            for passive in (True, False):
                channel = await connection.take()
                async with asyncio.timeout(ANSWER_SECONDS):
                    await channel.declare_queue(name, UNLIMITED, only_check=passive)
                connection.give_back(channel)
            found[name] = None
        except LinkLost as lost:
            if lost.code == _DIFFERS:
                found[name] = str(lost)
            elif lost.code != _MISSING:
                facts.miss("rabbitmq_dead_letter_queues", f"the queue {name!r} can't be checked: {lost}")
                return
    facts.know("rabbitmq_dead_letter_queues", found)


async def _alarm(connection: AlarmConnection, facts: Facts) -> None:
    """The broker tells of an alarm only a connection that publishes."""
    try:
        await _send_to_nowhere(connection, 1)
    except LinkLost as lost:
        if connection.blocked is not None:
            facts.know("rabbitmq_alarm", connection.blocked)
        else:
            facts.miss("rabbitmq_alarm", f"a message to no queue was not answered: {lost}")
        return
    facts.know("rabbitmq_alarm", None)


async def _size(connection: AlarmConnection, settings: PublisherSettings, known: Facts, facts: Facts) -> None:
    """Try a message as large as the largest of the recent ones, if that is known."""
    found: dict[str, Any] = {
        "bytes": None,
        "limit": None,
        "envelope": settings.envelope,
        "max_message_size": settings.max_message_size,
    }
    if "largest_message" in known:
        found["bytes"] = known["largest_message"][0]["bytes"]
    if found["bytes"] and connection.blocked is None:
        try:
            await _send_to_nowhere(connection, found["bytes"])
        except LinkLost as lost:
            found["limit"] = limit_named_in(str(lost))
            if found["limit"] is None:
                facts.miss("rabbitmq_size", f"a message to no queue was not answered: {lost}")
                return
    facts.know("rabbitmq_size", found)


async def _send_to_nowhere(connection: AlarmConnection, size: int) -> None:
    """Publish a message that no queue takes, and wait for the answer. Raises LinkLost if there is none."""
    channel: ConfirmChannel = await connection.take()
    channel.begin()
    message = _nothing()
    key = f"postroad.doctor.{uuid4().hex}"
    frames = publish_frames(
        channel.number,
        b"\x00",  # the default exchange: a message goes to the queue of that name, and there is none
        key,
        Properties("application/octet-stream", {}, str(message.id), int(time.time()), "postroad.doctor"),
        bytes(size),
        frame_max=connection.connection_tune.frame_max,
    )
    await channel.write([message], frames)
    await channel.wait_until_answered()
    connection.give_back(channel)


def _nothing() -> StoredMessage:
    """Stands for the message that is sent, whose answer is counted by its id."""
    return StoredMessage(1, new_id(), "postroad.doctor", None, 0, "postroad.doctor", b"", "text/plain", "{}", 0)
