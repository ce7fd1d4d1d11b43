"""Reads events with the official SDK of CloudEvents, as another company's service would: from RabbitMQ, and in batches
by HTTP.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import aio_pika
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event
from cloudevents.core.formats.json import JSONFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudevents.core.base import BaseCloudEvent as CloudEvent


class Batch(NamedTuple):
    """A request with several events."""

    content_type: str
    body: bytes

    def events(self) -> list[CloudEvent]:
        """A batch is an array of events, and the SDK reads each of them."""
        return [JSONFormat().read(None, json.dumps(each)) for each in json.loads(self.body)]


@contextmanager
def endpoint(batches: list[Batch]) -> Iterator[str]:
    """A web server that keeps what is posted to it. Yields its URL."""

    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            batches.append(Batch(self.headers["content-type"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """The example prints what there is to say."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/readings"
        finally:
            server.shutdown()
            serving.join()


async def subscribe(broker: str, exchange: str) -> None:
    """Bind a queue with the name of its exchange, which takes everything."""
    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel()
        topics = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(exchange, durable=True)
        await queue.bind(topics, "#")


async def read(broker: str, queue: str) -> list[tuple[RabbitMQMessage, CloudEvent]]:
    """All messages of a queue as they came, and the events in them."""
    found: list[tuple[RabbitMQMessage, CloudEvent]] = []
    async with await aio_pika.connect(broker) as connection:
        source = await (await connection.channel()).get_queue(queue)
        while message := await source.get(no_ack=True, fail=False):
            headers = {name: str(value) for name, value in message.headers.items()}
            received = RabbitMQMessage(headers, message.content_type, message.body)
            found.append((received, from_rabbitmq_event(received)))
    return found
